package network

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/ipam"
)

// text writes selections as a pod names them.
func text(selections []Selection) string {
	var parts []string
	for _, s := range selections {
		part := s.String()
		if s.Interface != "" {
			part += "@" + s.Interface
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}

// running is a pod that runs, and its leases.
type running struct {
	world
	leases []ipam.Held
}

// having is a pod that was given its addresses on these attachments.
func having(t *testing.T, before ...Selection) running {
	t.Helper()
	w := attached(annotated(NetworksKey, text(before)), before...)
	w.cat.Subnets["mvp"] = NewSubnet(subnet("mvp", "10.33.0.0/24", serving("n1.default")), Around{})
	w.cat.Attachments["default/prefix"] = Attachment{Provider: "n1.default", IPAMOnly: true}
	w.pod.UID = "uid"
	planned, errs := Plan(w.pod, w.ns, w.cat, w.cfg)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	a := answerTo(planned)
	maps.Copy(w.pod.Annotations, Annotations(planned, a, w.cat, w.cfg))
	w.pod.Plugged = before
	r := running{world: w}
	for _, as := range a.Interfaces {
		for _, l := range as.Leases {
			r.leases = append(r.leases, ipam.Held{Lease: ipam.Lease{Address: l.Address, Claim: claimA, Owner: planned.Owner, Provider: as.Provider, PodUID: "uid"}})
		}
	}
	return r
}

// names edits which attachments the pod names.
func (r running) names(after ...Selection) running {
	r.pod.Networks = after
	r.pod.Annotations = maps.Clone(r.pod.Annotations)
	delete(r.pod.Annotations, NetworksKey)
	if len(after) > 0 {
		r.pod.Annotations[NetworksKey] = text(after)
	}
	return r
}

func (r running) with(pairs ...string) running {
	r.pod = r.pod.with(pairs...)
	return r
}

// then changes something else.
func (r running) then(change func(*running)) running {
	change(&r)
	return r
}

// edited is what an edit comes to, for people: of annotations the providers that they are of.
type edited struct {
	Plug, Unplug, InUse, Free, Drop []string
	Requested                       string
	Warnings, Errors                []string
}

func (r running) check(t *testing.T, want edited) {
	t.Helper()
	e, errs := Replan(r.pod, Having{Leases: r.leases, Running: true}, r.ns, r.cat, r.cfg)
	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	has(t, "error", texts, want.Errors)
	if len(errs) > 0 {
		return
	}
	has(t, "warning", e.Plug.Dropped, want.Warnings)
	got := edited{Unplug: e.Unplug, InUse: e.InUse, Requested: e.Plug.Requested, Warnings: want.Warnings}
	for _, i := range e.Plug.Interfaces {
		got.Plug = append(got.Plug, told(i))
	}
	for _, l := range e.Free {
		got.Free = append(got.Free, l.Provider+" "+l.Address.String())
	}
	for _, key := range e.Drop {
		if provider, _, _ := SplitKey(key); !slices.Contains(got.Drop, provider) {
			got.Drop = append(got.Drop, provider)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if want := text(r.pod.Networks); e.Plug.Networks != want {
		t.Errorf("it is the plan of %q, want %q", e.Plug.Networks, want)
	}
}

const (
	n1, n2, mv    = "n1.default.ovn", "n2.default.ovn", "mv.default"
	statusWith    = `[{"name":"ovn","ips":["10.16.0.2"]},{"name":"default/mv","interface":"net1","ips":["10.32.0.2"]}]`
	statusWithout = `[{"name":"ovn","ips":["10.16.0.2"]}]`
)

func TestReplan(t *testing.T) {
	on := onInterface
	cases := map[string]struct {
		running
		want edited
	}{
		"nothing new":      {having(t, nad("n1")).names(nad("n1")), edited{}},
		"another order":    {having(t, nad("n1"), nad("n2")).names(nad("n2"), nad("n1")), edited{}},
		"plugged":          {having(t).names(nad("n1")), edited{Plug: []string{n1 + " from s1"}}},
		"plugged, another": {having(t, nad("n1")).names(nad("n1"), nad("mv")), edited{Plug: []string{mv + " from mv, address alone"}}},
		"unplugged":        {having(t, nad("n1")).names(), edited{Unplug: []string{n1}, Free: []string{n1 + " 10.30.0.2"}, Drop: []string{n1}}},
		"one of two": {having(t, nad("n1"), nad("n2")).names(nad("n2")),
			edited{Unplug: []string{n1}, Free: []string{n1 + " 10.30.0.2"}, Drop: []string{n1}}},
		"another in its place": {having(t, nad("n1")).names(nad("n2")), edited{Plug: []string{n2 + " from s2"},
			Unplug: []string{n1}, Free: []string{n1 + " 10.30.0.2"}, Drop: []string{n1}}},
		"foreign ones": {having(t, nad("foreign")).names(nad("foreign"), nad("foreign")), edited{}},
		"asked for": {having(t).names(nad("n1", asking("02:00:00:00:00:01", "10.30.0.9"))),
			edited{Plug: []string{n1 + " from s1, asks 10.30.0.9, mac 02:00:00:00:00:01"}}},
		"asked for by annotation": {having(t).with(n1IP, "10.30.0.9").names(nad("n1")),
			edited{Plug: []string{n1 + " from s1, asks 10.30.0.9"}, Requested: `{"n1.default.ovn":{"ip_address":"10.30.0.9"}}`}},
		"no longer asked for": {having(t, nad("n1")).with(RequestedKey, `{"n1.default.ovn":{"ip_address":"10.30.0.2"},"ovn":{"ip_address":"10.16.0.2"}}`).names(),
			edited{Unplug: []string{n1}, Free: []string{n1 + " 10.30.0.2"}, Drop: []string{n1}, Requested: `{"ovn":{"ip_address":"10.16.0.2"}}`}},
		"asked for otherwise": {having(t, nad("n1")).names(nad("n1", asking("", "10.30.0.9"))), edited{Warnings: []string{n1 + " keeps 10.30.0.2"}}},
		"a MAC otherwise":     {having(t, nad("n1")).names(nad("n1", asking("02:00:00:00:00:01"))), edited{Warnings: []string{n1 + " keeps 10.30.0.2"}}},
		"asked for as it is":  {having(t, nad("n1")).names(nad("n1", asking("0a:58:0a:1e:00:02", "10.30.0.2"))), edited{}},

		"unreadable": {having(t, nad("n1")).with(NetworksKey, "[{").then(func(r *running) { r.pod.Networks, r.pod.NetworksErr = nil, errors.New("write a list") }),
			edited{Errors: []string{"write a list"}}},
		"missing":               {having(t, nad("n1")).names(nad("gone")), edited{Errors: []string{"there is no NetworkAttachmentDefinition gone"}}},
		"missing beside":        {having(t, nad("n1")).names(nad("n1"), nad("n2"), nad("gone")), edited{Errors: []string{"there is no NetworkAttachmentDefinition gone"}}},
		"configured badly":      {having(t, nad("n1")).names(nad("bad")), edited{Errors: []string{"can't be read: unexpected end"}}},
		"without subnet":        {having(t, nad("n1")).names(nad("void")), edited{Errors: []string{`no subnet has spec.provider "void.default.ovn"`}}},
		"outside":               {having(t).names(nad("n1", asking("", "10.31.0.9"))), edited{Errors: []string{`"10.31.0.9"`}}},
		"twice, one network":    {having(t).names(nad("n1"), nad("again")), edited{Errors: []string{"Duplicate value"}}},
		"all wrong, at once":    {having(t).names(nad("gone"), nad("bad")), edited{Errors: []string{"no NetworkAttachmentDefinition gone", "can't be read"}}},
		"its own value is bad":  {having(t).with(n1+".kubernetes.io/security_groups", "none").names(nad("n1")), edited{Errors: []string{"no SecurityGroup"}}},
		"another's value is":    {having(t).with("ovn.kubernetes.io/security_groups", "none").names(nad("n1")), edited{Plug: []string{n1 + " from s1"}}},
		"another's subnet went": {having(t, nad("n2")).then(func(r *running) { delete(r.cat.Subnets, "s2") }).names(nad("n2"), nad("n1")), edited{Plug: []string{n1 + " from s1"}}},

		"default network replaced": {having(t, nad("n2")).with(DefaultNetworkKey, "n1").then(func(r *running) {
			s := nad("n1")
			r.pod.DefaultNetwork = &s
		}).names(), edited{Errors: []string{"the default network of a pod that has its address can't become another"}}},
		"prefix of another": {having(t, nad("prefix"), nad("n1", on("a")), nad("n1", on("b"))).with(StatusKey, "[]").names(nad("n1", on("a")), nad("n1", on("b"))),
			edited{Unplug: []string{"n1.default"}, Free: []string{"n1.default 10.33.0.2"}, Drop: []string{"n1.default"}}},
		"an interface of its name": {having(t, nad("prefix"), nad("n1", on("a")), nad("n1", on("b"))).names(nad("prefix"), nad("n1", on("b"))),
			edited{Unplug: []string{n1 + ".a"}, Free: []string{n1 + ".a 10.30.0.2"}, Drop: []string{n1 + ".a"}}},
		"in use, nobody tells": {having(t, nad("mv")).names(), edited{InUse: []string{mv}}},
		"in use":               {having(t, nad("mv"), nad("n1")).with(StatusKey, statusWith).names(), edited{InUse: []string{mv}, Unplug: []string{n1}, Free: []string{n1 + " 10.30.0.2"}, Drop: []string{n1}}},
		"unplugged by its CNI": {having(t, nad("mv")).with(StatusKey, statusWithout).names(), edited{Unplug: []string{mv}, Free: []string{mv + " 10.32.0.2"}, Drop: []string{mv}}},

		"loose leases": {having(t, nad("n1")).then(func(r *running) {
			for provider, change := range map[string]func(*ipam.Lease){n2: func(l *ipam.Lease) { l.PodUID = "" }, "gone.default.ovn": func(*ipam.Lease) {},
				"other": func(l *ipam.Lease) { l.PodUID = "sibling" }, "owner": func(l *ipam.Lease) { l.Owner.Name = "x" }, mv: func(l *ipam.Lease) { l.PodUID = "" }} {
				l := r.leases[0]
				l.Provider = provider
				change(&l.Lease)
				r.leases = append(r.leases, l)
			}
			slices.SortFunc(r.leases, func(a, b ipam.Held) int { return strings.Compare(a.Provider, b.Provider) })
		}).names(nad("n1"), nad("mv")), edited{Plug: []string{mv + " from mv, address alone"}, Free: []string{"gone.default.ovn 10.16.0.2", n2 + " 10.16.0.2"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}

// A network that is plugged in keeps its name, however often its attachment is named before or after.
func TestReplanKeepsNames(t *testing.T) {
	on := onInterface
	cases := map[string]struct {
		running
		want edited
	}{
		"a second, behind":  {having(t, nad("n1", on("a"))).names(nad("n1", on("a")), nad("n1", on("b"))), edited{Plug: []string{n1 + ".b from s1"}}},
		"a second, before":  {having(t, nad("n1", on("a"))).names(nad("n1", on("b")), nad("n1", on("a"))), edited{Plug: []string{n1 + ".b from s1"}}},
		"without a name":    {having(t, nad("n1", on("a"))).names(nad("n1"), nad("n1", on("a"))), edited{Plug: []string{n1 + ".net1 from s1"}}},
		"the second stays":  {having(t, nad("n1", on("a")), nad("n1", on("b"))).names(nad("n1", on("b"))), edited{Unplug: []string{n1 + ".a"}, Free: []string{n1 + ".a 10.30.0.2"}, Drop: []string{n1 + ".a"}}},
		"both go":           {having(t, nad("n1", on("a")), nad("n1", on("b"))).names(nad("n1", on("c"))), edited{Plug: []string{n1 + " from s1"}, Unplug: []string{n1 + ".a", n1 + ".b"}, Free: []string{n1 + ".a 10.30.0.2", n1 + ".b 10.30.0.2"}, Drop: []string{n1 + ".a", n1 + ".b"}}},
		"another interface": {having(t, nad("n1", on("a"))).names(nad("n1", on("b"))), edited{}},
		"two others":        {having(t, nad("n1", on("a"))).names(nad("n1", on("b")), nad("n1", on("c"))), edited{Plug: []string{n1 + ".b from s1", n1 + ".c from s1"}, Unplug: []string{n1}, Free: []string{n1 + " 10.30.0.2"}, Drop: []string{n1}}},
		"unnamed, one more": {having(t, nad("n1"), nad("n1")).names(nad("n1"), nad("n1"), nad("n1")), edited{Plug: []string{n1 + ".net3 from s1"}}},
		"asks by its own key": {having(t, nad("n1", on("a"))).with("n1.default.kubernetes.io/ip_address.a", "10.30.0.9").names(nad("n1", on("a")), nad("n2")),
			edited{Plug: []string{n2 + " from s2"}}},
		"nobody knows what was": {having(t, nad("n1", on("a"))).then(func(r *running) { r.pod.Plugged = nil }).names(nad("n1", on("a")), nad("n1", on("b"))), edited{Plug: []string{n1 + ".b from s1"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}

func TestSettled(t *testing.T) {
	given := annotated(ClaimKey, claimA, ip, "10.16.0.9", "ovn.kubernetes.io/cidr", "10.16.0.0/16")
	more := given.with(n1IP, "10.30.0.9", n1+".kubernetes.io/cidr", "10.30.0.0/24")
	cases := map[string]struct {
		pod  Pod
		want bool
	}{
		"no attachment":              {given, true},
		"as it was":                  {more.with(NetworksKey, " n1", PluggedKey, "n1"), true},
		"edited":                     {more.with(NetworksKey, "n1,n2", PluggedKey, "n1"), false},
		"plugged for the first time": {given.with(NetworksKey, "n1"), false},
		"all unplugged":              {more.with(PluggedKey, "n1"), false},
		"emptied":                    {more.with(NetworksKey, "", PluggedKey, "n1"), false},
		"not known, and none named":  {more, false},
		"default network replaced":   {annotated(DefaultNetworkKey, "n1", n1IP, "10.30.0.9", n1+".kubernetes.io/cidr", "10.30.0.0/24"), true},
		"replaced, and more":         {more.with(DefaultNetworkKey, "n1"), false},
		"secondary, unplugged":       {annotated(n1IP, "10.30.0.9", n1+".kubernetes.io/cidr", "10.30.0.0/24"), false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Settled(c.pod.Annotations); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// Exactly the keys of the network go: what an interface of its name was asked with, and all others, stay.
func TestReplanDropsItsOwnKeys(t *testing.T) {
	r := having(t, nad("prefix"), nad("n1", onInterface("a")), nad("n1", onInterface("b"))).with(StatusKey, "[]",
		"n1.default.kubernetes.io/allocated", "true", "n1.default.kubernetes.io/ingress_rate", "3", "n1.default.kubernetes.io/ip_address.b", "10.30.0.2").
		names(nad("n1", onInterface("a")), nad("n1", onInterface("b")))
	e, errs := Replan(r.pod, Having{Leases: r.leases, Running: true}, r.ns, r.cat, r.cfg)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	want := []string{"n1.default.kubernetes.io/allocated", "n1.default.kubernetes.io/cidr", "n1.default.kubernetes.io/gateway",
		"n1.default.kubernetes.io/ingress_rate", "n1.default.kubernetes.io/ip_address"}
	if d := cmp.Diff(want, e.Drop); d != "" {
		t.Error(d)
	}
}
