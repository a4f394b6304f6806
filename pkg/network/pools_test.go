package network

import (
	"testing"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

const poolKey = "ovn.kubernetes.io/ip_pool"

// A StatefulSet's pod takes the entry of its ordinal, counted from the set's first.
func TestB20ListByOrdinal(t *testing.T) {
	const two, three, pairs, pair = "10.16.0.5,10.16.0.6", "10.16.0.5;10.16.0.6;10.16.0.7", "10.17.0.5,fd00:17::5;10.17.0.6,fd00:17::6", "10.17.0.5,fd00:17::5"
	starting := func(start int, p Pod) Pod {
		p.OrdinalStart = start
		return p
	}
	entry := func(subnet, asks string) result {
		return result{Networks: []string{"ovn from " + subnet + ", asks " + asks}}
	}
	dual := func(set, pod, list string) Pod { return member(set, pod, poolKey, list, ls, "dual") }
	requested := `{"ovn":{"logical_switch":"dual"}}`
	withRequested := func(r result) result {
		r.Requested = requested
		return r
	}
	cases := map[string]struct {
		pod  Pod
		want result
	}{
		"(a) first":                 {member("web", "web-0", poolKey, two), entry("ovn-default", "10.16.0.5")},
		"(a) last":                  {member("web", "web-1", poolKey, two), entry("ovn-default", "10.16.0.6")},
		"(a) beyond":                {member("web", "web-2", poolKey, two), result{Errors: []string{"the list has 2 entries, and the pod of ordinal 2 of StatefulSet web (first ordinal 0) needs entry 2"}}},
		"(b) first":                 {starting(10, member("web", "web-10", poolKey, three)), entry("ovn-default", "10.16.0.5")},
		"(b) last":                  {starting(10, member("web", "web-12", poolKey, three)), entry("ovn-default", "10.16.0.7")},
		"(b) beyond":                {starting(10, member("web", "web-13", poolKey, three)), result{Errors: []string{"the list has 3 entries, and the pod of ordinal 13 of StatefulSet web (first ordinal 10) needs entry 3"}}},
		"(b) before":                {starting(10, member("web", "web-9", poolKey, three)), result{Errors: []string{"needs entry -1"}}},
		"(b) Kube-OVN's rule":       {starting(1, member("web", "web-1", poolKey, three, OrdinalRuleKey, OrdinalRuleKubeOVN)), entry("ovn-default", "10.16.0.6")},
		"(b) Kube-OVN's, beyond":    {starting(10, member("web", "web-10", poolKey, three, OrdinalRuleKey, OrdinalRuleKubeOVN)), result{Errors: []string{"(first ordinal 0) needs entry 10"}}},
		"(c) first pair":            {dual("web", "web-0", pairs), withRequested(entry("dual", "10.17.0.5,fd00:17::5"))},
		"(c) second pair":           {dual("web", "web-1", pairs), withRequested(entry("dual", "10.17.0.6,fd00:17::6"))},
		"(c) v6 first":              {dual("web", "web-1", "fd00:17::5,10.17.0.5;fd00:17::6,10.17.0.6"), withRequested(entry("dual", "10.17.0.6,fd00:17::6"))},
		"(c) beyond":                {dual("web", "web-2", pairs), result{Errors: []string{"the list has 2 entries"}}},
		"(d) one pair":              {dual("web", "web-0", pair), withRequested(entry("dual", "10.17.0.5,fd00:17::5"))},
		"(d) one pair, second":      {dual("web", "web-1", pair), result{Errors: []string{"the list has 1 entries"}}},
		"one address":               {member("web", "web-0", poolKey, "10.16.0.5"), entry("ovn-default", "10.16.0.5")},
		"no ordinal, any entry":     {member("web", "web-x", poolKey, two), entry("ovn-default", "10.16.0.5;10.16.0.6")},
		"no set, any entry":         {annotated(poolKey, three), entry("ovn-default", "10.16.0.5;10.16.0.6;10.16.0.7")},
		"another group, any entry":  {controlled(member("web", "web-1", poolKey, two), "example.com/v1", "StatefulSet", "web"), entry("ovn-default", "10.16.0.5;10.16.0.6")},
		"an unused entry elsewhere": {member("web", "web-0", poolKey, "10.16.0.5,10.99.0.6"), entry("ovn-default", "10.16.0.5")},
		"its entry elsewhere":       {member("web", "web-1", poolKey, "10.16.0.5;10.99.0.6"), result{Errors: []string{poolKey + `]: Invalid value: "10.99.0.6"`}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { usually(c.pod).check(t, c.want) })
	}
}

func TestNeedsOrdinalStart(t *testing.T) {
	cases := map[string]struct {
		pod  Pod
		want bool
	}{
		"list":            {member("web", "web-0", poolKey, "10.0.0.1;10.0.0.2"), true},
		"attachment's":    {member("web", "web-0", "n1.default.ovn.kubernetes.io/ip_pool", "fd00::1"), true},
		"pool's name":     {member("web", "web-0", poolKey, "p"), false},
		"no list":         {member("web", "web-0"), false},
		"no set":          {annotated(poolKey, "10.0.0.1;10.0.0.2"), false},
		"Kube-OVN's rule": {member("web", "web-0", poolKey, "10.0.0.1;10.0.0.2", OrdinalRuleKey, OrdinalRuleKubeOVN), false},
	}
	for name, c := range cases {
		if got := NeedsOrdinalStart(c.pod); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The list that is refused as one address is taken as a list.
func TestB11TheSameAsList(t *testing.T) {
	usually(annotated(poolKey, "10.16.0.9,10.16.0.10")).check(t, result{Networks: []string{"ovn from ovn-default, asks 10.16.0.9;10.16.0.10"}})
	usually(annotated(poolKey, "fd00:17::1a,fd00:17::1b", ls, "dual")).check(t, result{Networks: []string{"ovn from dual, asks fd00:17::1a;fd00:17::1b"}, Requested: `{"ovn":{"logical_switch":"dual"}}`})
	usually(annotated(poolKey, "10.17.0.5,fd00:17::5", ls, "dual")).check(t, result{Networks: []string{"ovn from dual, asks 10.17.0.5,fd00:17::5"}, Requested: `{"ovn":{"logical_switch":"dual"}}`})
	usually(annotated(poolKey, "10.16.0.9", ip, "10.16.0.10")).check(t, result{Networks: []string{"ovn from ovn-default, asks 10.16.0.10"}, Requested: `{"ovn":{"ip_address":"10.16.0.10"}}`,
		Warnings: []string{`ip_pool="10.16.0.9" was ignored`}})
}

// pooled is a pod of namespace red, which has the subnet red, in a catalog with pools.
func pooled(p Pod, pools ...*kubeovnv1.IPPool) world {
	w := usually(p)
	w.ns.Name, w.pod.Namespace = "red", "red"
	for _, name := range []string{"broken", "lost"} {
		delete(w.cat.Subnets, name)
	}
	w.cat = withPools(w.cat, pools...)
	return w
}

// A namespace's pools follow one another, and those of other subnets don't count.
func TestB22NamespacePools(t *testing.T) {
	p1, p2 := pool(1, "p1", "red", "red", "10.18.0.8"), pool(2, "p2", "red", "red", "10.18.0.16/28")
	cases := map[string]struct {
		world
		want result
	}{
		"from one to the next":      {pooled(annotated(), p1, p2), result{Networks: []string{"ovn from red/p1 red/p2"}}},
		"oldest first":              {pooled(annotated(), pool(9, "p1", "red", "red", "10.18.0.8"), p2), result{Networks: []string{"ovn from red/p2 red/p1"}}},
		"another subnet is chosen":  {pooled(annotated(ls, "ovn-default"), p1, p2), result{Networks: []string{"ovn from ovn-default"}, Requested: `{"ovn":{"logical_switch":"ovn-default"}}`}},
		"pool of another subnet":    {pooled(annotated(), pool(1, "far", "dual", "red", "10.17.0.8")), result{Networks: []string{"ovn from red"}}},
		"another namespace's":       {pooled(annotated(), pool(1, "p", "red", "blue", "10.18.0.8")), result{Networks: []string{"ovn from red"}}},
		"nobody's":                  {pooled(annotated(), pool(1, "p", "red", "", "10.18.0.8")), result{Networks: []string{"ovn from red"}}},
		"being deleted":             {pooled(annotated(), dying(pool(1, "p", "red", "red", "10.18.0.8")), p2), result{Networks: []string{"ovn from red/p2"}}},
		"unreadable, and another":   {pooled(annotated(), pool(1, "p", "red", "red", "x"), p2), result{Networks: []string{"ovn from red/p red/p2"}, Warnings: []string{`IPPool p: spec.ips: "x" is neither`}}},
		"unreadable, no free space": {pooled(annotated(), pool(1, "p", "red", "red", "x")), result{Networks: []string{"ovn from red/p"}, Warnings: []string{`IPPool p: spec.ips: "x" is neither`}}},
		"static address":            {pooled(annotated(ip, "10.18.0.9"), p1, p2), result{Networks: []string{"ovn from red, asks 10.18.0.9"}, Requested: `{"ovn":{"ip_address":"10.18.0.9"}}`}},
		"pool named":                {pooled(annotated(poolKey, "p2"), p1, p2), result{Networks: []string{"ovn from red/p2"}}},
		"pool of another subnet named": {pooled(annotated(poolKey, "far"), p1, pool(3, "far", "ovn-default", "", "10.16.0.8")), result{
			Networks: []string{"ovn from ovn-default/far"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}

func TestPoolNamed(t *testing.T) {
	p := pool(1, "p", "red", "", "10.18.0.8..10.18.0.12")
	at := "metadata.annotations[" + poolKey + "]"
	cases := map[string]struct {
		world
		errors []string
	}{
		"missing":           {pooled(annotated(poolKey, "nope"), p), []string{at + `: Invalid value: "nope": there is no IPPool`}},
		"being deleted":     {pooled(annotated(poolKey, "p"), dying(pool(1, "p", "red", "", "10.18.0.8"))), []string{`IPPool "p" is being deleted`}},
		"and other subnet":  {pooled(annotated(poolKey, "p", ls, "dual"), p), []string{`IPPool "p" is in subnet red, and dual is asked for`}},
		"subnet gone":       {pooled(annotated(poolKey, "p"), pool(1, "p", "gone", "", "10.18.0.8")), []string{at + `: Invalid value: "p": subnet "gone" does not exist`}},
		"family it has not": {pooled(annotated(poolKey, "p", fam, "ipv6"), p), []string{fam + "]"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, result{Errors: c.errors}) })
	}
	pooled(annotated(poolKey, "p", ls, "red"), p).check(t, result{Networks: []string{"ovn from red/p"}, Requested: `{"ovn":{"logical_switch":"red"}}`})
}

// What is listed is never replaced by an address of the family that is asked for.
func TestListOfTheOtherFamily(t *testing.T) {
	const pairs = "10.17.0.5,fd00:17::5;10.17.0.6,fd00:17::6"
	asks := `{"ovn":{"logical_switch":"dual"}}`
	usually(annotated(poolKey, pairs, fam, "ipv6", ls, "dual")).check(t, result{Networks: []string{"ovn from dual, asks 10.17.0.5,fd00:17::5;10.17.0.6,fd00:17::6, only IPv6"}, Requested: asks})
	usually(annotated(poolKey, "10.17.0.5;10.17.0.6", fam, "ipv6", ls, "dual")).check(t, result{Errors: []string{
		"metadata.annotations[" + fam + `]: Invalid value: "ipv6": ` + poolKey + " asks for 10.17.0.5, of the other family"}})
}
