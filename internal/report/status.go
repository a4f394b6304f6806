package report

import (
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/berth-net/berth/pkg/ipam"
)

// The modes.
const (
	// Alone: Berth realises the topology.
	Alone = "alone"
	// Beside: kube-ovn-controller does.
	Beside = "beside"
)

// Program is one Deployment.
type Program struct {
	Name  string `json:"name"`
	Found bool   `json:"found"`
	Ready int32  `json:"ready"`
	Want  int32  `json:"want"`
	// Image of its first container.
	Image string `json:"image,omitempty"`
}

// Leader is the worker that leads.
type Leader struct {
	Holder  string     `json:"holder,omitempty"`
	Renewed *time.Time `json:"renewed,omitempty"`
	// Alive tells that its lease has not run out.
	Alive bool `json:"alive"`
}

// LeaderOf reads the lease by which workers elect their leader.
func LeaderOf(l *coordinationv1.Lease, now time.Time) Leader {
	out := Leader{}
	if l.Spec.HolderIdentity != nil {
		out.Holder = *l.Spec.HolderIdentity
	}
	if l.Spec.RenewTime != nil && l.Spec.LeaseDurationSeconds != nil {
		at := l.Spec.RenewTime.UTC()
		out.Renewed = &at
		out.Alive = out.Holder != "" && now.Sub(at) < time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second
	}
	return out
}

// Hook is the webhook's configuration at the API server.
type Hook struct {
	Found bool `json:"found"`
	// Trusted tells that the API server knows whom to trust.
	Trusted       bool   `json:"trusted"`
	FailurePolicy string `json:"failurePolicy,omitempty"`
}

// Certificate is the newest one in the webhook's Secret.
type Certificate struct {
	Secret   string     `json:"secret"`
	NotAfter *time.Time `json:"notAfter,omitempty"`
	// Problem says why it isn't known.
	Problem string `json:"problem,omitempty"`
}

// Counts are numbers of what there is.
type Counts struct {
	// Blocks of addresses and of MACs; Unreadable of them can't be read.
	AddressBlocks int `json:"addressBlocks"`
	MACBlocks     int `json:"macBlocks"`
	Unreadable    int `json:"unreadable"`
	// Leases by state.
	Bound    int `json:"bound"`
	Pending  int `json:"pending"`
	Reserved int `json:"reserved"`
	// Pods with a claim, of these with the finalizer and being deleted, and pods behind the gate.
	Served      int `json:"served"`
	Terminating int `json:"terminating"`
	Waiting     int `json:"waiting"`
}

// CountLedger counts blocks and leases.
func (c *Counts) CountLedger(blocks []*ipam.Block, held []ipam.Held) {
	for _, b := range blocks {
		switch {
		case b.Version == ipam.Unreadable:
			c.Unreadable++
		case b.MACs():
			c.MACBlocks++
		default:
			c.AddressBlocks++
		}
	}
	for _, h := range held {
		switch StateOf(h.Lease) {
		case Reserved:
			c.Reserved++
		case Pending:
			c.Pending++
		default:
			c.Bound++
		}
	}
}

// Realised says who realises what.
type Realised struct {
	What string `json:"what"`
	By   string `json:"by"`
}

// Status is the state of the installation.
type Status struct {
	Head
	// Mode is alone or beside.
	Mode        string      `json:"mode"`
	Namespace   string      `json:"namespace"`
	Webhook     Program     `json:"webhook"`
	Worker      Program     `json:"worker"`
	Controller  Program     `json:"kubeOVNController"`
	Leader      Leader      `json:"leader"`
	Hook        Hook        `json:"hook"`
	Certificate Certificate `json:"certificate"`
	Counts      Counts      `json:"counts"`
	Realises    []Realised  `json:"realises"`
	// Warnings tell what is wrong, and what to do.
	Warnings []string `json:"warnings"`
}

// Complete fills in what follows from the rest: kind, matrix and warnings.
func (s *Status) Complete(now time.Time) *Status {
	s.Head, s.Realises, s.Warnings = head("Status"), realises(s.Mode), []string{}
	warn := func(when bool, format string, args ...any) {
		if when {
			s.Warnings = append(s.Warnings, fmt.Sprintf(format, args...))
		}
	}
	warn(!s.Webhook.Found, "there is no Deployment %s in namespace %s: install Berth, or name its namespace by --berth-namespace", s.Webhook.Name, s.Namespace)
	warn(s.Webhook.Found && s.Webhook.Ready == 0, "no webhook is ready: pods get their addresses late, from the worker")
	warn(!s.Worker.Found, "there is no Deployment %s in namespace %s: nobody wires pods or takes addresses back", s.Worker.Name, s.Namespace)
	warn(s.Worker.Found && !s.Leader.Alive, "no worker leads: look at the pods of Deployment %s", s.Worker.Name)
	warn(!s.Hook.Found, "the API server doesn't call the webhook: its MutatingWebhookConfiguration is missing")
	warn(s.Hook.Found && !s.Hook.Trusted, "the API server doesn't trust the webhook: its configuration has no caBundle yet")
	warn(s.Mode == Alone && s.Controller.Ready > 0, "kube-ovn-controller runs although the worker has --topology=ensure: stop the one, or give the other --topology=external")
	warn(s.Mode == Beside && s.Controller.Ready == 0, "no kube-ovn-controller is ready: nobody realises Subnets and Vpcs")
	if at := s.Certificate.NotAfter; at != nil {
		warn(at.Before(now), "the certificate in Secret %s has expired: restart the webhook", s.Certificate.Secret)
	}
	warn(s.Counts.Unreadable > 0, "%d AddressBlocks can't be read: their addresses are given to nobody; run kubectl get addressblocks and restore them from a backup", s.Counts.Unreadable)
	warn(s.Counts.Waiting > 0, "%d pods wait for an address: run kubectl berth subnets, and kubectl berth why on one of them", s.Counts.Waiting)
	return s
}

// realises is the matrix of who realises what.
func realises(mode string) []Realised {
	const berth, stock, nobody = "Berth", "Kube-OVN", "nobody"
	// Each row: what, alone, beside.
	rows := [][3]string{
		{"addresses and ports of pods in served namespaces", berth, berth},
		{"pods in other namespaces", nobody, stock},
		{"switches and routers of Subnets and Vpcs", berth, stock},
		{"status of Subnets and IPPools", berth, stock},
		{"IP records of served pods", berth, berth},
		{"addresses of Vips", berth, stock},
		{"NetworkPolicy", nobody, stock},
		{"rules of SecurityGroups, ACLs of Subnets", berth, stock},
	}
	out := []Realised{}
	for _, r := range rows {
		by := r[1]
		if mode == Beside {
			by = r[2]
		}
		out = append(out, Realised{What: r[0], By: by})
	}
	return out
}

func (s *Status) table(w *writer) {
	w.text("Mode:\t%s", s.Mode)
	w.text("Webhook:\t%s", s.Webhook)
	w.text("Worker:\t%s", s.Worker)
	switch {
	case s.Leader.Alive:
		w.text("Leader:\t%s, seen %s ago", s.Leader.Holder, w.age(s.Leader.Renewed))
	default:
		w.text("Leader:\tnone")
	}
	w.text("kube-ovn-controller:\t%s", s.Controller)
	w.text("Called by the API server:\t%s, trusted: %s, failurePolicy: %s", yes(s.Hook.Found), yes(s.Hook.Trusted), s.Hook.FailurePolicy)
	if at := s.Certificate.NotAfter; at != nil {
		w.text("Certificate:\tvalid until %s", at.Format("2006-01-02 15:04 MST"))
	} else {
		w.text("Certificate:\tunknown: %s", s.Certificate.Problem)
	}
	c := s.Counts
	w.text("Blocks:\t%d of addresses, %d of MACs", c.AddressBlocks, c.MACBlocks)
	w.text("Leases:\t%d bound, %d pending, %d reserved", c.Bound, c.Pending, c.Reserved)
	w.text("Pods:\t%d served, %d of them terminating; %d wait for an address", c.Served, c.Terminating, c.Waiting)
	w.section("WHO REALISES WHAT")
	for _, r := range s.Realises {
		w.row(r.What, r.By)
	}
	if len(s.Warnings) > 0 {
		w.section("WARNINGS")
		for _, x := range s.Warnings {
			w.text("%s", x)
		}
	}
}

// String is for people.
func (p Program) String() string {
	if !p.Found {
		return "not installed"
	}
	return fmt.Sprintf("%d of %d ready", p.Ready, p.Want)
}
