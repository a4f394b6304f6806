package report

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clocktesting "k8s.io/utils/clock/testing"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

func now() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// tiny is a subnet with the one address 10.17.0.2.
func tiny() network.Subnet {
	return network.NewSubnet(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "tiny"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.17.0.0/30"}}, network.Around{})
}

// ledger has a lease of the tiny subnet's address for each given lease.
func ledger(t *testing.T, leases ...ipam.Lease) *ipam.Ledger {
	t.Helper()
	l, err := ipam.New(ipam.Options{Store: memstore.New(), Replica: "r", Clock: clocktesting.NewFakeClock(now()), Random: rand.NewChaCha8([32]byte{})})
	if err != nil {
		t.Fatal(err)
	}
	b := &ipam.Block{Name: "tiny-0a110000", Subnet: "tiny", First: netip.MustParseAddr("10.17.0.0"), Version: ipam.FormatVersion, Revision: 1, ResourceVersion: "1"}
	for i := range leases {
		leases[i].Address = netip.MustParseAddr("10.17.0.2")
		b.Leases = append(b.Leases, &leases[i])
	}
	l.Observe(b)
	return l
}

type waitCase struct {
	told   Told
	change []func(*corev1.Pod)
	want   []string
}

func waitCases(t *testing.T) map[string]waitCase {
	t.Helper()
	served := network.Namespace{Name: "app", Labels: map[string]string{network.LabelInject: network.InjectEnabled}}
	candidate := []network.Candidate{{Subnet: tiny()}}
	plan := network.Planned{Owner: ipam.PodOwner("app"), Interfaces: []network.Interface{{Provider: "ovn", Candidates: candidate}}}
	asking := network.Planned{Owner: ipam.PodOwner("app"), Interfaces: []network.Interface{{Provider: "ovn", Candidates: candidate,
		Choices: [][]netip.Addr{{netip.MustParseAddr("10.17.0.2")}}}}}
	const claim = ipam.Claim("0123456789abcdef0123456789abcdef")
	full := ipam.Lease{Claim: "1123456789abcdef0123456789abcdef", Owner: ipam.PodOwner("other"), PodUID: "x", PodName: "holder"}
	own := ipam.Held{Subnet: "tiny", Lease: ipam.Lease{Address: netip.MustParseAddr("10.17.0.2"), Claim: claim, Owner: ipam.PodOwner("app"), Provider: "ovn", PodUID: "u"}}
	unbound := own
	unbound.PodUID = ""
	claimed := func(p *corev1.Pod) {
		p.Annotations = map[string]string{network.ClaimKey: string(claim), "ovn.kubernetes.io/ip_address": "10.17.0.2"}
		p.Finalizers = []string{network.Finalizer}
	}
	gates := func(names ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, n := range names {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: n})
			}
		}
	}
	onNode := func(p *corev1.Pod) { p.Spec.NodeName = "n1" }
	routed := func(p *corev1.Pod) { p.Annotations["ovn.kubernetes.io/routed"] = "true" }
	deleted := func(p *corev1.Pod) {
		at := metav1.NewTime(now())
		p.DeletionTimestamp = &at
	}
	running := func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }
	return map[string]waitCase{
		"not served":        {Told{}, nil, []string{"namespace is not served"}},
		"host network":      {Told{Namespace: served}, []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.HostNetwork = true }}, []string{"host's network"}},
		"late":              {Told{Namespace: served, Plan: plan}, nil, []string{"the worker to give it an address"}},
		"nobody leads":      {Told{Namespace: served, Plan: plan, Leader: "none"}, nil, []string{"NO WORKER LEADS"}},
		"foreign gate":      {Told{Namespace: served, Plan: plan}, []func(*corev1.Pod){gates("example.com/quota")}, []string{"gate example.com/quota"}},
		"exhausted":         {Told{Namespace: served, Plan: plan, Ledger: ledger(t, full)}, []func(*corev1.Pod){claimed, gates(network.AddressGate)}, []string{"tiny has no free IPv4 address of 1"}},
		"held by another":   {Told{Namespace: served, Plan: asking, Ledger: ledger(t, full)}, []func(*corev1.Pod){claimed, gates(network.AddressGate)}, []string{"10.17.0.2 is leased to pod other/holder"}},
		"free by now":       {Told{Namespace: served, Plan: asking, Ledger: ledger(t)}, []func(*corev1.Pod){claimed, gates(network.AddressGate)}, []string{"it can be had now"}},
		"gate and address":  {Told{Namespace: served, Plan: plan, Leases: []ipam.Held{own}, Ledger: ledger(t, full)}, []func(*corev1.Pod){claimed, gates(network.AddressGate)}, []string{"lift its gate"}},
		"both gates":        {Told{Namespace: served, Plan: plan, Ledger: ledger(t, full)}, []func(*corev1.Pod){claimed, gates("example.com/quota", network.AddressGate)}, []string{"example.com/quota", "no free"}},
		"asks for nonsense": {Told{Namespace: served, Problems: field.ErrorList{field.Required(field.NewPath("x"), "y")}}, nil, []string{"correction"}},
		"a copy":            {Told{Namespace: served, Plan: plan}, []func(*corev1.Pod){claimed}, []string{"no lease"}},
		"unbound":           {Told{Namespace: served, Plan: plan, Leases: []ipam.Held{unbound}}, []func(*corev1.Pod){claimed}, []string{"bind its leases", "scheduler"}},
		"unscheduled":       {Told{Namespace: served, Plan: plan, Leases: []ipam.Held{own}}, []func(*corev1.Pod){claimed}, []string{"scheduler"}},
		"unwired":           {Told{Namespace: served, Plan: plan, Leases: []ipam.Held{own}}, []func(*corev1.Pod){claimed, onNode}, []string{"connect its ports"}},
		"wired":             {Told{Namespace: served, Plan: plan, Leases: []ipam.Held{own}}, []func(*corev1.Pod){claimed, onNode, routed}, []string{"node n1 to start"}},
		"running":           {Told{Namespace: served, Plan: plan, Leases: []ipam.Held{own}}, []func(*corev1.Pod){claimed, onNode, routed, running}, nil},
		"terminating":       {Told{Namespace: served, Plan: plan, Verdict: lifecycle.Verdict{Action: lifecycle.Hold, Reason: "it needs its network"}}, []func(*corev1.Pod){claimed, deleted}, []string{"end of its containers: it needs"}},
		"to be taken back":  {Told{Namespace: served, Plan: plan, Verdict: lifecycle.Verdict{Action: lifecycle.Release, Reason: "the pod is gone"}}, []func(*corev1.Pod){claimed, deleted}, []string{"take back its ports"}},
		"deleted, not ours": {Told{Namespace: served, Plan: plan}, []func(*corev1.Pod){deleted}, nil},
	}
}

func TestWaitsFor(t *testing.T) {
	for name, c := range waitCases(t) {
		t.Run(name, func(t *testing.T) {
			c.told.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "p", UID: "u"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
			for _, f := range c.change {
				f(c.told.Pod)
			}
			switch c.told.Leader {
			case "":
				c.told.Leader = "worker-1"
			case "none":
				c.told.Leader = ""
			}
			got := StoryOf(c.told).WaitsFor
			if len(got) != len(c.want) {
				t.Fatalf("waits for %q, want %q", got, c.want)
			}
			for i := range got {
				if !strings.Contains(got[i], c.want[i]) {
					t.Errorf("waits for %q, want %q", got[i], c.want[i])
				}
			}
		})
	}
}

// A free address tells when it was freed and by whom, as far as that is remembered.
func TestWhoHasFreedAddress(t *testing.T) {
	a := netip.MustParseAddr("10.17.0.2")
	b := &ipam.Block{Name: "tiny-0a110000", Subnet: "tiny", First: netip.MustParseAddr("10.17.0.0"),
		Freed: []ipam.Freed{{Address: a, At: now().Unix(), Owner: ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "app", Name: "web-0"}}}}
	who := WhoHasAddress(a, network.Catalog{Subnets: map[string]network.Subnet{"tiny": tiny()}}, ledger(t), []*ipam.Block{b})
	at := now()
	want := []Holder{{Subnet: "tiny", State: WhoFree, Freed: &at, FormerOwner: "apps/StatefulSet/app/web-0"}}
	if d := cmp.Diff(want, who.Items); d != "" || who.Found() {
		t.Errorf("found %t, (-want +got):\n%s", who.Found(), d)
	}
}

func TestWarnings(t *testing.T) {
	good := func() *Status {
		at := now().Add(time.Hour)
		return &Status{Mode: Alone, Webhook: Program{Found: true, Ready: 1}, Worker: Program{Found: true, Ready: 1}, Leader: Leader{Alive: true},
			Hook: Hook{Found: true, Trusted: true}, Certificate: Certificate{NotAfter: &at}}
	}
	if w := good().Complete(now()).Warnings; len(w) > 0 {
		t.Errorf("warns of %q", w)
	}
	for name, c := range map[string]struct {
		change func(*Status)
		want   string
	}{
		"no webhook":        {func(s *Status) { s.Webhook = Program{Name: "berth-webhook"} }, "no Deployment berth-webhook"},
		"webhook not ready": {func(s *Status) { s.Webhook.Ready = 0 }, "no webhook is ready"},
		"no worker":         {func(s *Status) { s.Worker = Program{Name: "berth-worker"} }, "no Deployment berth-worker"},
		"no leader":         {func(s *Status) { s.Leader.Alive = false }, "no worker leads"},
		"not called":        {func(s *Status) { s.Hook = Hook{} }, "doesn't call the webhook"},
		"not trusted":       {func(s *Status) { s.Hook.Trusted = false }, "doesn't trust"},
		"two controllers":   {func(s *Status) { s.Controller.Ready = 1 }, "--topology=external"},
		"none beside":       {func(s *Status) { s.Mode = Beside }, "no kube-ovn-controller is ready"},
		"expired":           {func(s *Status) { *s.Certificate.NotAfter = now().Add(-time.Second) }, "expired"},
		"unreadable":        {func(s *Status) { s.Counts.Unreadable = 2 }, "2 AddressBlocks"},
		"waiting":           {func(s *Status) { s.Counts.Waiting = 3 }, "3 pods wait"},
	} {
		t.Run(name, func(t *testing.T) {
			s := good()
			c.change(s)
			if w := s.Complete(now()).Warnings; len(w) != 1 || !strings.Contains(w[0], c.want) {
				t.Errorf("warns of %q, want %q", w, c.want)
			}
		})
	}
	alone, beside := good().Complete(now()).Realises, realises(Beside)
	for i := range alone {
		if alone[i].What != beside[i].What {
			t.Errorf("row %d is %q and %q", i, alone[i].What, beside[i].What)
		}
	}
}
