package catalog

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-net/berth/pkg/network"
)

func TestReadNetworks(t *testing.T) {
	sel := func(namespace, name, ifName string) network.Selection {
		return network.Selection{Namespace: namespace, Name: name, Interface: ifName}
	}
	cases := map[string]struct {
		text string
		want []network.Selection
		err  string
	}{
		"none":               {"", nil, ""},
		"blank":              {" ", nil, ""},
		"name":               {"n1", []network.Selection{sel("default", "n1", "")}, ""},
		"namespace":          {"other/n1", []network.Selection{sel("other", "n1", "")}, ""},
		"interface":          {"other/n1@net7", []network.Selection{sel("other", "n1", "net7")}, ""},
		"several":            {" n1 , other/n2@eth1", []network.Selection{sel("default", "n1", ""), sel("other", "n2", "eth1")}, ""},
		"twice":              {"n1,n1", []network.Selection{sel("default", "n1", ""), sel("default", "n1", "")}, ""},
		"JSON":               {`[{"name":"n1"},{"name":"n2","namespace":"other","interface":"eth1"}]`, []network.Selection{sel("default", "n1", ""), sel("other", "n2", "eth1")}, ""},
		"JSON, asking":       {`[{"name":"n1","ips":["10.0.0.5/24","fd00::5"],"mac":"02:00:00:00:00:01"}]`, []network.Selection{{Namespace: "default", Name: "n1", IPs: []string{"10.0.0.5", "fd00::5"}, MAC: "02:00:00:00:00:01"}}, ""},
		"JSON, bad address":  {`[{"name":"n1","ips":["x"]}]`, []network.Selection{{Namespace: "default", Name: "n1", IPs: []string{"x"}}}, ""},
		"JSON, cut":          {`[{`, nil, "write <namespace>/<name>@<interface>"},
		"JSON, no name":      {`[{"namespace":"other"}]`, nil, "name"},
		"65 names":           {strings.Repeat("n,", 64) + "n", nil, "it names 65 networks: a pod can have at most 64"},
		"JSON, 65 elements":  {"[" + strings.Repeat(`{"name":"n"},`, 64) + `{"name":"n"}]`, nil, "at most 64"},
		"JSON, null":         {`[null]`, nil, "has an element without name"},
		"three parts":        {"a/b/c", nil, "write <namespace>/<name>@<interface>"},
		"two interfaces":     {"n1@a@b", nil, "write <namespace>/<name>@<interface>"},
		"letters":            {"N1_", nil, "write <namespace>/<name>@<interface>"},
		"JSON, path":         {`[{"name":"a/b"}]`, nil, "is not the name of a NetworkAttachmentDefinition"},
		"JSON, other's path": {`[{"name":"a","namespace":".."}]`, nil, "is not the name of a NetworkAttachmentDefinition"},
		"JSON, interface":    {`[{"name":"a","interface":"eth0/1"}]`, nil, "is not the name of an interface"},
		"long interface":     {"n1@abcdefghijklmnop", nil, "is not the name of an interface"},
		"longest interface":  {"n1@abcdefghijklmno", []network.Selection{sel("default", "n1", "abcdefghijklmno")}, ""},
		"empty between":      {"n1,,n2", nil, "an element has no name"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := readNetworks(pod(network.NetworksKey, c.text))
			if d := cmp.Diff(c.want, got.Networks); d != "" {
				t.Error(d)
			}
			if (got.NetworksErr != nil) != (c.err != "") || c.err != "" && !strings.Contains(got.NetworksErr.Error(), c.err) {
				t.Errorf("error %v, want %q", got.NetworksErr, c.err)
			}
		})
	}
}

func TestReadDefaultNetwork(t *testing.T) {
	cases := map[string]struct {
		text string
		want *network.Selection
		err  bool
	}{
		"none":    {"", nil, false},
		"name":    {"n1", &network.Selection{Namespace: "default", Name: "n1"}, false},
		"other's": {"other/n1", &network.Selection{Namespace: "other", Name: "n1"}, false},
		"JSON":    {`[{"name":"n1","ips":["10.0.0.5"]}]`, &network.Selection{Namespace: "default", Name: "n1", IPs: []string{"10.0.0.5"}}, false},
		"two":     {"n1,n2", nil, true},
		"garbage": {"[{", nil, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := readNetworks(pod(network.DefaultNetworkKey, c.text))
			if d := cmp.Diff(c.want, got.DefaultNetwork); d != "" || (got.NetworksErr != nil) != c.err {
				t.Error(d, got.NetworksErr)
			}
		})
	}
	both := readNetworks(pod(network.NetworksKey, "[{", network.DefaultNetworkKey, "a,b"))
	if both.NetworksErr == nil || strings.Contains(both.NetworksErr.Error(), network.DefaultNetworkKey) {
		t.Errorf("the first error was lost: %v", both.NetworksErr)
	}
}

func TestReadAttachment(t *testing.T) {
	cases := map[string]struct {
		config string
		want   network.Attachment
		err    string
	}{
		"ours":                {`{"cniVersion":"0.3.0","type":"kube-ovn","provider":"n1.default.ovn"}`, network.Attachment{Provider: "n1.default.ovn"}, ""},
		"the default network": {`{"type":"kube-ovn"}`, network.Attachment{Provider: "ovn"}, ""},
		"in a list":           {`{"plugins":[{"type":"kube-ovn","provider":"n1.default.ovn"},{"type":"portmap"}]}`, network.Attachment{Provider: "n1.default.ovn"}, ""},
		"second of a list":    {`{"plugins":[{"type":"tuning"},{"type":"kube-ovn","provider":"n1.default.ovn"}]}`, network.Attachment{Provider: "n1.default.ovn"}, ""},
		"address alone":       {`{"type":"macvlan","ipam":{"type":"kube-ovn","provider":"mv.default"}}`, network.Attachment{Provider: "mv.default", IPAMOnly: true}, ""},
		"address, in a list":  {`{"plugins":[{"type":"macvlan","ipam":{"type":"kube-ovn","provider":"mv.default"}}]}`, network.Attachment{Provider: "mv.default", IPAMOnly: true}, ""},
		"address for nobody":  {`{"type":"macvlan","ipam":{"type":"kube-ovn"}}`, network.Attachment{}, "ipam.provider is empty"},
		"foreign":             {`{"type":"macvlan","ipam":{"type":"whereabouts"}}`, network.Attachment{}, ""},
		"empty":               {"", network.Attachment{}, ""},
		"blank":               {" \n", network.Attachment{}, ""},
		"cut":                 {`{"type":`, network.Attachment{}, "spec.config"},
		"no object":           {`[]`, network.Attachment{}, "spec.config"},
		"wrong type":          {`{"type":7}`, network.Attachment{}, "spec.config"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := readAttachment(c.config)
			if d := cmp.Diff(c.want, got, cmpopts.IgnoreFields(network.Attachment{}, "Err")); d != "" {
				t.Error(d)
			}
			if (got.Err != nil) != (c.err != "") || c.err != "" && !strings.Contains(got.Err.Error(), c.err) {
				t.Errorf("error %v, want %q", got.Err, c.err)
			}
		})
	}
}

// From the annotations to the plan: what is written is what is served.
func TestB111FromAnnotationToPlan(t *testing.T) {
	const ours, alone = `{"type":"kube-ovn","provider":"n1.default.ovn"}`, `{"type":"macvlan","ipam":{"type":"kube-ovn","provider":"mv.default"}}`
	live := cluster(t, attachment("default", "n1", ours), attachment("default", "mv", alone), attachment("default", "foreign", `{"type":"macvlan"}`),
		attachment("default", "file", ""), attachment("default", "bad", "{"), namespace("default"), subnet("ovn-default", "10.16.0.0/16"),
		subnet("s1", "10.30.0.0/24", serving("n1.default.ovn")), subnet("mv", "10.32.0.0/24", serving("mv.default")))
	c := New(Options{Cache: live, Live: live})
	cases := map[string]struct {
		pod  network.Pod
		want []string
		err  string
	}{
		"twice, named": {pod(network.NetworksKey, "n1@net1,default/n1@net2", "n1.default.kubernetes.io/ip_address.net2", "10.30.0.9"), []string{"ovn ", "n1.default.ovn.net1 ", "n1.default.ovn.net2 10.30.0.9"}, ""},
		"twice":        {pod(network.NetworksKey, "n1,n1"), []string{"ovn ", "n1.default.ovn ", "n1.default.ovn.net2 "}, ""},
		"JSON":         {pod(network.NetworksKey, `[{"name":"n1","ips":["10.30.0.9/24"]},{"name":"mv"}]`), []string{"ovn ", "n1.default.ovn 10.30.0.9", "mv.default "}, ""},
		"foreign":      {pod(network.NetworksKey, "foreign,file"), []string{"ovn "}, ""},
		"replaced":     {pod(network.DefaultNetworkKey, "default/n1"), []string{"n1.default.ovn "}, ""},
		"missing":      {pod(network.NetworksKey, "gone"), nil, "there is no NetworkAttachmentDefinition gone"},
		"bad":          {pod(network.NetworksKey, "bad"), nil, "default/bad can't be read: spec.config"},
		"garbage":      {pod(network.NetworksKey, "[{"), nil, network.NetworksKey},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			view, err := c.For(t.Context(), k.pod)
			if err != nil {
				t.Fatal(err)
			}
			planned, errs := network.Plan(view.Pod, view.Namespace, view.Catalog, config())
			if k.err != "" {
				if len(errs) != 1 || !strings.Contains(errs[0].Error(), k.err) {
					t.Errorf("errors %v, want %q", errs, k.err)
				}
				return
			}
			var got []string
			for _, i := range planned.Interfaces {
				line := i.Provider + " "
				for _, a := range i.Choices {
					line += a[0].String()
				}
				got = append(got, line)
			}
			if d := cmp.Diff(k.want, got); d != "" || len(errs) > 0 {
				t.Error(d, errs)
			}
		})
	}
}

// What can't be read is our fault, and never taken for an attachment that is missing.
func TestFaultsAreNotMissing(t *testing.T) {
	broken := errors.New("timeout")
	cases := map[string]struct {
		fails func(client.Object) bool
		pod   network.Pod
		part  string
	}{
		"attachment": {func(o client.Object) bool { _, ok := o.(*netv1.NetworkAttachmentDefinition); return ok }, pod(network.NetworksKey, "n1"), "default/n1"},
		"namespace":  {func(o client.Object) bool { _, ok := o.(*corev1.Namespace); return ok }, pod(), "namespace default"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			live := interceptor.NewClient(cluster(t, namespace("default")), interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if c.fails(o) {
					return broken
				}
				return w.Get(ctx, key, o, opts...)
			}})
			_, err := New(Options{Cache: live, Live: live}).For(t.Context(), c.pod)
			if !errors.Is(err, broken) || !strings.Contains(err.Error(), c.part) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// FuzzReadNetworks: whatever the annotations say, each selection has a name, and errors say what to write.
func FuzzReadNetworks(f *testing.F) {
	for _, s := range []string{"", "n1,n1@net1", `[{"name":"n1","ips":["10.0.0.1/24"]}]`, "[{", "[null]", "a/b/c@d", `[{"name":"n1","ips":null,"mac":7}]`, `{"name":"x"}`} {
		f.Add(s, "")
		f.Add("n1", s)
	}
	f.Fuzz(func(t *testing.T, networks, replaced string) {
		p := readNetworks(pod(network.NetworksKey, networks, network.DefaultNetworkKey, replaced))
		all := p.Networks
		if p.DefaultNetwork != nil {
			all = append(all, *p.DefaultNetwork)
		}
		for _, s := range all {
			if s.Name == "" || s.Namespace == "" {
				t.Fatalf("%+v", s)
			}
		}
		if strings.TrimSpace(networks) != "" && p.NetworksErr == nil && p.Networks == nil {
			t.Fatalf("%q was lost", networks)
		}
		if strings.TrimSpace(replaced) != "" && p.NetworksErr == nil && p.DefaultNetwork == nil {
			t.Fatalf("%q was lost", replaced)
		}
	})
}

// FuzzReadAttachment: a configuration is one network's, nobody's, or an error.
func FuzzReadAttachment(f *testing.F) {
	for _, s := range []string{"", "{", `{"type":"kube-ovn","provider":"a"}`, `{"plugins":[{"type":"x","ipam":{"type":"kube-ovn","provider":"b"}}]}`, `{"plugins":[null,{}]}`, `null`, `{"ipam":{"type":"kube-ovn"}}`, `{"plugins":[{"plugins":[{"type":"kube-ovn"}]}]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, config string) {
		a := readAttachment(config)
		if a.Err != nil && (a.Provider != "" || a.IPAMOnly) || a.IPAMOnly && a.Provider == "" {
			t.Fatalf("%+v", a)
		}
		if a.Provider != "" && !strings.Contains(config, "kube-ovn") && !strings.Contains(config, `\u`) {
			t.Fatalf("%+v", a)
		}
	})
}
