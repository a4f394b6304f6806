//go:build e2e

package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/proc"
	"github.com/berth-net/berth/e2e/suite"
	berthv1alpha1 "github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// lostName is the namespace whose ledger is lost, and its subnet.
const lostName = "lost"

// nothingYet is how long a webhook may not know yet that a subnet is closed.
const nothingYet = 500 * time.Millisecond

// losing is a cluster whose ledger is lost, again and again, while pods run and others come and go.
type losing struct {
	*harness
	// before are the pods that are there all the time, as they were.
	before map[string]corev1.Pod
	// backup has the blocks as they were before the younger half of these pods came.
	backup map[string]berthv1alpha1.AddressBlock
	// reserved are the leases of nodes, gateways and the like.
	reserved []string
	load     *load
	marks    *marks
}

// TestLedgerIsLost takes the ledger away in three ways while pods come and go: it is put back to an older state, it is
// deleted, and it is deleted while the worker stands still, so that an operator's command has to bring it back. Nobody
// gets an address meanwhile; no pod that runs loses its own; and afterwards pods are created as before.
func TestLedgerIsLost(t *testing.T) {
	if !suite.Long() {
		t.Skip("minutes of load, with 200 pods and 20 creations a second: BERTH_LONG=1 runs it")
	}
	n, pace := 200, 50*time.Millisecond
	h := start(t)
	x := h.losing(t, n)
	x.load = h.load(t, lostName, pace)
	x.load.goesOn(t, time.Now(), 20)

	t.Run("put back", func(t *testing.T) {
		x.loses(t, x.putBack)
	})
	t.Run("deleted", func(t *testing.T) {
		x.loses(t, x.deleteAll)
	})
	x.told(t)
	t.Run("deleted without a worker", x.losesWithoutWorker)

	x.load.stop()
	if err := errors.Join(x.load.failed...); err != nil {
		t.Errorf("%d creations and deletions failed:\n%v", len(x.load.failed), err)
	}
	x.whole(t)
}

// losing makes n pods that stay, half of them before the backup. One has the address of a pod that was there when the
// backup was made, and is gone.
func (h *harness) losing(t *testing.T, n int) *losing {
	t.Helper()
	h.hand(t)
	h.subnet(t, lostName, "10.87.0.0/22,fd00:10:87::/118", "10.87.0.1,fd00:10:87::1")
	h.namespace(t, lostName, "enabled")
	h.witness(t, lostName)
	x := &losing{harness: h, marks: h.marks(t, lostName)}
	h.populate(t, "old", 16, n/2)
	leaver := pod(lostName, "leaver", onHand)
	h.create(t, leaver)
	address := h.ready(t, lostName, n/2+1)[leaver.Name].Annotations[addressKey]
	var err error
	if x.backup, err = h.blocks(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.remove(t, leaver)
	h.create(t, static("heir", address))
	h.populate(t, "young", 96, n-n/2-1)
	x.before = h.ready(t, lostName, n)
	if x.reserved, err = h.reservations(t.Context()); err != nil {
		t.Fatal(err)
	}
	return x
}

// populate makes n pods of every kind: with addresses that an owner keeps, that are listed, that are asked for, and with
// any.
func (h *harness) populate(t *testing.T, name string, base, n int) {
	t.Helper()
	kept, listed, asked := n/4, n/8, n/10
	db := set(lostName, "db-"+name, int32(kept))
	db.Spec.Template.Spec = podSpec(onHand)
	h.create(t, db)
	queue := set(lostName, "queue-"+name, int32(listed))
	queue.Spec.Template.Spec = podSpec(onHand)
	var list []string
	for i := range listed {
		list = append(list, nth(base+i))
	}
	queue.Spec.Template.Annotations = map[string]string{network.Key(network.DefaultProvider, network.SuffixPool): strings.Join(list, ";")}
	h.create(t, queue)
	for i := range asked {
		h.create(t, static(fmt.Sprintf("static-%s-%d", name, i), nth(base+listed+i)))
	}
	h.create(t, deployment(lostName, "app-"+name, int32(n-kept-listed-asked), podSpec(onHand)))
}

// nth is a pair of addresses of the subnet.
func nth(i int) string { return fmt.Sprintf("10.87.3.%d,fd00:10:87::3%02x", i, i) }

// static is a pod that asks for its addresses.
func static(name, address string) *corev1.Pod {
	p := pod(lostName, name, onHand)
	p.Annotations = map[string]string{addressKey: address}
	return p
}

// blocks reads the ledger's objects by name.
func (h *harness) blocks(ctx context.Context) (map[string]berthv1alpha1.AddressBlock, error) {
	var list berthv1alpha1.AddressBlockList
	if err := h.api.List(ctx, &list); err != nil {
		return nil, err
	}
	out := map[string]berthv1alpha1.AddressBlock{}
	for _, b := range list.Items {
		out[b.Name] = b
	}
	return out, nil
}

// deleteAll deletes all blocks.
func (x *losing) deleteAll(ctx context.Context) error {
	return x.api.DeleteAllOf(ctx, &berthv1alpha1.AddressBlock{})
}

// putBack gives all blocks the content that they had, and deletes those that came since.
func (x *losing) putBack(ctx context.Context) error {
	now, err := x.blocks(ctx)
	if err != nil {
		return err
	}
	maps.Copy(now, x.backup)
	group, ctx := errgroup.WithContext(ctx)
	for name := range now {
		group.Go(func() error {
			for {
				if err := x.putBackOne(ctx, name); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
					return client.IgnoreNotFound(err)
				}
			}
		})
	}
	return group.Wait()
}

func (x *losing) putBackOne(ctx context.Context, name string) error {
	old, was := x.backup[name]
	var b berthv1alpha1.AddressBlock
	err := x.api.Get(ctx, client.ObjectKey{Name: name}, &b)
	switch {
	case apierrors.IsNotFound(err) && was:
		return x.api.Create(ctx, &berthv1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: old.Labels}, Spec: old.Spec})
	case err != nil:
		return err
	case !was:
		return x.api.Delete(ctx, &b, client.Preconditions{ResourceVersion: &b.ResourceVersion})
	}
	b.Labels, b.Spec = old.Labels, old.Spec
	return x.api.Update(ctx, &b)
}

// loses takes the ledger away, and waits until the worker has brought it back.
func (x *losing) loses(t *testing.T, lose func(context.Context) error) {
	at := time.Now()
	if err := lose(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := time.Now()
	until(t.Context(), t, "the subnet was closed and is open again", func(context.Context) error { return x.marks.over(at) })
	until(t.Context(), t, "all have the leases that they had", x.kept)
	back := time.Now()
	x.load.goesOn(t, back, 10)
	x.report(t, at, done.Sub(at))
}

// losesWithoutWorker takes the ledger away while nobody can bring it back but the operator's command.
func (x *losing) losesWithoutWorker(t *testing.T) {
	if err := x.KillWorker(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awake := false
	wake := func() error {
		if awake {
			return nil
		}
		awake = true
		return x.KillWorker(syscall.SIGCONT)
	}
	t.Cleanup(func() {
		if err := wake(); err != nil {
			t.Error(err)
		}
	})
	at := time.Now()
	if err := x.deleteAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(at)
	until(t.Context(), t, "the subnet is closed", func(context.Context) error { return x.marks.closed(at) })
	known := time.Now().Add(nothingYet)
	until(t.Context(), t, "pods are created", func(context.Context) error {
		if n := len(x.load.since(known)); n < 10 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	for _, c := range x.load.since(known) {
		if c.given {
			t.Errorf("a pod that was created %s after the loss has an address of a closed subnet", c.began.Sub(at).Round(time.Millisecond))
		}
	}
	until(t.Context(), t, "kubectl berth rebuild has done all", func(ctx context.Context) error {
		_, err := proc.Run(ctx, "", filepath.Join(x.Bin, "kubectl-berth"), "--kubeconfig="+x.Kubeconfig(), "rebuild", "--northbound="+x.NBSocket())
		return err
	})
	back := time.Now()
	x.load.goesOn(t, back, 10) // the webhooks need no worker
	x.report(t, at, took)
	if err := wake(); err != nil {
		t.Fatal(err)
	}
	until(t.Context(), t, "all have the leases that they had", x.kept)
}

// report tells how long nothing was given.
func (x *losing) report(t *testing.T, at time.Time, took time.Duration) {
	t.Helper()
	all, without, lasted, slowest := x.load.withheld(at)
	closed := x.marks.lasted(at)
	t.Logf("lost in %s; closed by its mark for %s, first %s after the loss began; of %d creations %d were answered without an address, over %s; "+
		"the slowest took %s", took.Round(time.Millisecond), closed.total.Round(time.Millisecond), closed.first.Round(time.Millisecond), all, without,
		lasted.Round(time.Millisecond), slowest.Round(time.Millisecond))
}

// kept tells that the pods that are there all the time have their leases, and so has everybody who is no pod.
func (x *losing) kept(ctx context.Context) error {
	leases, err := x.leases(ctx)
	if err != nil {
		return err
	}
	if err := leased(leases, slices.Collect(maps.Values(x.before))); err != nil {
		return err
	}
	now, err := x.reservations(ctx)
	if d := cmp.Diff(x.reserved, now); err == nil && d != "" {
		err = fmt.Errorf("reservations (-before +now):\n%s", d)
	}
	return err
}

// leased tells which of the pods have no leases of their own.
func leased(leases []ipam.Held, pods []corev1.Pod) error {
	at := map[string]ipam.Held{}
	for _, l := range leases {
		if l.Subnet == lostName && l.Address.IsValid() {
			at[l.Address.String()] = l
		}
	}
	var errs []error
	for i := range pods {
		p := &pods[i]
		for _, a := range given(p) {
			if l := at[a]; l.PodUID != string(p.UID) || string(l.Claim) != p.Annotations[network.ClaimKey] {
				errs = append(errs, fmt.Errorf("pod %s %s %s has %s, which is leased to %s %s", p.Name, p.UID, p.Annotations[network.ClaimKey], a, l.PodUID, l.Claim))
			}
		}
	}
	return errors.Join(errs[:min(len(errs), 10)]...)
}

// reservations are the leases of who is no pod, sorted.
func (h *harness) reservations(ctx context.Context) ([]string, error) {
	if err := h.ledger.Refresh(ctx); err != nil {
		return nil, err
	}
	var out []string
	for _, l := range h.ledger.Leases() {
		if l.Owner.Reserves() {
			out = append(out, fmt.Sprintf("%s %s %s", l.Subnet, l.Ref(), l.Owner))
		}
	}
	slices.Sort(out)
	return out, nil
}

// told holds that people and alerts hear of it.
func (x *losing) told(t *testing.T) {
	t.Helper()
	list, err := x.Client().EventsV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	for _, e := range list.Items {
		if e.Regarding.Kind == "Subnet" && e.Regarding.Name == lostName {
			reasons[e.Reason] = e.Note
		}
	}
	for _, reason := range []string{"LeasesLost", "LeasesRestored"} {
		if reasons[reason] == "" {
			t.Errorf("no event %s on the subnet: %v", reason, reasons)
		}
	}
	t.Logf("events: %v", reasons)
	var rebuilds, restored float64
	until(t.Context(), t, "no subnet is closed", func(ctx context.Context) error {
		m, err := x.metrics(ctx)
		rebuilds, restored = m.Sum("berth_rebuilds_total", nil), m.Sum("berth_leases_restored_total", nil)
		if closed := m.Sum("berth_subnets_closed", nil); err == nil && closed > 0 {
			err = fmt.Errorf("%v are", closed)
		}
		return err
	})
	t.Logf("metrics: %v rebuilds, %v leases restored", rebuilds, restored)
	if rebuilds < 2 || restored < float64(len(x.before)) {
		t.Errorf("%v subnets were rebuilt, and %v leases restored", rebuilds, restored)
	}
}

// whole waits until every pod has its network, those too that got no address when they were created, and counts.
func (x *losing) whole(t *testing.T) {
	t.Helper()
	var pods []corev1.Pod
	until(t.Context(), t, "every pod has its network", func(ctx context.Context) error {
		var err error
		if pods, err = x.pods(ctx, lostName); err != nil {
			return err
		}
		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !living(&p) })
		for _, p := range pods {
			if p.Annotations[network.Key(network.DefaultProvider, network.SuffixRouted)] != "true" {
				return fmt.Errorf("pod %s has none", p.Name)
			}
		}
		leases, err := x.leases(ctx)
		if err != nil {
			return err
		}
		return leased(leases, pods)
	})
	holders, now := map[string]string{}, map[string]corev1.Pod{}
	for _, p := range pods {
		now[p.Name] = p
		for _, a := range given(&p) {
			if other := holders[a]; other != "" {
				t.Errorf("pods %s and %s have %s", other, p.Name, a)
			}
			holders[a] = p.Name
		}
	}
	for name, p := range x.before {
		if now[name].UID != p.UID {
			t.Errorf("pod %s is another", name)
		}
		if d := cmp.Diff(p.Annotations, now[name].Annotations); d != "" {
			t.Errorf("annotations of pod %s (-before +after):\n%s", name, d)
		}
	}
	t.Logf("%d pods live, with %d addresses", len(pods), len(holders))
}

// marks sees when a subnet is marked as closed.
type marks struct {
	mu    sync.Mutex
	spans []span
}

// span is from one mark on a subnet until it has none; the zero time: not yet.
type span struct{ from, to time.Time }

// marks looks at a subnet until the test ends.
func (h *harness) marks(t *testing.T, subnet string) *marks {
	t.Helper()
	c, err := client.NewWithWatch(h.Config(), client.Options{Scheme: h.api.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	m, ctx := &marks{}, t.Context()
	go func() {
		for ctx.Err() == nil { // watches end, and a new one begins with what is
			w, err := c.Watch(ctx, &kubeovnv1.SubnetList{}, client.MatchingFields{metav1.ObjectNameField: subnet})
			if err != nil {
				continue
			}
			for e := range w.ResultChan() {
				if s, ok := e.Object.(*kubeovnv1.Subnet); ok {
					m.see(time.Now(), s.Annotations[network.ClosedKey] != "")
				}
			}
		}
	}()
	return m
}

func (m *marks) see(at time.Time, closed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	open := len(m.spans) == 0 || !m.spans[len(m.spans)-1].to.IsZero()
	switch {
	case closed && open:
		m.spans = append(m.spans, span{from: at})
	case !closed && !open:
		m.spans[len(m.spans)-1].to = at
	}
}

// since gives the spans that lasted until then or began later.
func (m *marks) since(at time.Time) []span {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.spans), func(s span) bool { return !s.to.IsZero() && s.to.Before(at) })
}

// closed tells that the subnet has been closed since then.
func (m *marks) closed(at time.Time) error {
	if len(m.since(at)) == 0 {
		return errors.New("it has no mark")
	}
	return nil
}

// over tells that it was, and is open again.
func (m *marks) over(at time.Time) error {
	if spans := m.since(at); len(spans) == 0 {
		return errors.New("it has had no mark")
	} else if spans[len(spans)-1].to.IsZero() {
		return errors.New("it has one")
	}
	return nil
}

// closing is how long a subnet was closed in all, and how long after something that began.
type closing struct{ first, total time.Duration }

func (m *marks) lasted(at time.Time) (c closing) {
	for i, s := range m.since(at) {
		if i == 0 {
			c.first = s.from.Sub(at)
		}
		if s.to.IsZero() {
			s.to = time.Now()
		}
		c.total += s.to.Sub(s.from)
	}
	return c
}
