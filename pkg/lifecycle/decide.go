package lifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Answer is what is known about a question.
type Answer uint8

// The answers. The zero value is that nobody knows.
const (
	Unknown Answer = iota
	Yes
	No
)

// Action is what is to be done with a pod's leases and rows.
type Action uint8

// The actions.
const (
	// Hold leaves everything as it is.
	Hold Action = iota
	// Serve gives the pod what it lacks.
	Serve
	// Unwire takes the pod's rows and finalizer and keeps its leases for their owner.
	Unwire
	// Release takes the pod's rows, leases, records and finalizer.
	Release
	// RestoreFinalizer puts the finalizer back, and serves.
	RestoreFinalizer
)

// String names the action.
func (a Action) String() string {
	switch a {
	case Serve:
		return "Serve"
	case Unwire:
		return "Unwire"
	case Release:
		return "Release"
	case RestoreFinalizer:
		return "RestoreFinalizer"
	}
	return "Hold"
}

// Facts is what is known of a pod.
type Facts struct {
	// Pod as it is; nil when it couldn't be read.
	Pod *corev1.Pod
	// OwnerKeeps tells whether an owner keeps the pod's leases beyond the pod.
	OwnerKeeps Answer
	// Node that the pod is on; nil when there is none or it is unknown.
	Node *corev1.Node
	// NodeGone tells that the node's object is known not to exist.
	NodeGone bool
	// Leased tells that the pod holds leases.
	Leased bool
	// Finalized tells that the pod carries the finalizer.
	Finalized bool
	// Unfenced tells that the pod has addresses on networks that other CNIs plug in: no unwiring keeps a container off them.
	Unfenced bool
	// Now is the time to judge at.
	Now time.Time
}

// Verdict is what the facts mean.
type Verdict struct {
	// Action to take.
	Action Action
	// Row of the table that fitted first; 0 for a living pod that lacks nothing.
	Row int
	// Reason for people.
	Reason string
	// After is when a Hold is worth another look without any event; zero means never.
	After time.Duration
}

// Decide is the table of hold or release: the first row that fits.
func Decide(f Facts) Verdict {
	if f.Pod == nil {
		return Verdict{Action: Hold, Row: 1, Reason: "the pod could not be read"}
	}
	v := f.judge()
	if v.Action != Release {
		return v
	}
	switch f.OwnerKeeps {
	case Unknown:
		return Verdict{Action: Hold, Row: 1, Reason: "it is not known whether the owner keeps the leases"}
	case Yes:
		return Verdict{Action: Unwire, Row: 2, Reason: "the owner keeps the leases; " + v.Reason}
	}
	return v
}

// judge is rows 3 to 8, as for a pod that nobody comes back for.
func (f Facts) judge() Verdict {
	if f.Pod.DeletionTimestamp != nil {
		return f.judgeDeleted()
	}
	switch {
	case Ended(f.Pod) && f.inUse() && !f.nodeLost():
		return Verdict{Action: Hold, Row: 7, Reason: "the pod has ended, and a container that is still reported as running can't be fenced"}
	case Ended(f.Pod):
		return Verdict{Action: Release, Row: 7, Reason: "the pod has ended"}
	case f.Leased && !f.Finalized:
		return Verdict{Action: RestoreFinalizer, Row: 8, Reason: "the finalizer is missing"}
	}
	return Verdict{Action: Serve, Reason: "the pod lives"}
}

func (f Facts) judgeDeleted() Verdict {
	switch grace := f.Pod.DeletionGracePeriodSeconds; {
	case grace != nil && *grace == 0 && !f.inUse():
		return Verdict{Action: Release, Row: 3, Reason: "the deletion is confirmed"}
	case NeverRan(f.Pod) && !f.inUse():
		return Verdict{Action: Release, Row: 4, Reason: "the pod is being deleted and no container of it ever ran"}
	}
	if f.Pod.Spec.NodeName != "" {
		if v, lost := f.judgeNode(); lost {
			return v
		}
	}
	v := Verdict{Action: Hold, Row: 6, Reason: "the pod is terminating and needs its network until it has ended"}
	if f.inUse() {
		v.Reason = "a container may still run, on an address of another CNI's network, until the pod has ended or its node is out of service"
	}
	if left := f.Pod.DeletionTimestamp.Sub(f.Now); left > 0 {
		v.After = left
	}
	return v
}

// judgeNode is row 5: whether the node will never confirm the end of its pods.
func (f Facts) judgeNode() (Verdict, bool) {
	release := func(reason string) (Verdict, bool) {
		return Verdict{Action: Release, Row: 5, Reason: reason}, true
	}
	if f.NodeGone {
		return release("the pod is being deleted and its node is gone")
	}
	if f.Node == nil {
		return Verdict{}, false
	}
	if f.nodeLost() {
		return release("the pod is being deleted and its node is out of service")
	}
	if notReady(f.Node) && f.Now.After(f.Pod.DeletionTimestamp.Time) && !f.inUse() {
		return release("the deadline of the deletion is past and the node is not ready")
	}
	return Verdict{}, false
}

// inUse tells that a container may still use an address that nobody can take from it. Where a port's removal fences, this
// is never so.
func (f Facts) inUse() bool { return f.Unfenced && !Stopped(f.Pod) }

// Stopped tells that no container runs or will be started again. A kubelet makes the phase final once all have stopped,
// also of pods that are deleted by force; others may do so while some still run.
func Stopped(p *corev1.Pod) bool {
	if p.Spec.NodeName == "" {
		return true
	}
	for _, list := range statuses(p) {
		for _, c := range list {
			if c.State.Running != nil {
				return false
			}
		}
	}
	over := 0
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Terminated != nil {
			over++
		}
	}
	return Ended(p) || over > 0 && over >= len(p.Spec.Containers)
}

// nodeLost tells that no container runs on the node any more.
func (f Facts) nodeLost() bool { return f.NodeGone || f.Node != nil && outOfService(f.Node) }

func outOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// readiness is what the node's condition says; empty: it has none.
func readiness(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

func notReady(n *corev1.Node) bool { return readiness(n) != "" && readiness(n) != corev1.ConditionTrue }

// Ended tells that the pod's phase is final, whatever its restart policy says.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// NeverRan tells that no container of any kind runs or ever ran. A pod on a node, of whose containers not all have been
// reported, may have been started already.
func NeverRan(p *corev1.Pod) bool {
	if Started(p) {
		return false
	}
	return p.Spec.NodeName == "" || len(p.Status.ContainerStatuses) > 0 && len(p.Status.ContainerStatuses) >= len(p.Spec.Containers)
}

// Started tells that some container of any kind runs or ran.
func Started(p *corev1.Pod) bool {
	for _, list := range statuses(p) {
		for _, c := range list {
			if c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil ||
				c.RestartCount > 0 || c.Started != nil && *c.Started {
				return true
			}
		}
	}
	return false
}

// statuses are those of containers of every kind.
func statuses(p *corev1.Pod) [][]corev1.ContainerStatus {
	return [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses}
}
