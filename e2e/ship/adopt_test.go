//go:build e2e

package ship

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/proc"
	"github.com/berth-net/berth/internal/report"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// TestAdoptAndHandBack takes over 200 pods from Kube-OVN beside a worker that runs, and hands them back: nothing that a
// pod says of its network changes at any moment, and afterwards all is as it was.
func TestAdoptAndHandBack(t *testing.T) {
	h := start(t)
	ctx := t.Context()
	args := h.args(ctx, t, worker)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		h.setArgs(ctx, t, worker, args)
		h.scale(ctx, t, worker, 1)
	})
	h.setArgs(ctx, t, worker, append(slices.Clone(args), "--topology=external"))
	h.stocked(ctx, t)
	h.setOver(ctx, t)
	before := h.stockState(ctx, t)
	guard := h.guard(ctx, t)

	first := h.migrate(ctx, t, "adopt", "--all", "--fence")
	t.Logf("taken over in %d steps", len(first.Steps))
	h.adopted(ctx, t)
	if again := h.migrate(ctx, t, "adopt", "--all", "--fence"); len(again.Steps) > 0 {
		t.Errorf("taken over again, in steps %v", again.Steps)
	}
	h.kubectl(ctx, t, "label", "namespace", "shop", "bank", network.LabelInject+"-")
	h.scale(ctx, t, worker, 0)
	back := h.migrate(ctx, t, "handback", "--all")
	t.Logf("handed back in %d steps", len(back.Steps))
	if again := h.migrate(ctx, t, "handback", "--all"); len(again.Steps) > 0 {
		t.Errorf("handed back again, in steps %v", again.Steps)
	}
	guard.end(ctx, t, h)
	if diff := cmp.Diff(before, h.stockState(ctx, t)); diff != "" {
		t.Errorf("the state is another one than before (-before +after):\n%s", diff)
	}
	leases, err := h.leases(ctx)
	if err != nil || len(leases) > 0 {
		t.Errorf("%d leases are left, %v", len(leases), err)
	}
}

// migrate runs adopt or handback, and reads its answer.
func (h *harness) migrate(ctx context.Context, t *testing.T, args ...string) *report.Migration {
	t.Helper()
	var m report.Migration
	if err := json.Unmarshal([]byte(h.berth(ctx, t, append(args, "-o", "json")...)), &m); err != nil {
		t.Fatal(err)
	}
	if len(m.Problems) > 0 || len(m.Failed) > 0 {
		t.Fatalf("%v: problems %v, failed %v", args, m.Problems, m.Failed)
	}
	return &m
}

// stockState is all that has to be there again afterwards, as text by object.
func (h *harness) stockState(ctx context.Context, t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	note := func(kind string, o client.Object, more ...any) {
		meta := []any{o.GetLabels(), o.GetAnnotations(), slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == network.Finalizer })}
		text, err := json.Marshal(append(meta, more...))
		if err != nil {
			t.Fatal(err)
		}
		out[kind+" "+o.GetNamespace()+"/"+o.GetName()] = string(text)
	}
	var pods corev1.PodList
	var records kubeovnv1.IPList
	var subnets kubeovnv1.SubnetList
	var vips kubeovnv1.VipList
	var spaces corev1.NamespaceList
	for _, l := range []client.ObjectList{&pods, &records, &subnets, &vips, &spaces} {
		if err := h.api.List(ctx, l); err != nil {
			t.Fatal(err)
		}
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; slices.Contains(stockSpaces(), p.Namespace) {
			note("pod", p, p.UID, slices.Contains(p.Finalizers, network.Finalizer))
		}
	}
	for i := range records.Items {
		if r := &records.Items[i]; !strings.HasPrefix(r.Name, "node-") {
			note("record", r, r.Spec)
		}
	}
	for i := range subnets.Items {
		note("subnet", &subnets.Items[i], subnets.Items[i].Spec)
	}
	for i := range vips.Items {
		note("vip", &vips.Items[i], vips.Items[i].Spec, vips.Items[i].Status.V4IP)
	}
	for i := range spaces.Items {
		if n := &spaces.Items[i]; slices.Contains(stockSpaces(), n.Name) {
			note("namespace", n)
		}
	}
	for _, row := range h.stockPorts(ctx, t) {
		out["port "+row[0]] = row[1]
	}
	return out
}

// stockPorts are names and addresses of the ports of Kube-OVN's switches.
func (h *harness) stockPorts(ctx context.Context, t *testing.T) (out [][2]string) {
	t.Helper()
	text, err := proc.Run(ctx, "", "ovn-nbctl", "--db="+h.NBSocket(), "--timeout=10", "--format=json", "--columns=name,addresses", "find", "Logical_Switch_Port", "external_ids:vendor=kube-ovn")
	if err != nil {
		t.Fatal(err)
	}
	var rows struct{ Data [][2]any }
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows.Data {
		if name := fmt.Sprint(r[0]); strings.Contains(name, ".shop") || strings.Contains(name, ".bank") {
			out = append(out, [2]string{name, fmt.Sprint(r[1])})
		}
	}
	return out
}

// adopted waits until every pod of the state is leased, marked and served, and checks who has which lease.
func (h *harness) adopted(ctx context.Context, t *testing.T) {
	t.Helper()
	leases, err := h.leases(ctx)
	if err != nil {
		t.Fatal(err)
	}
	at := map[netip.Addr]ipam.Held{}
	for _, l := range leases {
		at[l.Address] = l
	}
	var pods corev1.PodList
	if err := h.api.List(ctx, &pods); err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := range pods.Items {
		p := &pods.Items[i]
		if !slices.Contains(stockSpaces(), p.Namespace) {
			continue
		}
		n++
		claim, ok := network.ClaimOf(p.Annotations)
		if !ok || !slices.Contains(p.Finalizers, network.Finalizer) {
			t.Errorf("pod %s is not marked", p.Name)
		}
		for _, c := range network.Carried(p.Annotations) {
			for _, a := range c.Addresses {
				if l := at[a]; l.Claim != claim || l.PodUID != string(p.UID) || l.Provider != c.Provider || l.Subnet != c.Subnet {
					t.Errorf("pod %s has %s, and the lease is %+v", p.Name, a, l)
				}
			}
		}
	}
	if n != stockPods+1 {
		t.Errorf("%d pods are there", n)
	}
	for a, want := range map[string]string{absentAddress: "apps/StatefulSet/shop/db-3", "10.40.2.250": "kubeovn.io/IP//printer", "10.40.2.11": "kubeovn.io/Vip//spare",
		"10.40.1.1": "apps/StatefulSet/shop/db-0", "10.40.1.100": "Pod/shop/"} {
		if l := at[netip.MustParseAddr(a)]; l.Owner.String() != want {
			t.Errorf("%s is leased to %s, want %s", a, l.Owner, want)
		}
	}
}

// guard watches pods for changes that must not be.
type guard struct {
	events watch.Interface
	first  map[types.UID]map[string]string
	done   sync.WaitGroup

	mu    sync.Mutex
	seen  int
	wrong []string
	whole bool // the last thing that happens was seen
}

// guard begins to watch that no annotation of a pod of the state changes or goes, and only ours come.
func (h *harness) guard(ctx context.Context, t *testing.T) *guard {
	t.Helper()
	list, err := h.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g := &guard{first: map[types.UID]map[string]string{}}
	for _, p := range list.Items {
		if slices.Contains(stockSpaces(), p.Namespace) {
			g.first[p.UID] = p.Annotations
		}
	}
	if g.events, err = h.Client().CoreV1().Pods("").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.events.Stop)
	g.done.Go(func() {
		for e := range g.events.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && slices.Contains(stockSpaces(), p.Namespace) {
				g.see(e.Type, p)
			}
		}
	})
	return g
}

func (g *guard) see(what watch.EventType, p *corev1.Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.whole = g.whole || p.Labels["sentinel"] != ""
	had, known := g.first[p.UID]
	if !known {
		return
	}
	g.seen++
	now := maps.Clone(p.Annotations)
	maps.DeleteFunc(now, func(k, _ string) bool { return had[k] == "" && strings.HasPrefix(k, "berth.dev/") })
	if !maps.Equal(had, now) || what == watch.Deleted {
		g.wrong = append(g.wrong, fmt.Sprintf("%s %s/%s: %s", what, p.Namespace, p.Name, cmp.Diff(had, now)))
	}
}

// end waits until all that happened was seen, and tells what was wrong.
func (g *guard) end(ctx context.Context, t *testing.T, h *harness) {
	t.Helper()
	s := stockPod("bank", "sentinel")
	s.Labels = map[string]string{"sentinel": "true"}
	h.make(ctx, t, s)
	until(ctx, t, "the watch has seen everything", func(context.Context) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.whole {
			return errors.New("it has not")
		}
		return nil
	})
	if err := h.api.Delete(ctx, s, client.GracePeriodSeconds(0)); err != nil {
		t.Error(err)
	}
	g.events.Stop()
	g.done.Wait()
	t.Logf("%d changes of %d pods were seen", g.seen, len(g.first))
	if g.seen < 2*len(g.first) {
		t.Errorf("only %d changes of %d pods were seen", g.seen, len(g.first))
	}
	for _, w := range g.wrong[:min(len(g.wrong), 5)] {
		t.Error(w)
	}
}
