package app

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
	"github.com/berth-net/berth/pkg/network"
)

// bindings gives who has which address, without generations.
func (w *world) bindings() []string {
	w.t.Helper()
	w.must(w.ledger.Refresh(w.ctx))
	var out []string
	for _, h := range w.ledger.Leases() {
		out = append(out, strings.Join([]string{h.Subnet, h.Ref().String(), string(h.Claim), h.Owner.String(), h.PodUID}, " "))
	}
	slices.Sort(out)
	return out
}

// two fills a cluster with two pods that run.
func two(t *testing.T) (*world, []string) {
	t.Helper()
	w := newWorld(t, "shop")
	w.serve("shop")
	w.create(subnet("ovn-default", "10.16.0.0/24"), subnet("other", "10.17.0.0/24"))
	for name, at4 := range map[string]string{"web-0": "10.16.0.20", "web-1": "10.16.0.90"} {
		p := w.admit(pod(name, at(at4), onNode, annotated("ovn.kubernetes.io/mac_address", "02:00:00:00:00:"+at4[8:])))
		w.bind(p, string(p.UID))
		w.wire(p)
	}
	return w, w.bindings()
}

// lose deletes all blocks.
func (w *world) lose() {
	w.t.Helper()
	store, err := blockstore.New(w.kube.Config())
	w.must(err)
	blocks, err := store.List(w.ctx)
	w.must(err)
	for _, b := range blocks {
		w.must(store.Delete(w.ctx, b))
	}
}

func TestRebuild(t *testing.T) {
	w, before := two(t)
	w.quiet("rebuild")
	w.quiet("rebuild", "ovn-default")
	w.lose()
	w.quiet("rebuild", "ovn-default", "--dry-run")
	if code, out, errs := w.run("rebuild"); code != ExitFine || !strings.Contains(out, "nothing to do") {
		t.Errorf("only pods say that leases are missing: exit code %d: %s%s", code, out, errs)
	}
	code, out, errs := w.run("rebuild", "ovn-default", "-o", "wide")
	if code != ExitFine || !strings.Contains(out, "10.16.0.20 for pod shop/web-0") {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	if d := cmp.Diff(before, w.bindings()); d != "" {
		t.Errorf("(-before +rebuilt):\n%s", d)
	}
	var s kubeovnv1.Subnet
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "ovn-default"}, &s))
	if s.Annotations[network.ClosedKey] != "" {
		t.Error("the subnet stays closed")
	}
	w.quiet("rebuild", "ovn-default")
}

// A subnet that somebody has closed is looked at unasked, and opened.
func TestRebuildOpensClosed(t *testing.T) {
	w, before := two(t)
	w.lose()
	var s kubeovnv1.Subnet
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "ovn-default"}, &s))
	s.Annotations = map[string]string{network.ClosedKey: "a block went (1)"}
	w.must(w.client.Update(w.ctx, &s))
	if code, out, errs := w.run("rebuild"); code != ExitFine || !strings.Contains(out, "steps were taken") {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	if d := cmp.Diff(before, w.bindings()); d != "" {
		t.Errorf("(-before +rebuilt):\n%s", d)
	}
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "ovn-default"}, &s))
	if s.Annotations[network.ClosedKey] != "" {
		t.Error("the subnet stays closed")
	}
}

// Two pods with one address: the older that runs gets it, and the other is told.
func TestRebuildTellsConflicts(t *testing.T) {
	w, _ := two(t)
	twin := pod("twin", onNode, in("ovn-default"), at("10.16.0.20"), annotated("ovn.kubernetes.io/cidr", "10.16.0.0/24"),
		annotated(network.ClaimKey, "000000000000000000000000000000ff"))
	w.put(twin)
	w.lose()
	code, out, errs := w.run("rebuild", "ovn-default")
	if code != ExitFine || !strings.Contains(out, "Pod shop/twin: 10.16.0.20") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	var web corev1.Pod
	w.must(w.client.Get(w.ctx, client.ObjectKey{Namespace: "shop", Name: "web-0"}, &web))
	w.must(w.ledger.Refresh(w.ctx))
	if !slices.ContainsFunc(w.ledger.ByClaim(ipam.Claim(web.Annotations[network.ClaimKey])), func(h ipam.Held) bool { return h.PodUID == string(web.UID) }) {
		t.Error("the pod that runs lost its address")
	}
}
