package worker

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// Kube-OVN's other controllers learn of a pod by what changes on it: policies by the update in which `allocated` appears,
// when port, address and record have to be there, and by its deletion, when they have to be gone.
func TestWhatWakesOtherControllers(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.stop() // the topology is there, and Kube-OVN's from now on
	w.start(worldOptions{change: func(o *Options) { o.Topology = External }})
	types, err := Scheme()
	w.must(err)
	c, err := client.NewWithWatch(w.kube.Config(), client.Options{Scheme: types})
	w.must(err)
	events, err := c.Watch(w.ctx, &corev1.PodList{}, client.InNamespace("app"))
	w.must(err)
	defer events.Stop()
	p := w.admit(podNamed("a", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }))
	w.must(w.client.SubResource("binding").Create(w.ctx, p, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}))
	w.wired("a")
	w.end("a")
	recorded := func() bool {
		err := w.client.Get(w.ctx, client.ObjectKey{Name: "a.app"}, &kubeovnv1.IP{})
		w.must(client.IgnoreNotFound(err))
		return err == nil
	}
	allocated, bound, updates := "", false, 0
	for e := range events.ResultChan() {
		_, wired := w.nb.Port("a.app")
		pod, ok := e.Object.(*corev1.Pod)
		switch {
		case !ok || e.Type == watch.Error:
			t.Fatalf("%s: %v", e.Type, e.Object)
		case pod.Labels["app"] != "web" || pod.Annotations["ovn.kubernetes.io/ip_address"] == "":
			t.Errorf("%s of a pod with labels %v, annotations %v", e.Type, pod.Labels, pod.Annotations)
		case e.Type == watch.Deleted:
			if wired || recorded() {
				t.Error("deleted, and its port or record is there")
			}
			if updates != 1 {
				t.Errorf("`allocated` appeared %d times", updates)
			}
			w.clean()
			return
		}
		now := pod.Annotations[allocatedKey]
		if now != allocated {
			updates++
			if now != "true" || pod.Annotations[routedKey] != "true" || pod.Spec.NodeName != "n1" || !bound {
				t.Errorf("`allocated` went from %q to %q with %v on node %q", allocated, now, pod.Annotations, pod.Spec.NodeName)
			}
		}
		allocated, bound = now, pod.Spec.NodeName != ""
	}
	t.Error("the watch ended before the pod")
}
