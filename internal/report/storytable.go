package report

import (
	"fmt"
	"strings"
)

func (s *Story) table(w *writer) {
	field := func(name, value string) {
		if value != "" {
			w.text("%s\t%s", name, value)
		}
	}
	field("Pod:", s.Namespace+"/"+s.Name)
	field("UID:", s.UID)
	field("Phase:", s.Phase)
	field("Node:", s.Node)
	field("Pod IPs:", strings.Join(s.PodIPs, ", "))
	field("Namespace:", "berth.dev/inject="+s.Inject)
	field("Age:", w.age(&s.Created))
	if s.Deleting != nil {
		field("Deleting:", "until "+s.Deleting.Format("2006-01-02T15:04:05Z"))
	}
	field("Verdict:", fmt.Sprintf("%s: %s", s.Verdict.Action, s.Verdict.Reason))
	field("Claim:", s.Claim)
	field("Finalizer:", yes(s.Finalizer))
	field("Gates:", strings.Join(s.Gates, ", "))
	field("Requested:", s.Requested)
	if len(s.WaitsFor) == 0 {
		field("Waits for:", "nothing")
	}
	for i, x := range s.WaitsFor {
		if i == 0 {
			field("Waits for:", x)
			continue
		}
		field("", x)
	}
	s.planTable(w)
	s.networkTables(w)
	s.endTables(w)
}

func (s *Story) planTable(w *writer) {
	w.section("PLAN, for " + s.Plan.Owner)
	for _, p := range s.Plan.Problems {
		w.text("problem: %s", p)
	}
	for _, p := range s.Plan.Warnings {
		w.text("warning: %s", p)
	}
	w.row("NETWORK", "SUBNETS", "ASKED FOR", "MAC", "RESERVATION")
	for _, i := range s.Plan.Interfaces {
		w.row(i.Provider, strings.Join(i.Candidates, ", "), strings.Join(i.Choices, " or "), i.MAC, i.Reservation)
	}
}

func (s *Story) networkTables(w *writer) {
	if len(s.Carried) > 0 {
		w.section("ANNOTATIONS")
		w.row("NETWORK", "SUBNET", "ADDRESSES", "MAC", "ALLOCATED", "ROUTED")
		for _, c := range s.Carried {
			w.row(c.Provider, c.Subnet, strings.Join(c.Addresses, ", "), c.MAC, yes(c.Allocated), yes(c.Routed))
		}
	}
	w.section("LEASES")
	leaseTable(w, s.Leases)
	if len(s.Records) > 0 {
		w.section("IP RECORDS")
		w.row("NAME", "SUBNET", "ADDRESS", "MAC", "NODE", "OURS")
		for _, r := range s.Records {
			w.row(r.Name, r.Subnet, r.Address, r.MAC, r.Node, yes(r.Ours))
		}
	}
	if len(s.Ports) > 0 {
		w.section("PORTS")
		w.row("NAME", "SWITCH", "ADDRESSES", "GROUPS")
		for _, p := range s.Ports {
			w.row(p.Name, p.Switch, strings.Join(p.Addresses, ", "), strings.Join(p.Groups, ", "))
		}
	}
}

func (s *Story) endTables(w *writer) {
	if len(s.Conditions) > 0 {
		w.section("CONDITIONS")
		w.row("TYPE", "STATUS", "REASON", "MESSAGE")
		for _, c := range s.Conditions {
			w.row(c.Type, c.Status, c.Reason, c.Message)
		}
	}
	if len(s.Events) > 0 {
		w.section("EVENTS")
		w.row("AGE", "TYPE", "REASON", "COUNT", "MESSAGE")
		for _, e := range s.Events {
			w.row(w.age(e.Last), e.Type, e.Reason, fmt.Sprint(e.Count), e.Message)
		}
	}
	if len(s.Findings) > 0 {
		w.section("FINDINGS")
		findingTable(w, s.Findings)
	}
}
