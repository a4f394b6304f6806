package worker

import (
	"errors"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/topology"
)

// present tells whether an object exists.
func (w *world) present(obj client.Object, name string) bool {
	w.t.Helper()
	err := w.client.Get(w.ctx, client.ObjectKey{Name: name}, obj)
	if !apierrors.IsNotFound(err) {
		w.must(err)
	}
	return err == nil
}

// TestClusterBeginsWithItsNetworks has a leader make what is absent, once, and leave alone what there is.
func TestClusterBeginsWithItsNetworks(t *testing.T) {
	var refused atomic.Int64
	w := newWorld(t, worldOptions{intercept: func(r memkube.Request) memkube.Fault {
		if r.Verb == "create" && r.Resource == "vpcs" && refused.Add(1) == 1 {
			return memkube.Fault{Err: errors.New("not now")}
		}
		return memkube.Fault{}
	}})
	w.must(w.worker.makeAll(w.ctx, topology.Networks{NodeCIDR: "100.64.0.0/16", PodCIDR: "10.99.0.0/16"})) // the default subnet s has another one
	if refused.Load() < 2 {
		t.Error("the Vpc was not tried again")
	}
	if got := w.subnet("join").Spec; got.CIDRBlock != "100.64.0.0/16" || got.Gateway != "100.64.0.1" || got.Vpc != "ovn-cluster" || got.Protocol != "IPv4" {
		t.Errorf("join is %+v", got)
	}
	if got := w.subnet("s").Spec; got.CIDRBlock != "10.16.0.0/24" || got.Default {
		t.Errorf("the default subnet is %+v", got)
	}
	if !w.present(&kubeovnv1.Vpc{}, "ovn-cluster") {
		t.Error("there is no Vpc")
	}
	w.announced("n1")
}

// TestWhatIsBeingDeletedIsNotMadeAgain has a leader begin while somebody deletes an object: it neither keeps it nor waits to
// make another.
func TestWhatIsBeingDeletedIsNotMadeAgain(t *testing.T) {
	w := newWorld(t, worldOptions{})
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "join", Finalizers: []string{"example.com/hold"}}, Spec: joinSpec()}
	w.must(w.client.Create(w.ctx, s))
	w.must(w.client.Delete(w.ctx, s))
	w.must(w.worker.makeAll(w.ctx, topology.Networks{NodeCIDR: "100.64.0.0/16"}))
	if got := w.subnet("join"); got.UID != s.UID || got.DeletionTimestamp == nil {
		t.Errorf("join %s is not %s, which is being deleted", got.UID, s.UID)
	}
}
