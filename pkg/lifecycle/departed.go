package lifecycle

import corev1 "k8s.io/api/core/v1"

// Departed is what is known of a pod that went, or ended, without the finalizer, so that nobody could hold it until its
// containers had stopped.
type Departed struct {
	// Seen tells that it was seen as it was last. Stopped tells, then, that no container of it ran any more.
	Seen, Stopped bool
	// NodeName is the node that it was on; empty: none, as far as is known.
	NodeName string
	// Node of that name; nil when there is none or it is unknown.
	Node *corev1.Node
	// NodeGone tells that the node's object is known not to exist.
	NodeGone bool
	// Watched tells that its lease has been without a pod for the time that pending leases are watched.
	Watched bool
	// Heir tells that nobody else is to have the address but who comes back for it in the pod's place.
	Heir bool
}

// InUse tells that a container of the pod may still use an address that no port's removal takes from it. Where the pod
// was seen to run, that is so for others until its node is out of service. Of a pod that went unseen its node tells, and
// to its heir of every pod: one that is ready has a kubelet, which ends what has no pod.
func (d Departed) InUse() bool {
	switch {
	case d.NodeName == "" || d.NodeGone || d.Node != nil && outOfService(d.Node):
		return false
	case d.Seen && (d.Stopped || !d.Heir):
		return !d.Stopped
	}
	return !d.Watched || d.Node == nil || readiness(d.Node) != corev1.ConditionTrue
}
