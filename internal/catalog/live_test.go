package catalog

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// What a lagging cache does not know yet, a live view does: the namespace in both.
func TestLiveViewKnowsWhatTheCacheLacks(t *testing.T) {
	lagging := cluster(t, subnet("old", "10.1.0.0/24"))
	live := cluster(t, subnet("old", "10.1.0.0/24"), subnet("new", "10.2.0.0/24"), namespace("default"))
	c := New(Options{Cache: lagging, Live: live})
	late, err := c.For(t.Context(), pod())
	if err != nil || late.Namespace.Labels["team"] != "default" {
		t.Fatalf("%+v, %v", late.Namespace, err)
	}
	now, err := c.ForLive(t.Context(), pod())
	if err != nil {
		t.Fatal(err)
	}
	if _, known := late.Catalog.Subnets["new"]; known || now.Catalog.Subnets["new"].Set == nil {
		t.Errorf("late: %v, live: %+v", known, now.Catalog.Subnets["new"])
	}
	if late.Catalog.Subnets["old"].Set != now.Catalog.Subnets["old"].Set {
		t.Error("a subnet that has not changed has another value")
	}
	if w, err := c.WorldLive(t.Context()); err != nil || w.Catalog.Subnets["new"].Set == nil || len(w.Namespaces) != 1 {
		t.Errorf("%+v, %v", w.Namespaces, err)
	}
}

// Many who ask at once share reads, and each gets one that began after it came.
func TestLiveReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int32
		hold := make(chan struct{})
		behind := cluster(t, namespace("default"))
		live := interceptor.NewClient(behind, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
			if _, first := l.(*kubeovnv1.SubnetList); first {
				reads.Add(1)
				<-hold
			}
			return c.List(ctx, l, o...)
		}})
		c := New(Options{Cache: behind, Live: live})
		ask := func(found chan<- network.Catalog) {
			v, err := c.ForLive(t.Context(), pod())
			if err != nil {
				t.Error(err)
			}
			found <- v.Catalog
		}
		first, others := make(chan network.Catalog, 1), make(chan network.Catalog, 20)
		go ask(first)
		synctest.Wait() // the first reads
		for range 20 {
			go ask(others)
		}
		synctest.Wait() // the others wait for the next read
		close(hold)
		<-first
		for range 20 {
			<-others
		}
		if n := reads.Load(); n != 2 {
			t.Errorf("%d reads", n)
		}
		if _, err := c.ForLive(t.Context(), pod()); err != nil || reads.Load() != 3 {
			t.Errorf("a read from before it came was given: %d reads (%v)", reads.Load(), err)
		}
	})
}

// Who can't wait any longer for its turn leaves.
func TestLiveReadEndsWithItsCaller(t *testing.T) {
	c := New(Options{Cache: cluster(t), Live: cluster(t, namespace("default"))})
	c.live.turn <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.liveTopology(ctx, 1); err == nil {
		t.Error("no error")
	}
}
