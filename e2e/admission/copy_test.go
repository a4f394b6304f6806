//go:build e2e

package admission

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/pkg/network"
)

// dump is a stored pod as a backup has it: all annotations and finalizers, and not what the API server would refuse.
func dump(p *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: p.Labels, Annotations: maps.Clone(p.Annotations), Finalizers: p.Finalizers},
		Spec: podSpec()}
}

// B57: a pod is dumped and deleted, another has its address, and the dump comes back, here and elsewhere.
func TestCopiedManifest(t *testing.T) {
	w := start(t)
	const ns, far = "copied", "copied-far"
	w.enter(t, space{name: ns, cidr: "10.216.0.0/24"})
	w.enter(t, space{name: far, cidr: "10.217.0.0/24"})
	asking := func(a string) map[string]string {
		return map[string]string{network.Key(network.DefaultProvider, network.SuffixAddress): a}
	}
	w.create(t, ns, pod("free", nil))
	free := w.bound(t, ns, "free")
	w.create(t, ns, pod("static", asking("10.216.0.77")))
	static := w.bound(t, ns, "static")

	t.Run("beside the living pod", func(t *testing.T) {
		twin := dump(free)
		twin.Name = "twin"
		got := w.create(t, ns, twin)
		distinct(t, []*corev1.Pod{free, got})
		held := dump(static)
		held.Name = "held"
		if p, err := w.Client().CoreV1().Pods(ns).Create(t.Context(), held, metav1.CreateOptions{}); err == nil {
			t.Errorf("a copy of a request for a held address was admitted with %s", address(p))
		}
		w.accounts(t)
		w.kill(t, ns, "twin")
	})
	for _, p := range []*corev1.Pod{free, static} {
		w.kill(t, ns, p.Name)
	}
	w.accounts(t)
	taker := w.create(t, ns, pod("taker", asking(address(free))))
	t.Run("its address is another's", func(t *testing.T) {
		got := w.create(t, ns, dump(free))
		distinct(t, []*corev1.Pod{taker, got})
		if claim := got.Annotations[network.ClaimKey]; claim == free.Annotations[network.ClaimKey] {
			t.Error("the copy has the claim of the pod that is gone")
		}
		if got.Annotations[network.RequestedKey] != "" {
			t.Errorf("our own answer was taken for a request: %v", got.Annotations)
		}
		w.accounts(t)
	})
	t.Run("what was asked for is asked for again", func(t *testing.T) {
		if got := w.create(t, ns, dump(static)); address(got) != "10.216.0.77" {
			t.Errorf("got %s", address(got))
		}
		w.accounts(t)
	})
	t.Run("in a namespace of another subnet", func(t *testing.T) {
		got := w.create(t, far, dump(free))
		if s := got.Annotations[network.Key(network.DefaultProvider, network.SuffixSubnet)]; s != far {
			t.Errorf("the copy is in subnet %s with %s", s, address(got))
		}
		if p, err := w.Client().CoreV1().Pods(far).Create(t.Context(), dump(static), metav1.CreateOptions{}); err == nil {
			t.Errorf("a request for an address of elsewhere was admitted with %s", address(p))
		}
		w.accounts(t)
	})
	w.clear(t, ns, far)
}

// B51: a pod without annotations and one whose annotations others own keep what they have, and get ours.
func TestB51Annotations(t *testing.T) {
	w := start(t)
	const ns = "patched"
	w.enter(t, space{name: ns, cidr: "10.218.0.0/24", labels: map[string]string{otherLabel: "yes"}})
	w.other.do(t, ns, annotating("other.example/a_b", "theirs"))
	for name, have := range map[string]map[string]string{
		"none": nil, "empty": {}, "escaped": {"user.example/x": "1", "y": "2"},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.create(t, ns, pod(name, have))
			for k, v := range have {
				if got.Annotations[k] != v {
					t.Errorf("%s is %q, want %q", k, got.Annotations[k], v)
				}
			}
			stored := w.bound(t, ns, name)
			if stored.Annotations["other.example/a_b"] != "theirs" {
				t.Errorf("the other webhook's annotation is gone: %v", stored.Annotations)
			}
		})
	}
	w.accounts(t)
	w.clear(t, ns)
}
