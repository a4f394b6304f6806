package report

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// Told is all that is known of one pod.
type Told struct {
	Pod       *corev1.Pod
	Namespace network.Namespace
	// Plan of the pod, and what is wrong with what it asks for. PlanErr says why there is no plan.
	Plan     network.Planned
	Problems field.ErrorList
	PlanErr  error
	// Verdict of its leases and rows.
	Verdict lifecycle.Verdict
	// Leases under its claim, in Ledger.
	Leases []ipam.Held
	Ledger *ipam.Ledger
	// Records are its IP objects, Events those about it.
	Records []kubeovnv1.IP
	Events  []corev1.Event
	// Ports are its switch ports, Groups gives the port groups of one. Nobody looked where Groups is nil.
	Ports  []nb.LogicalSwitchPort
	Groups func(port string) []string
	// Findings about it.
	Findings []lifecycle.Finding
	// Leader is the worker that leads; empty: none does.
	Leader string
}

// Story is a pod's whole story.
type Story struct {
	Head
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	UID       string   `json:"uid"`
	Phase     string   `json:"phase"`
	Node      string   `json:"node,omitempty"`
	PodIPs    []string `json:"podIPs,omitempty"`
	// Inject is the namespace's word.
	Inject   string     `json:"inject,omitempty"`
	Created  time.Time  `json:"created"`
	Deleting *time.Time `json:"deleting,omitempty"`
	// WaitsFor is what must happen next, in this order. Empty: nothing.
	WaitsFor  []string `json:"waitsFor"`
	Verdict   Verdict  `json:"verdict"`
	Claim     string   `json:"claim,omitempty"`
	Finalizer bool     `json:"finalizer"`
	Gates     []string `json:"gates,omitempty"`
	Requested string   `json:"requested,omitempty"`
	Plan      Plan     `json:"plan"`
	// Carried is what the annotations say.
	Carried []Carried `json:"carried"`
	Leases  []Lease   `json:"leases"`
	Records []Record  `json:"records"`
	// Ports is missing when nobody said where they are.
	Ports      []Port      `json:"ports,omitempty"`
	Conditions []Condition `json:"conditions"`
	Events     []Event     `json:"events"`
	Findings   []Finding   `json:"findings"`
}

// Verdict is what the pod's state means for its leases and rows.
type Verdict struct {
	Action string `json:"action"`
	Row    int    `json:"row"`
	Reason string `json:"reason"`
}

// Plan is what the pod would get now.
type Plan struct {
	Owner      string      `json:"owner,omitempty"`
	Interfaces []Interface `json:"interfaces"`
	// Problems are why it would be refused, Warnings what was passed over.
	Problems []string `json:"problems,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Interface is one network of the plan.
type Interface struct {
	Provider string `json:"provider"`
	// Candidates are the subnets to take from, in order, as subnet or subnet/pool.
	Candidates []string `json:"candidates"`
	// Choices are the addresses that are asked for.
	Choices     []string `json:"choices,omitempty"`
	MAC         string   `json:"mac,omitempty"`
	Reservation string   `json:"reservation,omitempty"`
	IPAMOnly    bool     `json:"ipamOnly"`
}

// Carried is one network that the annotations tell.
type Carried struct {
	Provider  string   `json:"provider"`
	Subnet    string   `json:"subnet,omitempty"`
	Addresses []string `json:"addresses"`
	MAC       string   `json:"mac,omitempty"`
	Allocated bool     `json:"allocated"`
	Routed    bool     `json:"routed"`
}

// Record is one IP object.
type Record struct {
	Name    string `json:"name"`
	Subnet  string `json:"subnet"`
	Address string `json:"address"`
	MAC     string `json:"mac,omitempty"`
	Node    string `json:"node,omitempty"`
	// Ours tells that this project made it.
	Ours bool `json:"ours"`
}

// Port is one switch port.
type Port struct {
	Name      string   `json:"name"`
	Switch    string   `json:"switch"`
	Addresses []string `json:"addresses"`
	Groups    []string `json:"groups"`
}

// Condition is one condition of the pod.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Event is one event about the pod.
type Event struct {
	Last    *time.Time `json:"last,omitempty"`
	Type    string     `json:"type"`
	Reason  string     `json:"reason"`
	Message string     `json:"message"`
	Source  string     `json:"source,omitempty"`
	Count   int32      `json:"count"`
}

// StoryOf tells a pod's story.
func StoryOf(t Told) *Story {
	p := t.Pod
	s := &Story{Head: head("Pod"), Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Phase: string(p.Status.Phase), Node: p.Spec.NodeName,
		Inject: t.Namespace.Labels[network.LabelInject], Created: p.CreationTimestamp.UTC(), Claim: p.Annotations[network.ClaimKey],
		Finalizer: slices.Contains(p.Finalizers, network.Finalizer), Requested: p.Annotations[network.RequestedKey],
		Verdict: Verdict{Action: t.Verdict.Action.String(), Row: t.Verdict.Row, Reason: t.Verdict.Reason},
		Plan:    planOf(t), Leases: LeasesOf(t.Leases, LeaseFilter{}).Items, Carried: carriedOf(p), Records: []Record{}, Conditions: []Condition{},
		Events: eventsOf(t.Events), Findings: []Finding{}}
	if s.Claim == "" && !s.Finalizer {
		s.Verdict = Verdict{Action: "None", Reason: "it has nothing of Berth yet"}
	}
	if p.DeletionTimestamp != nil {
		at := p.DeletionTimestamp.UTC()
		s.Deleting = &at
	}
	for _, ip := range p.Status.PodIPs {
		s.PodIPs = append(s.PodIPs, ip.IP)
	}
	for _, g := range p.Spec.SchedulingGates {
		s.Gates = append(s.Gates, g.Name)
	}
	for _, r := range t.Records {
		s.Records = append(s.Records, Record{Name: r.Name, Subnet: r.Spec.Subnet, Address: r.Spec.IPAddress, MAC: r.Spec.MacAddress, Node: r.Spec.NodeName,
			Ours: r.Labels[network.ClaimKey] != ""})
	}
	for _, c := range p.Status.Conditions {
		s.Conditions = append(s.Conditions, Condition{Type: string(c.Type), Status: string(c.Status), Reason: c.Reason, Message: c.Message})
	}
	for _, f := range t.Findings {
		s.Findings = append(s.Findings, FindingOf(f))
	}
	if t.Groups != nil {
		for _, port := range t.Ports {
			s.Ports = append(s.Ports, Port{Name: port.Name, Switch: port.ExternalIDs[nb.KeySwitch], Addresses: port.Addresses, Groups: t.Groups(port.Name)})
		}
	}
	s.WaitsFor = waitsFor(t, s)
	return s
}

func planOf(t Told) Plan {
	out := Plan{Interfaces: []Interface{}, Warnings: t.Plan.Dropped}
	if t.PlanErr != nil {
		out.Problems = append(out.Problems, t.PlanErr.Error())
		return out
	}
	out.Owner = t.Plan.Owner.String()
	for _, e := range t.Problems {
		out.Problems = append(out.Problems, e.Error())
	}
	for _, i := range t.Plan.Interfaces {
		row := Interface{Provider: i.Provider, Candidates: []string{}, MAC: i.MAC.String(), IPAMOnly: i.IPAMOnly}
		for _, c := range i.Candidates {
			row.Candidates = append(row.Candidates, candidate(c))
		}
		for _, choice := range i.Choices {
			row.Choices = append(row.Choices, strings.Join(texts(choice), ","))
		}
		if i.Reservation != (ipam.Owner{}) {
			row.Reservation = i.Reservation.String()
		}
		out.Interfaces = append(out.Interfaces, row)
	}
	return out
}

// candidate names a subnet, or a pool of it.
func candidate(c network.Candidate) string {
	name := ""
	if c.Object != nil {
		name = c.Object.Name
	}
	if c.Pool != "" {
		name += "/" + c.Pool
	}
	return name
}

func texts(as []netip.Addr) []string {
	out := make([]string, 0, len(as))
	for _, a := range as {
		out = append(out, a.String())
	}
	return out
}

func carriedOf(p *corev1.Pod) []Carried {
	out := []Carried{}
	for _, c := range network.Carried(p.Annotations) {
		is := func(suffix string) bool { return p.Annotations[network.Key(c.Provider, suffix)] == "true" }
		out = append(out, Carried{Provider: c.Provider, Subnet: c.Subnet, Addresses: texts(c.Addresses), MAC: c.MAC.String(),
			Allocated: is(network.SuffixAllocated), Routed: is(network.SuffixRouted)})
	}
	return out
}

// eventsOf gives events, the latest last.
func eventsOf(events []corev1.Event) []Event {
	out := []Event{}
	for _, e := range events {
		row := Event{Type: e.Type, Reason: e.Reason, Message: e.Message, Source: cmp.Or(e.ReportingController, e.Source.Component), Count: max(e.Count, 1)}
		at := cmp.Or(e.LastTimestamp.Time, e.EventTime.Time, e.FirstTimestamp.Time, e.CreationTimestamp.Time)
		if e.Series != nil {
			row.Count, at = e.Series.Count, e.Series.LastObservedTime.Time
		}
		if !at.IsZero() {
			at = at.UTC()
			row.Last = &at
		}
		out = append(out, row)
	}
	slices.SortStableFunc(out, func(a, b Event) int {
		var x, y time.Time
		if a.Last != nil {
			x = *a.Last
		}
		if b.Last != nil {
			y = *b.Last
		}
		return cmp.Or(x.Compare(y), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	return out
}
