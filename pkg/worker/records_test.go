package worker

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// A pod's own mark brings the worker back to it, maybe before the cache has the record that was just made: it is not made
// again. What was made for another pod of the name, or differently, counts for nothing.
func TestRecordIsMadeOnce(t *testing.T) {
	w := newWorld(t, worldOptions{})
	resume := w.kube.PauseWatch("ips")
	w.admit(podNamed("a", onNode))
	w.wired("a")
	for n := range 3 {
		w.change("a", func(p *corev1.Pod) { p.Labels = map[string]string{"n": fmt.Sprint(n)} })
		p, err := w.get("a")
		w.must(err)
		w.seen(p)
		w.look("a")
	}
	if n := w.kube.Requests(); n["create ips"] != 1 || n["patch ips"] > 0 {
		t.Errorf("%d creations and %d patches of one record", n["create ips"], n["patch ips"])
	}
	resume()
	key := client.ObjectKey{Name: "a.app"}
	var ip kubeovnv1.IP
	w.must(w.client.Get(w.ctx, key, &ip))
	w.seen(&ip)
	w.end("a")
	w.gone("a")
	w.admit(podNamed("a", onNode))
	second := w.wired("a")
	w.must(w.client.Get(w.ctx, key, &ip))
	if ip.Annotations[annotationUID] != string(second.UID) {
		t.Errorf("the record is of %s, and the pod is %s", ip.Annotations[annotationUID], second.UID)
	}
}

// What is remembered of a record ends with it, or soon.
func TestMemoryOfRecords(t *testing.T) {
	w := newWorld(t, worldOptions{})
	x := w.worker
	of := func(name, uid string) *kubeovnv1.IP {
		return &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotationUID: uid}}}
	}
	x.noteRecord(of("a.app", "1"))
	x.noteRecord(of("b.app", "1"))
	if !x.justRecorded(of("a.app", "1")) || x.justRecorded(of("a.app", "2")) || x.justRecorded(of("c.app", "1")) {
		t.Error("the memory is not of what was made")
	}
	w.must(x.dropRecord(w.ctx, of("a.app", "1")))
	if x.justRecorded(of("a.app", "1")) {
		t.Error("a record that was dropped is remembered")
	}
	x.mu.Lock()
	old := x.recorded["b.app"]
	old.at = old.at.Add(-2 * recordSeen)
	x.recorded["b.app"] = old
	x.mu.Unlock()
	if x.justRecorded(of("b.app", "1")) {
		t.Error("an old one counts")
	}
	w.until("the sweep forgets it", func() error {
		x.mu.Lock()
		defer x.mu.Unlock()
		if len(x.recorded) > 0 {
			return fmt.Errorf("%d are remembered", len(x.recorded))
		}
		return nil
	})
}
