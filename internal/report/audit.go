package report

import (
	"fmt"

	"github.com/berth-net/berth/pkg/lifecycle"
)

// Finding is one thing that doesn't fit.
type Finding struct {
	Kind      string `json:"kind"`
	Subject   string `json:"subject"`
	Subnet    string `json:"subnet,omitempty"`
	Owner     string `json:"owner,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	Detail    string `json:"detail"`
	// Remedy is what puts it right.
	Remedy string `json:"remedy"`
	// Fixed tells that it was put right now; Error why it wasn't, where that was tried.
	Fixed bool   `json:"fixed"`
	Error string `json:"error,omitempty"`
}

// Audit is what Compare found.
type Audit struct {
	Head
	// Pods, Leases, Ports and Records are how many were compared. Ports is missing when nobody said where they are.
	Pods    int  `json:"pods"`
	Leases  int  `json:"leases"`
	Records int  `json:"records"`
	Ports   *int `json:"ports,omitempty"`
	// Items are the findings.
	Items []Finding `json:"items"`
}

// AuditOf lists findings over what was compared.
func AuditOf(s lifecycle.State, findings []lifecycle.Finding, ports bool) *Audit {
	out := &Audit{Head: head("Audit"), Pods: len(s.Pods), Leases: len(s.Leases), Records: len(s.Records), Items: []Finding{}}
	if ports {
		n := len(s.Ports)
		out.Ports = &n
	}
	for _, f := range findings {
		out.Items = append(out.Items, FindingOf(f))
	}
	return out
}

// FindingOf is the row of a finding.
func FindingOf(f lifecycle.Finding) Finding {
	out := Finding{Kind: string(f.Kind), Subject: f.Subject, Namespace: f.Namespace, Pod: f.Pod, PodUID: f.PodUID, Detail: f.Detail, Remedy: remedy(f.Kind)}
	if f.Lease.Claim != "" {
		out.Subnet, out.Owner = f.Lease.Subnet, f.Lease.Owner.String()
	}
	return out
}

// remedy says what puts a finding right. Leases and ports are the worker's alone: it is fenced, and it hands a freed
// address to who waits for it.
func remedy(k lifecycle.Kind) string {
	switch k {
	case lifecycle.FinalizerMissing, lifecycle.RecordOrphaned:
		return "audit --fix, or the worker's sweep"
	case lifecycle.LeasePending, lifecycle.LeaseOrphaned, lifecycle.PortOrphaned:
		return "the worker's sweep, within two minutes"
	case lifecycle.LeaseShared:
		return "delete all but one of the pods"
	}
	return "the worker; where it does nothing, recreate the pod"
}

// Unfixed is how many findings are left.
func (a *Audit) Unfixed() int {
	n := 0
	for _, f := range a.Items {
		if !f.Fixed {
			n++
		}
	}
	return n
}

func (a *Audit) table(w *writer) {
	findingTable(w, a.Items)
	w.end()
	ports := "ports not looked at, for no --northbound was given"
	if a.Ports != nil {
		ports = fmt.Sprintf("%d ports", *a.Ports)
	}
	w.text("%d findings over %d pods, %d leases, %d IP records, %s.", len(a.Items), a.Pods, a.Leases, a.Records, ports)
}

func findingTable(w *writer, items []Finding) {
	if len(items) == 0 {
		return
	}
	cells := []string{"KIND", "SUBJECT", "POD", "DETAIL", "STATE"}
	if w.wide {
		cells = append(cells, "SUBNET", "OWNER", "POD UID", "REMEDY")
	}
	w.row(cells...)
	for _, f := range items {
		pod := f.Pod
		if pod != "" {
			pod = f.Namespace + "/" + f.Pod
		}
		state := "found"
		switch {
		case f.Fixed:
			state = "fixed"
		case f.Error != "":
			state = "not fixed: " + f.Error
		}
		cells := []string{f.Kind, f.Subject, pod, f.Detail, state}
		if w.wide {
			cells = append(cells, f.Subnet, f.Owner, f.PodUID, f.Remedy)
		}
		w.row(cells...)
	}
}
