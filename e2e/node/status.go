package node

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Facts are what a node knows about a pod that it runs.
type Facts struct {
	HostIP string
	// PodIPs, the pod's own address first.
	PodIPs []string
	// Started is when the sandbox was there.
	Started time.Time
	// Containers by name. A container that is missing here runs and is ready since Started.
	Containers map[string]ContainerFacts
	// Ended is set once no container runs and none will be started again.
	Ended *Ending
}

// Ending is how the containers without facts of their own ended.
type Ending struct {
	At       time.Time
	ExitCode int32
}

// ContainerFacts are the state of one container that really runs.
type ContainerFacts struct {
	State    corev1.ContainerState
	Last     corev1.ContainerState
	Ready    bool
	Restarts int32
	ID       string
}

// Status derives the status that a kubelet would write from what the node knows; conditions of others are kept.
func Status(pod *corev1.Pod, f Facts, now time.Time) corev1.PodStatus {
	s := *pod.Status.DeepCopy()
	s.ObservedGeneration = pod.Generation
	s.HostIP, s.HostIPs = f.HostIP, []corev1.HostIP{{IP: f.HostIP}}
	s.PodIP, s.PodIPs = "", nil
	for _, ip := range f.PodIPs {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(f.PodIPs) > 0 {
		s.PodIP = f.PodIPs[0]
	}
	if s.StartTime == nil {
		s.StartTime = &metav1.Time{Time: f.Started}
	}
	s.InitContainerStatuses, s.ContainerStatuses = nil, nil
	for n := range pod.Spec.InitContainers {
		s.InitContainerStatuses = append(s.InitContainerStatuses, initStatus(&pod.Spec.InitContainers[n], f))
	}
	ready := f.Ended == nil
	for n := range pod.Spec.Containers {
		c := containerStatus(&pod.Spec.Containers[n], f)
		ready = ready && c.Ready
		s.ContainerStatuses = append(s.ContainerStatuses, c)
	}
	s.Phase = phase(&s, f)
	reason := ""
	switch {
	case s.Phase == corev1.PodSucceeded:
		reason = "PodCompleted"
	case s.Phase == corev1.PodFailed:
		reason = "PodFailed"
	case !ready:
		reason = "ContainersNotReady"
	}
	condition(&s, corev1.PodScheduled, true, "", now)
	condition(&s, corev1.PodReadyToStartContainers, f.Ended == nil, "", now)
	condition(&s, corev1.PodInitialized, true, "", now)
	condition(&s, corev1.ContainersReady, ready, reason, now)
	condition(&s, corev1.PodReady, ready, reason, now)
	return s
}

func phase(s *corev1.PodStatus, f Facts) corev1.PodPhase {
	if f.Ended == nil {
		return corev1.PodRunning
	}
	for _, c := range s.ContainerStatuses {
		if t := c.State.Terminated; t == nil || t.ExitCode != 0 {
			return corev1.PodFailed
		}
	}
	return corev1.PodSucceeded
}

// initStatus: ordinary init containers have completed, those that restart always (sidecars) run like the others.
func initStatus(c *corev1.Container, f Facts) corev1.ContainerStatus {
	if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		return containerStatus(c, f)
	}
	s := blank(c)
	s.Ready = true
	s.State.Terminated = terminated(f.Started, f.Started, 0, s.ContainerID)
	return s
}

func containerStatus(c *corev1.Container, f Facts) corev1.ContainerStatus {
	s := blank(c)
	own, known := f.Containers[c.Name]
	started := false
	switch {
	case known:
		s.State, s.LastTerminationState, s.Ready, s.RestartCount = own.State, own.Last, own.Ready, own.Restarts
		s.ContainerID = own.ID
		started = own.State.Running != nil
	case f.Ended != nil:
		s.State.Terminated = terminated(f.Started, f.Ended.At, f.Ended.ExitCode, s.ContainerID)
	default:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(f.Started)}
		s.Ready, started = true, true
	}
	s.Started = &started
	return s
}

func blank(c *corev1.Container) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, ContainerID: "berth-e2e://" + c.Name}
}

func terminated(from, to time.Time, code int32, id string) *corev1.ContainerStateTerminated {
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	return &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: reason, StartedAt: metav1.NewTime(from), FinishedAt: metav1.NewTime(to), ContainerID: id,
	}
}

// condition sets one condition; the time of its last transition moves only when its status does.
func condition(s *corev1.PodStatus, kind corev1.PodConditionType, value bool, reason string, now time.Time) {
	status := corev1.ConditionFalse
	if value {
		status, reason = corev1.ConditionTrue, ""
	}
	c := corev1.PodCondition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(now)}
	n := slices.IndexFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if n < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if s.Conditions[n].Status == status {
		c.LastTransitionTime = s.Conditions[n].LastTransitionTime
	}
	s.Conditions[n] = c
}
