package worker

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

func labelledApp(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{"app": value} }
}

// parents waits until exactly these ports may take the Vip's address; an empty text: there is no virtual port.
func (w *world) parents(vip, want string) {
	w.t.Helper()
	w.until("the parents of "+vip, func() error {
		if p, ok := w.nb.Port(vip); p.Options[nb.OptionVirtualParents] != want || ok != (want != "") {
			return fmt.Errorf("port %v: %+v, want the parents %q", ok, p, want)
		}
		return nil
	})
}

// Who may take a Vip's address follows the labels of pods that run, the Vip's selector, and the Vip.
func TestVipParentsFollowTheSelector(t *testing.T) {
	w := newWorld(t, worldOptions{})
	names := annotated(network.Key(network.DefaultProvider, network.SuffixAaps), "v")
	for pod, app := range map[string]string{"a": "web", "b": "db"} {
		w.must(w.client.Create(w.ctx, podNamed(""+pod, onNode, labelledApp(app))))
		w.wired("" + pod)
	}
	selected := func(selector ...string) {
		t.Helper()
		var v kubeovnv1.Vip
		w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "v"}, &v))
		old := v.DeepCopy()
		v.Spec.Selector = selector
		w.must(w.client.Patch(w.ctx, &v, client.MergeFrom(old)))
	}
	w.change("a", names) // before there is such a Vip
	w.change("b", names)
	w.must(w.client.Create(w.ctx, vipOf("v", func(s *kubeovnv1.VipSpec) { s.V4IP, s.Selector = "10.16.0.52", []string{"app: web"} })))
	w.parents("v", "a.app")
	w.served("v", func(v kubeovnv1.Vip) bool { return len(v.Status.Selector) == 1 })
	w.change("b", labelledApp("web"))
	w.parents("v", "a.app,b.app")
	w.change("a", labelledApp("db"))
	w.parents("v", "b.app")
	selected("app:db")
	w.parents("v", "a.app")
	selected()
	w.parents("v", "a.app,b.app")
	w.served("v", func(v kubeovnv1.Vip) bool { return len(v.Status.Selector) == 0 })
	selected("app:none")
	w.parents("v", "")
	selected("app:db")
	w.parents("v", "a.app")
	v := w.served("v", func(kubeovnv1.Vip) bool { return true })
	w.must(w.client.Delete(w.ctx, &v))
	w.until("no port may take what is gone", func() error {
		if p, _ := w.nb.Port("a.app"); p.ExternalIDs[nb.KeyVips] != "" {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
}
