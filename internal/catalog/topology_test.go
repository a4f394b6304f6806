package catalog

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// Addresses of others are kept from pods, and each has the owner that may use it up.
func TestReservedAddresses(t *testing.T) {
	ours := ip("web.default", "s", "10.1.0.20", "")
	ours.Labels = map[string]string{network.ClaimKey: "c"}
	dying := ip("old.default", "s", "10.1.0.21", "")
	dying.DeletionTimestamp, dying.Finalizers = &metav1.Time{Time: metav1.Unix(1, 0).Time}, []string{"f"}
	interconnected := func(s *kubeovnv1.Subnet) { s.Status.U2OInterconnectionIP = "10.1.0.30" }
	internal := func(a string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a}
	}
	live := cluster(t, namespace("default"), subnet("s", "10.1.0.0/24,fd00::/64", interconnected), subnet("other", "10.2.0.0/24"), ours, dying,
		ip("static.default", "s", "10.1.0.22", "02:00:00:00:00:01"), ip("garbage.default", "s", "x", ""), ip("void.default", "s", "", ""),
		vip("v", "s", "10.1.0.23", "fd00::23"), vip("young", "s", "", ""), vip("rival", "s", "10.1.0.22", ""),
		node("n", internal("10.1.0.24"), internal("fd00::24"), corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "10.1.0.25"}, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "n"}))
	cat, err := New(Options{Cache: live, Live: live}).Topology(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const group = "kubeovn.io"
	for address, want := range map[string]ipam.Owner{
		"10.1.0.20": {}, "10.1.0.21": {}, "10.1.0.25": {}, "10.1.0.26": {},
		"10.1.0.22": {Group: group, Kind: ipam.KindVip, Name: "rival"}, "10.1.0.23": {Group: group, Kind: ipam.KindVip, Name: "v"}, "fd00::23": {Group: group, Kind: ipam.KindVip, Name: "v"},
		"10.1.0.24": {Kind: ipam.KindNode, Name: "n"}, "fd00::24": {Kind: ipam.KindNode, Name: "n"}, "10.1.0.30": {Group: group, Kind: ipam.KindSubnet, Name: "s"},
	} {
		got := ipam.Owner{}
		var reserved *ipam.ReservedError
		if errors.As(cat.Subnets["s"].Set.Check(netip.MustParseAddr(address), ipam.Owner{}), &reserved) {
			got = reserved.For
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", address, d)
		}
	}
	if err := cat.Subnets["other"].Set.Check(netip.MustParseAddr("10.2.0.24"), ipam.Owner{}); err != nil {
		t.Error(err)
	}
	want := map[string]network.Reservation{"static.default": {Subnet: "s", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.22")}, MAC: ipam.MAC{2, 0, 0, 0, 0, 1}}}
	if d := cmp.Diff(want, cat.Reservations, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
}

// A subnet keeps its value, which the ledger knows, until something changes that it depends on.
func TestSubnetsAreWorkedOutOnce(t *testing.T) {
	live := cluster(t, subnet("s", "10.1.0.0/24"), subnet("other", "10.2.0.0/24"), vip("v", "s", "", ""), node("n"),
		&kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p"}, Spec: kubeovnv1.IPPoolSpec{Subnet: "s", IPs: []string{"10.1.0.8"}}})
	c := New(Options{Cache: live, Live: live})
	sets := func() (s, other *ipam.Subnet) {
		t.Helper()
		cat, err := c.Topology(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return cat.Subnets["s"].Set, cat.Subnets["other"].Set
	}
	steps := []struct {
		name   string
		change func(context.Context) error
		anew   bool
	}{
		{"nothing", func(context.Context) error { return nil }, false},
		{"an object of no concern", func(ctx context.Context) error {
			return live.Create(ctx, &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: "sg"}})
		}, false},
		{"its spec", func(ctx context.Context) error {
			return change(ctx, live, "s", &kubeovnv1.Subnet{}, func(s *kubeovnv1.Subnet) { s.Spec.ExcludeIps = []string{"10.1.0.9"} })
		}, true},
		{"a pool", func(ctx context.Context) error {
			return change(ctx, live, "p", &kubeovnv1.IPPool{}, func(p *kubeovnv1.IPPool) { p.Spec.IPs = []string{"10.1.0.10"} })
		}, true},
		{"a Vip's address", func(ctx context.Context) error {
			return change(ctx, live, "v", &kubeovnv1.Vip{}, func(v *kubeovnv1.Vip) { v.Status.V4IP = "10.1.0.11" })
		}, true},
		{"a Vip's label", func(ctx context.Context) error {
			return change(ctx, live, "v", &kubeovnv1.Vip{}, func(v *kubeovnv1.Vip) { v.Labels = map[string]string{"a": "b"} })
		}, false},
		{"a node's address", func(ctx context.Context) error {
			return live.Status().Update(ctx, node("n", corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.1.0.12"}))
		}, true},
		{"an IP of somebody's", func(ctx context.Context) error { return live.Create(ctx, ip("x.default", "s", "10.1.0.13", "")) }, true},
	}
	before, other := sets()
	for _, step := range steps {
		if err := step.change(t.Context()); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		s, o := sets()
		if (s != before) != step.anew || o != other {
			t.Errorf("%s: worked out anew: %v, the other: %v", step.name, s != before, o != other)
		}
		before = s
	}
	if err := live.Delete(t.Context(), subnet("s", "")); err != nil {
		t.Fatal(err)
	}
	if s, _ := sets(); s != nil || len(c.memo) != 1 {
		t.Errorf("a deleted subnet is kept: %v, %d", s, len(c.memo))
	}
}

func change[T client.Object](ctx context.Context, c client.Client, name string, obj T, f func(T)) error {
	if err := c.Get(ctx, client.ObjectKey{Name: name}, obj); err != nil {
		return err
	}
	f(obj)
	return c.Update(ctx, obj)
}

// As long as nothing has changed nothing is listed; a failed reading is not kept.
func TestTopologyIsReadOncePerChange(t *testing.T) {
	lists, fail := 0, error(nil)
	live := interceptor.NewClient(cluster(t, subnet("s", "10.1.0.0/24")), interceptor.Funcs{List: func(ctx context.Context, w client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
		lists++
		if fail != nil {
			return fail
		}
		return w.List(ctx, l, opts...)
	}})
	at := uint64(1)
	c := New(Options{Cache: live, Live: live, Changes: func() uint64 { return at }})
	read := func(wantLists int, wantErr error) {
		t.Helper()
		before := lists
		cat, err := c.Topology(t.Context())
		if !errors.Is(err, wantErr) || (err == nil) != (cat.Subnets["s"].Set != nil) || lists-before != wantLists {
			t.Errorf("%d lists, want %d; %v", lists-before, wantLists, err)
		}
	}
	all := len(Kinds()) - 1 // namespaces are read one by one
	read(all, nil)
	read(0, nil)
	at++
	fail = errors.New("timeout")
	read(1, fail)
	fail = nil
	read(all, nil)
	read(0, nil)
}

// Nobody who counts: each call counts as a change.
func TestChangesBeforeWatching(t *testing.T) {
	var c Changes
	if a, b := c.Count(), c.Count(); a == b {
		t.Errorf("%d, then %d", a, b)
	}
	c.watching.Store(true)
	if a, b := c.Count(), c.Count(); a != b {
		t.Errorf("%d, then %d while watching", a, b)
	}
}

// What a topology depends on is counted, also when it begins or ceases to be; records of pods of ours are not.
func TestChangesThatMatter(t *testing.T) {
	types := runtime.NewScheme()
	if err := AddToScheme(types); err != nil {
		t.Fatal(err)
	}
	informers := &informertest.FakeInformers{Scheme: types}
	var c Changes
	if err := c.Watch(t.Context(), informers, nil); err != nil {
		t.Fatal(err)
	}
	records, err := informers.FakeInformerFor(t.Context(), &kubeovnv1.IP{})
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours := ip("a", "s", "10.1.0.20", ""), ip("a", "s", "10.1.0.20", "")
	ours.Labels = map[string]string{network.ClaimKey: "c"}
	for name, s := range map[string]struct {
		step func()
		want uint64
	}{
		"made":         {func() { records.Add(theirs) }, 1},
		"changed":      {func() { records.Update(theirs, theirs) }, 1},
		"gone":         {func() { records.Delete(theirs) }, 1},
		"taken over":   {func() { records.Update(theirs, ours) }, 1},
		"given back":   {func() { records.Update(ours, theirs) }, 1},
		"ours made":    {func() { records.Add(ours) }, 0},
		"ours changed": {func() { records.Update(ours, ours) }, 0},
		"ours gone":    {func() { records.Delete(ours) }, 0},
	} {
		before := c.Count()
		if s.step(); c.Count()-before != s.want {
			t.Errorf("%s: counted %d times, want %d", name, c.Count()-before, s.want)
		}
	}
}

// A list of addresses is counted from the set's first ordinal.
func TestB20OrdinalStart(t *testing.T) {
	set := func(name string, start *int32) *appsv1.StatefulSet {
		s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		if start != nil {
			s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: *start}
		}
		return s
	}
	ten, yes := int32(10), true
	reads := 0
	live := interceptor.NewClient(cluster(t, namespace("default"), set("ten", &ten), set("zero", nil)), interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if strings.Contains(o.GetObjectKind().GroupVersionKind().Kind, "StatefulSet") {
			reads++
		}
		return w.Get(ctx, key, o, opts...)
	}})
	c := New(Options{Cache: live, Live: live})
	cases := map[string]struct {
		set, pool   string
		want, reads int
	}{
		"started at ten":  {"ten", "10.0.0.1,10.0.0.2", 10, 1},
		"not given":       {"zero", "10.0.0.1,10.0.0.2", 0, 1},
		"gone":            {"gone", "10.0.0.1,10.0.0.2", 0, 1},
		"no list, unread": {"ten", "", 0, 0},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			reads = 0
			p := pod("ovn.kubernetes.io/ip_pool", k.pool)
			p.Name = k.set + "-10"
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: k.set, Controller: &yes}}
			v, err := c.For(t.Context(), p)
			if err != nil || v.Pod.OrdinalStart != k.want || reads != k.reads {
				t.Errorf("start %d, %d reads: %v", v.Pod.OrdinalStart, reads, err)
			}
		})
	}
}

func TestForReadsTheNamespace(t *testing.T) {
	live := cluster(t, namespace("default"), subnet("s", "10.1.0.0/24"))
	c := New(Options{Cache: live, Live: live})
	v, err := c.For(t.Context(), pod())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(network.Namespace{Name: "default", Labels: map[string]string{"team": "default"}}, v.Namespace); d != "" || v.Catalog.Subnets["s"].Set == nil {
		t.Error(d)
	}
	if _, err := c.For(t.Context(), network.Pod{Namespace: "gone"}); err == nil {
		t.Error("a pod of no namespace was served")
	}
}

func TestSlimNode(t *testing.T) {
	n := node("n", corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"})
	n.Labels, n.ManagedFields = map[string]string{"a": "b"}, []metav1.ManagedFieldsEntry{{Manager: "m"}}
	n.Status.Images, n.Status.Conditions = []corev1.ContainerImage{{Names: []string{"i"}}}, []corev1.NodeCondition{{Type: corev1.NodeReady}}
	want := node("n", n.Status.Addresses...)
	want.Labels, want.Status.Conditions = n.Labels, n.Status.Conditions
	got, err := SlimNode(n)
	if d := cmp.Diff(any(want), got); d != "" || err != nil {
		t.Error(d, err)
	}
	if other, err := SlimNode("x"); other != "x" || err != nil {
		t.Error(other, err)
	}
}
