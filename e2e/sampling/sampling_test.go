package sampling

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDone(t *testing.T) {
	deleted := func(grace int64) metav1.ObjectMeta {
		return metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}, DeletionGracePeriodSeconds: &grace}
	}
	placed := corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{}}}
	for name, c := range map[string]struct {
		pod  corev1.Pod
		want bool
	}{
		"runs":                    {corev1.Pod{Spec: placed, Status: corev1.PodStatus{Phase: corev1.PodRunning}}, false},
		"has ended":               {corev1.Pod{Spec: placed, Status: corev1.PodStatus{Phase: corev1.PodFailed}}, true},
		"is being deleted":        {corev1.Pod{ObjectMeta: deleted(2), Spec: placed}, false},
		"its deletion is final":   {corev1.Pod{ObjectMeta: deleted(0), Spec: placed}, true},
		"deleted before any node": {corev1.Pod{ObjectMeta: deleted(2)}, true},
		"waits for a node":        {corev1.Pod{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := done(&c.pod); got != c.want {
				t.Errorf("done: %v", got)
			}
		})
	}
}
