//go:build e2e

package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// attachment makes a NetworkAttachmentDefinition with a subnet, and gives the provider of its networks.
func (w *world) attachment(t *testing.T, namespace, name, cidr string) string {
	t.Helper()
	provider := name + "." + namespace + ".ovn"
	err := w.objs.Create(t.Context(), &netv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: netv1.NetworkAttachmentDefinitionSpec{Config: `{"cniVersion":"1.0.0","type":"kube-ovn","provider":"` + provider + `"}`}})
	if err != nil {
		t.Fatal(err)
	}
	err = w.objs.Create(t.Context(), &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name},
		Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr, Provider: provider}})
	if err != nil {
		t.Fatal(err)
	}
	dry := true
	for _, r := range w.replicas {
		w.await(t, "replica "+r.name+" knows attachment "+name, func() bool {
			a, err := r.post(t.Context(), namespace, pod("probe", map[string]string{network.NetworksKey: name}), &dry)
			return err == nil && a.Allowed && strings.Contains(string(a.Patch), escape(network.Key(provider, network.SuffixAddress)))
		})
	}
	return provider
}

// B42, B43: a later webhook adds an attachment, so ours is called again: same claim and address, one more interface. When
// it puts another attachment in the place of the pod's, what was taken for that comes back.
func TestReinvocation(t *testing.T) {
	w := start(t)
	const ns = "again"
	w.enter(t, space{name: ns, cidr: "10.215.0.0/24", labels: map[string]string{otherLabel: "yes"}})
	red, blue := w.attachment(t, ns, "red", "10.215.1.0/24"), w.attachment(t, ns, "blue", "10.215.2.0/24")
	for name, tc := range map[string]struct {
		asks, adds string
		has, not   []string
	}{
		"adds one":     {"", "red", []string{red}, []string{blue}},
		"adds another": {"red", "red,blue", []string{red, blue}, nil},
		"replaces":     {"red", "blue", []string{blue}, []string{red}},
		"adds none":    {"blue", "blue", []string{blue}, []string{red}},
	} {
		t.Run(name, func(t *testing.T) {
			w.other.do(t, ns, annotating(network.NetworksKey, tc.adds))
			p := pod("one", nil)
			if tc.asks != "" {
				p.Annotations = map[string]string{network.NetworksKey: tc.asks}
			}
			kept := total(w.answered(t, "kept"))
			got := w.create(t, ns, p)
			again := 1
			if tc.asks == tc.adds {
				again = 0
			}
			if n := total(w.answered(t, "kept")) - kept; n != again {
				t.Errorf("ours was called again %d times, want %d: the case was not there", n, again)
			}
			addresses := map[string]bool{}
			for _, provider := range append([]string{network.DefaultProvider}, tc.has...) {
				a := got.Annotations[network.Key(provider, network.SuffixAddress)]
				if a == "" || addresses[a] {
					t.Errorf("network %s has address %q", provider, a)
				}
				addresses[a] = true
			}
			for _, provider := range tc.not {
				if a := got.Annotations[network.Key(provider, network.SuffixAddress)]; a != "" {
					t.Errorf("the pod still has %s of network %s, which it is not in", a, provider)
				}
			}
			w.accounts(t)
			if d := cmp.Diff(outputs(got), outputs(w.pod(t, ns, "one"))); d != "" {
				t.Errorf("the worker changed what admission gave (-given +now):\n%s", d)
			}
			w.clear(t, ns)
		})
	}
}

// outputs are the annotations that admission gives.
func outputs(p *corev1.Pod) map[string]string {
	out := map[string]string{}
	for k, v := range p.Annotations {
		if network.Output(k) && !network.Progress(k) {
			out[k] = v
		}
	}
	return out
}
