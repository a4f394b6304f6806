package app

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/facts"
	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// nic gives a pod one network as Kube-OVN does.
func nic(provider, subnet, cidr, gateway, mac string, addresses ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for suffix, v := range map[string]string{"ip_address": strings.Join(addresses, ","), "mac_address": mac, "cidr": cidr, "gateway": gateway,
			"logical_switch": subnet, "pod_nic_type": "veth-pair", "logical_router": "ovn-cluster", "allocated": "true", "routed": "true"} {
			p.Annotations[network.Key(provider, suffix)] = v
		}
	}
}

func of(kind, name string) func(*corev1.Pod) {
	yes := true
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: "uid-of-set", Controller: &yes}}
	}
}

func recordFor(pod, namespace, provider, subnet, mac, podType string, addresses ...string) *kubeovnv1.IP {
	ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: network.PortName(pod, namespace, provider), Finalizers: []string{"kubeovn.io/kube-ovn-controller"},
		Labels: map[string]string{"ovn.kubernetes.io/subnet": subnet, "ovn.kubernetes.io/node-name": "n1", subnet: "", facts.LabelReserved: "false"}},
		Spec: kubeovnv1.IPSpec{PodName: pod, Namespace: namespace, Subnet: subnet, MacAddress: mac, PodType: podType, V4IPAddress: addresses[0],
			IPAddress: strings.Join(addresses, ","), AttachSubnets: []string{}, AttachIPs: []string{}, AttachMacs: []string{}}}
	if len(addresses) > 1 {
		ip.Spec.V6IPAddress = addresses[1]
	}
	return ip
}

func macOf(network, n int) string {
	return fmt.Sprintf("02:00:00:%02x:%02x:%02x", network, n/256, n%256)
}

// run puts a pod into the cluster that runs.
func (w *world) running(p *corev1.Pod, address string) *corev1.Pod {
	w.t.Helper()
	w.create(p)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
	w.must(w.client.Status().Update(w.ctx, p))
	return p
}

const dualCIDR, dualGateway = "10.20.0.0/22,fd00:20::/64", "10.20.0.1,fd00:20::1"

// stock fills a cluster as a running Kube-OVN has it: 200 pods, of which 60 have an attachment.
func stock(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, "shop", "bank")
	w.must(w.client.Create(w.ctx, deployment("berth-system", workerName, 0, "--topology=external", "--default-ls=ovn-default")))
	w.create(subnet("dual", dualCIDR, func(s *kubeovnv1.Subnet) {
		s.Spec.Gateway, s.Spec.ExcludeIps = dualGateway, []string{"10.20.0.1", "fd00:20::1", "10.20.3.0..10.20.3.100"}
	}), subnet("net1", "10.30.0.0/24", func(s *kubeovnv1.Subnet) {
		s.Spec.Provider, s.Spec.Gateway, s.Spec.ExcludeIps = "net1.shop.ovn", "10.30.0.1", []string{"10.30.0.1"}
	}))
	five := int32(5)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}, Spec: appsv1.StatefulSetSpec{Replicas: &five}}
	w.create(set, &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "printer"}, Spec: kubeovnv1.IPSpec{Subnet: "dual", V4IPAddress: "10.20.2.250", IPAddress: "10.20.2.250"}})
	for _, v := range []string{"front", "spare"} {
		vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: v}, Spec: kubeovnv1.VipSpec{Namespace: "shop", Subnet: "dual"}}
		vip.Status.V4IP = map[string]string{"front": "10.20.2.10", "spare": "10.20.2.11"}[v]
		w.create(vip)
	}
	for i := range 200 {
		ns, name := "shop", fmt.Sprintf("web-%d", i)
		v4, v6 := fmt.Sprintf("10.20.1.%d", i+1), fmt.Sprintf("fd00:20::%x", i+0x100)
		change := []func(*corev1.Pod){onNode, nic("ovn", "dual", dualCIDR, dualGateway, macOf(1, i), v4, v6)}
		podType := ""
		switch {
		case i < 3: // of five
			name, podType = fmt.Sprintf("db-%d", i), "StatefulSet"
			change = append(change, of("StatefulSet", "db"))
		case i >= 150:
			ns = "bank"
		}
		change = append(change, func(p *corev1.Pod) { p.Namespace, p.Name = ns, name })
		if i < 60 {
			change = append(change, nic("net1.shop.ovn", "net1", "10.30.0.0/24", "10.30.0.1", macOf(2, i), fmt.Sprintf("10.30.0.%d", i+2)),
				annotated(network.NetworksKey, "shop/net1"))
			w.create(recordFor(name, ns, "net1.shop.ovn", "net1", macOf(2, i), podType, fmt.Sprintf("10.30.0.%d", i+2)))
		}
		w.running(pod(name, change...), v4)
		w.create(recordFor(name, ns, "ovn", "dual", macOf(1, i), podType, v4, v6))
	}
	w.create(recordFor("db-3", "shop", "ovn", "dual", macOf(1, 203), "StatefulSet", "10.20.2.3", "fd00:20::1:3"))
	w.running(pod("front", onNode, annotated("ovn.kubernetes.io/vip", "front"),
		nic("ovn", "dual", "10.20.0.0/22", "10.20.0.1", macOf(1, 210), "10.20.2.10")), "10.20.2.10")
	return w
}

// guard watches that no annotation of a running pod changes its value or goes, but for our own.
func (w *world) guard() (stop func()) {
	w.t.Helper()
	c, err := client.NewWithWatch(w.kube.Config(), client.Options{Scheme: scheme.Scheme})
	w.must(err)
	var pods corev1.PodList
	w.must(c.List(w.ctx, &pods))
	first := map[string]map[string]string{}
	keep := func(p *corev1.Pod) map[string]string {
		out := maps.Clone(p.Annotations)
		maps.DeleteFunc(out, func(k, _ string) bool { return k == network.ClaimKey || k == network.RequestedKey })
		return out
	}
	for i := range pods.Items {
		first[string(pods.Items[i].UID)] = keep(&pods.Items[i])
	}
	events, err := c.Watch(w.ctx, &corev1.PodList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: pods.ResourceVersion}})
	w.must(err)
	ended := make(chan int, 1)
	go func() {
		n := 0
		for e := range events.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			if p.Name == "sentinel" && e.Type == watch.Added {
				break
			}
			n++
			if d := cmp.Diff(first[string(p.UID)], keep(p)); d != "" {
				w.t.Errorf("%s %s (-before +after):\n%s", e.Type, p.Name, d)
			}
		}
		ended <- n
	}()
	return func() {
		s := pod("sentinel")
		w.create(s)
		if n := <-ended; n == 0 {
			w.t.Error("no pod was ever changed")
		}
		events.Stop()
		w.must(w.client.Delete(w.ctx, s, client.GracePeriodSeconds(0)))
	}
}

// adopted checks that all of the stock cluster is leased and marked.
func (w *world) adopted() {
	w.t.Helper()
	w.must(w.ledger.Refresh(w.ctx))
	var pods corev1.PodList
	w.must(w.client.List(w.ctx, &pods))
	for i := range pods.Items {
		p := &pods.Items[i]
		claim, ok := network.ClaimOf(p.Annotations)
		if !ok || !slices.Contains(p.Finalizers, network.Finalizer) {
			w.t.Errorf("pod %s is not marked", p.Name)
		}
		for _, n := range network.Carried(p.Annotations) {
			for _, a := range n.Addresses {
				if h, ok := w.ledger.Lookup(n.Subnet, a); !ok || h.Claim != claim || h.PodUID != string(p.UID) || h.Provider != n.Provider {
					w.t.Errorf("pod %s has %s, and the lease is %+v", p.Name, a, h)
				}
			}
			if !slices.ContainsFunc(w.ledger.ByClaim(claim), func(h ipam.Held) bool { return !h.Address.IsValid() && h.MAC == n.MAC }) {
				w.t.Errorf("MAC %s of pod %s is not leased", n.MAC, p.Name)
			}
		}
	}
	for at, want := range map[string]string{"10.20.2.3": "apps/StatefulSet/shop/db-3", "fd00:20::1:3": "apps/StatefulSet/shop/db-3", "10.20.2.250": "kubeovn.io/IP//printer",
		"10.20.2.11": "kubeovn.io/Vip//spare", "10.20.1.1": "apps/StatefulSet/shop/db-0", "10.20.1.100": "Pod/shop/"} {
		if h, _ := w.ledger.Lookup("dual", netip.MustParseAddr(at)); h.Owner.String() != want {
			w.t.Errorf("%s is leased to %s, want %s", at, h.Owner, want)
		}
	}
	if h, _ := w.ledger.Lookup("dual", netip.MustParseAddr("10.20.2.10")); h.Under == nil || h.Under.Name != "front" || h.PodName != "front" {
		w.t.Errorf("the Vip's address is leased as %+v", h)
	}
	var ips kubeovnv1.IPList
	w.must(w.client.List(w.ctx, &ips))
	for _, ip := range ips.Items {
		if ours := ip.Labels[facts.LabelClaim] != ""; ours == (ip.Name == "printer") {
			w.t.Errorf("IP %s has labels %v", ip.Name, ip.Labels)
		}
	}
}

// quiet checks that a command sends no write.
func (w *world) quiet(args ...string) {
	w.t.Helper()
	w.kube.ResetRequests()
	if code, out, errs := w.run(args...); code != ExitFine || errs != "" {
		w.t.Errorf("%v: exit code %d: %s%s", args, code, out, errs)
	}
	for r := range w.kube.Requests() {
		if verb, _, _ := strings.Cut(r, " "); verb != "get" && verb != "list" {
			w.t.Errorf("%v sent %s", args, r)
		}
	}
}

func TestMigrateThereAndBack(t *testing.T) {
	w := stock(t)
	w.quiet("adopt", "--all", "--dry-run")
	stop := w.guard()
	code, out, errs := w.run("adopt", "--all", "--fence")
	if code != ExitFine || !strings.Contains(out, "mark") {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	w.adopted()
	w.quiet("adopt", "--all", "--fence")
	var s kubeovnv1.Subnet
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "dual"}, &s))
	if s.Labels[network.LabelManaged] != "true" || s.Annotations[network.ExcludeKey] != "10.20.0.1,fd00:20::1,10.20.3.0..10.20.3.100" ||
		!slices.Equal(s.Spec.ExcludeIps, []string{"10.20.0.1..10.20.3.254", "fd00:20::1..fd00:20::ffff:ffff:ffff:fffe"}) {
		t.Errorf("the fence is %v %v %v", s.Labels, s.Annotations, s.Spec.ExcludeIps)
	}
	if code, out, _ := w.run("handback", "--all"); code != ExitFound || !strings.Contains(out, "kubectl label namespace shop berth.dev/inject-") {
		t.Errorf("namespaces are served: exit code %d: %s", code, out)
	}
	w.unlabel()
	if code, out, _ := w.run("handback", "--all"); code != ExitFound || !strings.Contains(out, "--replicas=0") {
		t.Errorf("the worker runs: exit code %d: %s", code, out)
	}
	w.halt()
	w.dropRecord("db-3.shop")
	w.quiet("handback", "--all", "--dry-run")
	if code, out, errs := w.run("handback", "--all"); code != ExitFine {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	w.returned()
	w.quiet("handback", "--all")
	stop()
}

// Whatever is interrupted goes on.
func TestMigrationGoesOn(t *testing.T) {
	w := stock(t)
	stop := w.guard()
	for _, after := range []int{1, 5, 90, 300} {
		w.interrupted(after, "adopt", "--all", "--fence")
	}
	if code, out, errs := w.run("adopt", "--all", "--fence"); code != ExitFine {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	w.adopted()
	w.unlabel()
	w.halt()
	for _, after := range []int{1, 90, 300, 470} {
		w.interrupted(after, "handback", "--all")
	}
	if code, out, errs := w.run("handback", "--all"); code != ExitFine {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	w.returned()
	stop()
}

// interrupted runs a command that dies after some writes.
func (w *world) interrupted(after int, args ...string) {
	w.t.Helper()
	whole := w.ctx
	var left atomic.Int64
	left.Store(int64(after))
	ctx, cancel := context.WithCancel(whole)
	defer cancel()
	w.hear(func(r memkube.Request) {
		if r.Verb == "patch" || r.Verb == "create" || r.Verb == "update" {
			if left.Add(-1) == 0 {
				cancel()
			}
		}
	})
	w.ctx = ctx
	code, _, errs := w.run(args...)
	w.hear(nil)
	w.ctx = whole
	if left.Load() <= 0 && (code != ExitError || !strings.Contains(errs, "run it again")) {
		w.t.Errorf("%v was interrupted after %d writes, and its exit code is %d: %s", args, after, code, errs)
	}
}

func (w *world) unlabel() {
	w.t.Helper()
	for _, name := range []string{"shop", "bank"} {
		var ns corev1.Namespace
		w.must(w.client.Get(w.ctx, client.ObjectKey{Name: name}, &ns))
		if ns.Labels[network.LabelInject] != network.InjectEnabled {
			w.t.Errorf("namespace %s has labels %v", name, ns.Labels)
		}
		delete(ns.Labels, network.LabelInject)
		w.must(w.client.Update(w.ctx, &ns))
	}
}

// dropRecord deletes a record at once, as the sweep does with those of pods that are gone.
func (w *world) dropRecord(name string) {
	w.t.Helper()
	var ip kubeovnv1.IP
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: name}, &ip))
	ip.Finalizers = nil
	w.must(w.client.Update(w.ctx, &ip))
	w.must(w.client.Delete(w.ctx, &ip))
}

func (w *world) halt() {
	w.t.Helper()
	var d appsv1.Deployment
	w.must(w.client.Get(w.ctx, client.ObjectKey{Namespace: "berth-system", Name: workerName}, &d))
	none := int32(0)
	d.Spec.Replicas = &none
	w.must(w.client.Update(w.ctx, &d))
}

// returned checks that nothing of ours is left.
func (w *world) returned() {
	w.t.Helper()
	w.must(w.ledger.Refresh(w.ctx))
	for _, h := range w.ledger.Leases() {
		w.t.Errorf("%s is leased to %s", h.Ref(), h.Owner)
	}
	var pods corev1.PodList
	w.must(w.client.List(w.ctx, &pods))
	for _, p := range pods.Items {
		if p.Annotations[network.ClaimKey] != "" || len(p.Finalizers) > 0 {
			w.t.Errorf("pod %s has %v and %v", p.Name, p.Annotations, p.Finalizers)
		}
	}
	var ips kubeovnv1.IPList
	w.must(w.client.List(w.ctx, &ips))
	back := false
	for _, ip := range ips.Items {
		back = back || ip.Name == "db-3.shop" && ip.Spec.IPAddress == "10.20.2.3,fd00:20::1:3" && ip.Spec.MacAddress == macOf(1, 203) && ip.Spec.PodType == "StatefulSet"
		if ip.Name != "printer" && (ip.Labels[facts.LabelClaim] != "" || ip.Labels[facts.LabelReserved] != "false" || !slices.Contains(ip.Finalizers, "kubeovn.io/kube-ovn-controller")) {
			w.t.Errorf("IP %s is not in Kube-OVN's form: %v %v", ip.Name, ip.Labels, ip.Finalizers)
		}
	}
	if !back {
		w.t.Error("the absent pod has no record")
	}
	var s kubeovnv1.Subnet
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "dual"}, &s))
	if _, own := s.Annotations[network.ExcludeKey]; own || s.Labels[network.LabelManaged] != "" ||
		!slices.Equal(s.Spec.ExcludeIps, []string{"10.20.0.1", "fd00:20::1", "10.20.3.0..10.20.3.100"}) {
		w.t.Errorf("the subnet is %v %v %v", s.Labels, s.Annotations, s.Spec.ExcludeIps)
	}
}

// Where anything is wrong nothing is written, unless it is to be left out.
func TestAdoptLeavesOutOnlyWhenAsked(t *testing.T) {
	w := newWorld(t, "shop")
	w.create(subnet("dual", "10.20.0.0/24"))
	nicOf := func(n int, address string) func(*corev1.Pod) {
		return nic("ovn", "dual", "10.20.0.0/24", "10.20.0.1", macOf(1, n), address)
	}
	w.running(pod("good", nicOf(1, "10.20.0.5")), "10.20.0.5")
	w.running(pod("one", nicOf(2, "10.20.0.6")), "10.20.0.6")
	w.running(pod("other", nicOf(3, "10.20.0.6")), "10.20.0.6")
	for _, args := range [][]string{{"adopt", "--all"}, {"adopt", "-n", "shop", "--dry-run"}, {"adopt", "--subnet=dual", "--skip-broken", "--fence"}} {
		w.kube.ResetRequests()
		code, out, errs := w.run(args...)
		if code != ExitFound || errs != "" || !strings.Contains(out, "Pod shop/one: pod shop/other has 10.20.0.6") {
			t.Errorf("%v: exit code %d: %s%s", args, code, out, errs)
		}
		for r := range w.kube.Requests() {
			if verb, _, _ := strings.Cut(r, " "); verb != "get" && verb != "list" {
				t.Errorf("%v sent %s", args, r)
			}
		}
	}
	code, out, errs := w.run("adopt", "--all", "--skip-broken")
	if code != ExitFine || !strings.Contains(out, "kubectl label namespace shop berth.dev/inject=enabled") {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	w.must(w.ledger.Refresh(w.ctx))
	for address, want := range map[string]string{"10.20.0.5": "good", "10.20.0.6": ""} {
		if h, _ := w.ledger.Lookup("dual", netip.MustParseAddr(address)); h.PodName != want {
			t.Errorf("%s is leased to %q, want %q", address, h.PodName, want)
		}
	}
}

// A pod that changes between look and step is not touched.
func TestAdoptMeetsAnotherChange(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		code   int
	}{
		"of a label":    {func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, ExitFine},
		"of an address": {at("10.20.0.9"), ExitError},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "shop")
			w.create(subnet("dual", "10.20.0.0/24"))
			p := w.running(pod("a", nic("ovn", "dual", "10.20.0.0/24", "10.20.0.1", macOf(1, 1), "10.20.0.5")), "10.20.0.5")
			var done atomic.Bool
			w.hear(func(r memkube.Request) {
				if r.Resource == "addressblocks" && r.Verb == "create" && done.CompareAndSwap(false, true) {
					c.change(p)
					w.must(w.client.Update(w.ctx, p))
				}
			})
			code, out, errs := w.run("adopt", "--all")
			w.must(w.client.Get(w.ctx, client.ObjectKeyFromObject(p), p))
			_, marked := network.ClaimOf(p.Annotations)
			if code != c.code || marked != (c.code == ExitFine) || !done.Load() || strings.Contains(out, planAgain) == marked {
				t.Errorf("exit code %d, marked: %t: %s%s", code, marked, out, errs)
			}
		})
	}
}
