package network

// WhenUnavailableKey on a pod, its namespace or a subnet says what becomes of a pod whose address can't be had now. The
// pod's own word comes first, then the namespace's, then that of the first subnet that was asked.
const (
	WhenUnavailableKey = "berth.dev/when-unavailable"
	// Wait: the pod is admitted behind AddressGate and gets its address, oldest pod first, when there is one.
	Wait = "wait"
	// Refuse: its creation is refused.
	Refuse = "refuse"
)

// Waits tells whether a pod whose address can't be had now is to wait for it. Unless somebody says otherwise, pods of a
// controller wait: refused, the controller would back off for minutes. A pod whose node is preset can't: the API server
// lets none wait behind a gate.
func Waits(p Pod, ns Namespace, plan Planned) bool {
	if p.NodeName != "" {
		return false
	}
	said := []string{p.Annotations[WhenUnavailableKey], ns.Annotations[WhenUnavailableKey]}
	for _, i := range plan.Interfaces {
		if len(i.Candidates) > 0 {
			said = append(said, i.Candidates[0].Object.Annotations[WhenUnavailableKey])
		}
	}
	for _, s := range said {
		if s == Wait || s == Refuse {
			return s == Wait
		}
	}
	_, controlled := p.Controller()
	return controlled
}
