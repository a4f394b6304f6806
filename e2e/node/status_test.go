package node

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func twoContainers() *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	pod := podWith()
	pod.Spec.InitContainers = []corev1.Container{{Name: "init"}, {Name: "sidecar", RestartPolicy: &always}}
	pod.Spec.Containers = []corev1.Container{{Name: "a"}, {Name: "b"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	return pod
}

func is(s corev1.PodStatus, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range s.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

func TestStatusOfARunningPod(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	facts := Facts{HostIP: "172.30.0.10", PodIPs: []string{"10.16.0.5", "fd00::5"}, Started: start}
	pod := twoContainers()
	s := Status(pod, facts, start)
	if s.Phase != corev1.PodRunning || s.PodIP != "10.16.0.5" || len(s.PodIPs) != 2 || s.HostIP != "172.30.0.10" {
		t.Errorf("got %s %s %v %s", s.Phase, s.PodIP, s.PodIPs, s.HostIP)
	}
	if is(s, corev1.PodReady) != corev1.ConditionTrue || is(s, corev1.PodScheduled) != corev1.ConditionTrue {
		t.Errorf("conditions %v", s.Conditions)
	}
	if i := s.InitContainerStatuses; i[0].State.Terminated == nil || i[1].State.Running == nil {
		t.Errorf("init containers %v", i)
	}
	for _, c := range s.ContainerStatuses {
		if c.State.Running == nil || !c.Ready || c.Started == nil || !*c.Started {
			t.Errorf("container %v", c)
		}
	}
	// The same facts later: nothing to write.
	pod.Status = s
	patch, err := statusPatch(pod, Status(pod, facts, start.Add(time.Hour)))
	if err != nil || patch != nil {
		t.Errorf("an unchanged status was to be written: %s %v", patch, err)
	}
}

func TestStatusOfRealContainers(t *testing.T) {
	now := time.Now()
	facts := Facts{HostIP: "172.30.0.10", PodIPs: []string{"172.30.0.10"}, Started: now, Containers: map[string]ContainerFacts{
		"a": {State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, Restarts: 3},
	}}
	s := Status(twoContainers(), facts, now)
	if s.Phase != corev1.PodRunning || is(s, corev1.PodReady) != corev1.ConditionFalse || s.ContainerStatuses[0].RestartCount != 3 {
		t.Errorf("got %+v", s)
	}
	if s.ContainerStatuses[1].State.Running == nil {
		t.Error("the other container doesn't run")
	}
	facts.Containers["a"] = ContainerFacts{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now)}}, Ready: true}
	if s = Status(twoContainers(), facts, now); is(s, corev1.PodReady) != corev1.ConditionTrue {
		t.Errorf("not ready: %v", s.Conditions)
	}
}

func TestStatusAtTheEnd(t *testing.T) {
	start := time.Now()
	for code, want := range map[int32]corev1.PodPhase{0: corev1.PodSucceeded, 2: corev1.PodFailed} {
		facts := Facts{Started: start, PodIPs: []string{"10.16.0.5"}, Ended: &Ending{At: start.Add(time.Second), ExitCode: code}}
		s := Status(twoContainers(), facts, start)
		if s.Phase != want || is(s, corev1.PodReady) != corev1.ConditionFalse {
			t.Errorf("exit code %d: %s, conditions %v", code, s.Phase, s.Conditions)
		}
		for _, c := range append(s.ContainerStatuses, s.InitContainerStatuses...) {
			if c.State.Terminated == nil || c.State.Running != nil {
				t.Errorf("container %s still runs", c.Name)
			}
		}
	}
}

func TestStatusPatchIsForOneIncarnation(t *testing.T) {
	pod := twoContainers()
	patch, err := statusPatch(pod, Status(pod, Facts{Started: time.Now()}, time.Now()))
	if err != nil || !strings.Contains(string(patch), `"metadata":{"uid":"u-1"}`) {
		t.Errorf("%s %v", patch, err)
	}
}

func TestReadyStatus(t *testing.T) {
	now := time.Now()
	s := readyStatus(&corev1.NodeStatus{}, "node-1", "172.30.0.10", now)
	if s == nil || s.Allocatable.Pods().Value() != 500 || s.Addresses[0].Address != "172.30.0.10" {
		t.Fatalf("got %+v", s)
	}
	if readyStatus(s, "node-1", "172.30.0.10", now) != nil {
		t.Error("a right status is written again")
	}
	s.Conditions[0].Status = corev1.ConditionUnknown
	if readyStatus(s, "node-1", "172.30.0.10", now) == nil {
		t.Error("a node that was thought lost stays lost")
	}
}
