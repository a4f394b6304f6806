package lifecycle

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func now() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c"}}}}
	for _, c := range change {
		c(p)
	}
	return p
}

// deleted marks the pod with a deadline some time from now.
func deleted(left time.Duration, grace int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		at := metav1.NewTime(now().Add(left))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
	}
}

func unscheduled(p *corev1.Pod) { p.Spec.NodeName = "" }

func phase(f corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = f }
}

func states(list func(*corev1.Pod) *[]corev1.ContainerStatus, s ...corev1.ContainerStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) { *list(p) = s }
}

func mains(p *corev1.Pod) *[]corev1.ContainerStatus  { return &p.Status.ContainerStatuses }
func inits(p *corev1.Pod) *[]corev1.ContainerStatus  { return &p.Status.InitContainerStatuses }
func extras(p *corev1.Pod) *[]corev1.ContainerStatus { return &p.Status.EphemeralContainerStatuses }

func running() corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func waiting() corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
}

func over() corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
}

func restarting() corev1.ContainerStatus {
	s := waiting()
	s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{}
	return s
}

func node(ready corev1.ConditionStatus, taints ...string) *corev1.Node {
	n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	for _, t := range taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: t})
	}
	return n
}

func TestDecide(t *testing.T) {
	type want struct {
		Action Action
		Row    int
	}
	terminating := []func(*corev1.Pod){deleted(20*time.Second, 30), states(mains, running())}
	dead := pod(deleted(-time.Second, 30), states(mains, running()))
	for name, c := range map[string]struct {
		facts Facts
		want  want
	}{
		"1 unreadable pod":                    {Facts{OwnerKeeps: No}, want{Hold, 1}},
		"1 owner unknown, pod gone":           {Facts{Pod: pod(deleted(0, 0))}, want{Hold, 1}},
		"1 owner unknown, pod ended":          {Facts{Pod: pod(phase(corev1.PodFailed))}, want{Hold, 1}},
		"owner unknown, pod lives":            {Facts{Pod: pod(), Finalized: true}, want{Serve, 0}},
		"2 owner keeps, pod gone":             {Facts{Pod: pod(deleted(0, 0)), OwnerKeeps: Yes}, want{Unwire, 2}},
		"2 owner keeps, pod ended":            {Facts{Pod: pod(phase(corev1.PodSucceeded)), OwnerKeeps: Yes}, want{Unwire, 2}},
		"2 owner keeps, node gone":            {Facts{Pod: pod(terminating...), OwnerKeeps: Yes, NodeGone: true}, want{Unwire, 2}},
		"6 owner keeps, pod terminating":      {Facts{Pod: pod(terminating...), OwnerKeeps: Yes}, want{Hold, 6}},
		"3 confirmed":                         {Facts{Pod: pod(deleted(0, 0)), OwnerKeeps: No}, want{Release, 3}},
		"3 forced while running":              {Facts{Pod: pod(deleted(0, 0), states(mains, running())), OwnerKeeps: No}, want{Release, 3}},
		"4 never scheduled":                   {Facts{Pod: pod(deleted(20*time.Second, 30), unscheduled), OwnerKeeps: No}, want{Release, 4}},
		"4 only waiting":                      {Facts{Pod: pod(deleted(20*time.Second, 30), states(mains, waiting()), states(inits, waiting())), OwnerKeeps: No}, want{Release, 4}},
		"6 no status at all":                  {Facts{Pod: pod(deleted(20*time.Second, 30)), OwnerKeeps: No}, want{Hold, 6}},
		"6 init container runs":               {Facts{Pod: pod(deleted(20*time.Second, 30), states(mains, waiting()), states(inits, running())), OwnerKeeps: No}, want{Hold, 6}},
		"6 init container ran":                {Facts{Pod: pod(deleted(20*time.Second, 30), states(mains, waiting()), states(inits, over())), OwnerKeeps: No}, want{Hold, 6}},
		"6 sidecar runs":                      {Facts{Pod: pod(deleted(20*time.Second, 30), states(mains, over()), states(inits, running())), OwnerKeeps: No}, want{Hold, 6}},
		"6 ephemeral container runs":          {Facts{Pod: pod(deleted(20*time.Second, 30), states(mains, waiting()), states(extras, running())), OwnerKeeps: No}, want{Hold, 6}},
		"6 waits after a crash":               {Facts{Pod: pod(deleted(20*time.Second, 30), states(mains, restarting())), OwnerKeeps: No}, want{Hold, 6}},
		"6 all ended, not confirmed":          {Facts{Pod: pod(deleted(20*time.Second, 30), states(mains, over())), OwnerKeeps: No}, want{Hold, 6}},
		"5 node gone":                         {Facts{Pod: pod(terminating...), OwnerKeeps: No, NodeGone: true}, want{Release, 5}},
		"5 node out of service":               {Facts{Pod: pod(terminating...), OwnerKeeps: No, Node: node("True", corev1.TaintNodeOutOfService)}, want{Release, 5}},
		"5 node not ready, deadline past":     {Facts{Pod: dead, OwnerKeeps: No, Node: node("Unknown")}, want{Release, 5}},
		"6 node not ready, deadline to come":  {Facts{Pod: pod(terminating...), OwnerKeeps: No, Node: node("False")}, want{Hold, 6}},
		"6 node ready, deadline past":         {Facts{Pod: dead, OwnerKeeps: No, Node: node("True")}, want{Hold, 6}},
		"6 node unknown, deadline past":       {Facts{Pod: dead, OwnerKeeps: No}, want{Hold, 6}},
		"6 node without condition":            {Facts{Pod: dead, OwnerKeeps: No, Node: &corev1.Node{}}, want{Hold, 6}},
		"3 unfenced, all ended":               {Facts{Pod: pod(deleted(0, 0), states(mains, over())), OwnerKeeps: No, Unfenced: true}, want{Release, 3}},
		"3 unfenced, phase final":             {Facts{Pod: pod(deleted(0, 0), phase(corev1.PodFailed), states(mains, waiting())), OwnerKeeps: No, Unfenced: true}, want{Release, 3}},
		"3 unfenced, never scheduled":         {Facts{Pod: pod(deleted(0, 0), unscheduled), OwnerKeeps: No, Unfenced: true}, want{Release, 3}},
		"2 unfenced, owner keeps, all ended":  {Facts{Pod: pod(deleted(0, 0), states(mains, over())), OwnerKeeps: Yes, Unfenced: true}, want{Unwire, 2}},
		"4 unfenced, never scheduled":         {Facts{Pod: pod(deleted(20*time.Second, 30), unscheduled), OwnerKeeps: No, Unfenced: true}, want{Release, 4}},
		"5 unfenced, node gone":               {Facts{Pod: pod(deleted(0, 0), states(mains, running())), OwnerKeeps: No, Unfenced: true, NodeGone: true}, want{Release, 5}},
		"5 unfenced, node out of service":     {Facts{Pod: pod(deleted(0, 0), states(mains, running())), OwnerKeeps: No, Unfenced: true, Node: node("Unknown", corev1.TaintNodeOutOfService)}, want{Release, 5}},
		"6 unfenced, forced while running":    {Facts{Pod: pod(deleted(0, 0), states(mains, running())), OwnerKeeps: No, Unfenced: true, Node: node("True")}, want{Hold, 6}},
		"6 unfenced, owner keeps, forced":     {Facts{Pod: pod(deleted(0, 0), states(mains, running())), OwnerKeeps: Yes, Unfenced: true}, want{Hold, 6}},
		"6 unfenced, forced, not reported":    {Facts{Pod: pod(deleted(0, 0)), OwnerKeeps: No, Unfenced: true}, want{Hold, 6}},
		"6 unfenced, forced, may start":       {Facts{Pod: pod(deleted(0, 0), states(mains, waiting())), OwnerKeeps: No, Unfenced: true}, want{Hold, 6}},
		"6 unfenced, forced, sidecar runs":    {Facts{Pod: pod(deleted(0, 0), states(mains, over()), states(inits, running())), OwnerKeeps: No, Unfenced: true}, want{Hold, 6}},
		"6 unfenced, node not ready":          {Facts{Pod: dead, OwnerKeeps: No, Unfenced: true, Node: node("Unknown")}, want{Hold, 6}},
		"6 unfenced, only waiting":            {Facts{Pod: pod(deleted(20*time.Second, 30), states(mains, waiting())), OwnerKeeps: No, Unfenced: true}, want{Hold, 6}},
		"7 unfenced, ended":                   {Facts{Pod: pod(phase(corev1.PodSucceeded), states(mains, over())), OwnerKeeps: No, Unfenced: true}, want{Release, 7}},
		"7 unfenced, never admitted":          {Facts{Pod: pod(phase(corev1.PodFailed)), OwnerKeeps: No, Unfenced: true}, want{Release, 7}},
		"7 unfenced, called failed, runs":     {Facts{Pod: pod(phase(corev1.PodFailed), states(mains, running())), OwnerKeeps: No, Unfenced: true}, want{Hold, 7}},
		"7 unfenced, failed, out of service":  {Facts{Pod: pod(phase(corev1.PodFailed), states(mains, running())), OwnerKeeps: No, Unfenced: true, Node: node("Unknown", corev1.TaintNodeOutOfService)}, want{Release, 7}},
		"7 unfenced, failed, node gone":       {Facts{Pod: pod(phase(corev1.PodFailed), states(mains, running())), OwnerKeeps: No, Unfenced: true, NodeGone: true}, want{Release, 7}},
		"7 unfenced, failed, node not ready":  {Facts{Pod: pod(phase(corev1.PodFailed), states(mains, running())), OwnerKeeps: No, Unfenced: true, Node: node("Unknown")}, want{Hold, 7}},
		"7 succeeded":                         {Facts{Pod: pod(phase(corev1.PodSucceeded)), OwnerKeeps: No, Finalized: true}, want{Release, 7}},
		"7 failed without finalizer":          {Facts{Pod: pod(phase(corev1.PodFailed)), OwnerKeeps: No, Leased: true}, want{Release, 7}},
		"8 finalizer stripped":                {Facts{Pod: pod(phase(corev1.PodRunning)), OwnerKeeps: No, Leased: true}, want{RestoreFinalizer, 8}},
		"finalizer stripped, nothing leased":  {Facts{Pod: pod(phase(corev1.PodRunning)), OwnerKeeps: No}, want{Serve, 0}},
		"6 finalizer stripped while deleting": {Facts{Pod: pod(terminating...), OwnerKeeps: No, Leased: true}, want{Hold, 6}},
		"lives":                               {Facts{Pod: pod(phase(corev1.PodPending)), OwnerKeeps: No, Finalized: true}, want{Serve, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			c.facts.Now = now()
			v := Decide(c.facts)
			if d := cmp.Diff(c.want, want{v.Action, v.Row}); d != "" {
				t.Errorf("(-want +got):\n%s%s", d, v.Reason)
			}
			if v.Reason == "" {
				t.Error("no reason")
			}
		})
	}
	if v := Decide(Facts{Pod: pod(terminating...), OwnerKeeps: No, Now: now()}); v.After != 20*time.Second {
		t.Errorf("another look after %s, want 20s", v.After)
	}
}
