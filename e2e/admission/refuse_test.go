//go:build e2e

package admission

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
)

// stormTime is how long tests of bounds press on: ten minutes when there is time.
func stormTime() time.Duration {
	if os.Getenv("BERTH_LONG") != "" {
		return 10 * time.Minute
	}
	return time.Minute
}

// quota lets a namespace have so many pods, and returns when the API server holds to it.
func (w *world) quota(t *testing.T, namespace, pods string) {
	t.Helper()
	hard := corev1.ResourceList{corev1.ResourcePods: apiresource.MustParse(pods)}
	quotas := w.Client().CoreV1().ResourceQuotas(namespace)
	if _, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await(t, "the quota is counted", func() bool {
		q, err := quotas.Get(t.Context(), "pods", metav1.GetOptions{})
		return err == nil && cmp.Equal(q.Status.Hard, hard) && len(q.Status.Used) > 0
	})
}

// A creation that a later webhook refuses leaves nothing behind.
func TestLaterWebhookRefuses(t *testing.T) {
	w := start(t)
	const ns = "later"
	w.enter(t, space{name: ns, cidr: "10.208.0.0/24", labels: map[string]string{otherLabel: "yes"}})
	w.other.do(t, ns, refusing("not on my watch"))
	w.refused(t, ns, "not on my watch")
	w.other.rest(ns)
	w.create(t, ns, pod("one", nil))
	w.accounts(t)
	w.clear(t, ns)
}

// refused creates a pod that somebody after us refuses, and sees its lease come and go.
func (w *world) refused(t *testing.T, ns, why string) {
	t.Helper()
	_, err := w.Client().CoreV1().Pods(ns).Create(t.Context(), pod("one", nil), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), why) {
		t.Fatalf("%v, want a refusal that says %q", err, why)
	}
	ls := w.mustLeases(t, ns)
	if len(ls) != 1 || ls[0].PodUID != "" {
		t.Errorf("leases %v, want one that is bound to nobody: the case was not there", ls)
	}
	w.accounts(t)
	if ls := w.mustLeases(t, ns); len(ls) != 0 {
		t.Errorf("leases %v are left", ls)
	}
}

// A creation that a policy refuses leaves nothing behind.
func TestPolicyRefuses(t *testing.T) {
	w := start(t)
	const ns = "policy"
	w.enter(t, space{name: ns, cidr: "10.209.0.0/24"})
	policies := w.Client().AdmissionregistrationV1()
	_, err := policies.ValidatingAdmissionPolicies().Create(t.Context(), &registration.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "no-pods"}, Spec: registration.ValidatingAdmissionPolicySpec{
			MatchConstraints: &registration.MatchResources{ResourceRules: []registration.NamedRuleWithOperations{{
				RuleWithOperations: registration.RuleWithOperations{Operations: []registration.OperationType{registration.Create},
					Rule: registration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}},
			Validations: []registration.Validation{{Expression: "false", Message: "no pods today"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = policies.ValidatingAdmissionPolicyBindings().Create(t.Context(), &registration.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "no-pods"}, Spec: registration.ValidatingAdmissionPolicyBindingSpec{PolicyName: "no-pods",
			ValidationActions: []registration.ValidationAction{registration.Deny},
			MatchResources: &registration.MatchResources{NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.await(t, "the policy holds", func() bool {
		_, err := w.Client().CoreV1().Pods(ns).Create(t.Context(), pod("dry", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "no pods today")
	})
	w.refused(t, ns, "no pods today")
	w.clear(t, ns)
}

// shippedAge runs the worker at its shipped pace until the test ends: the bounds rest on it.
func (w *world) shippedAge(t *testing.T) {
	t.Helper()
	if err := w.work(t.Context(), lifecycle.DefaultPendingAge); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.work(context.Background(), pendingAge); err != nil {
			t.Error(err)
		}
	})
}

// B39: a Deployment of 50 under a quota of one pod, on a subnet with 13 addresses. Meanwhile another namespace always gets
// an address there.
func TestB39Quota(t *testing.T) {
	w := start(t)
	const ns, beside = "quota", "quota-beside"
	w.enter(t, space{name: ns, cidr: "10.210.0.0/28", beside: []string{beside}})
	w.shippedAge(t)
	w.quota(t, ns, "1")
	w.deploy(t, ns, "web", 50, "25%", "25%")
	w.await(t, "one pod is there", func() bool { return len(w.pods(t, ns)) == 1 })
	end, most, tries := time.Now().Add(stormTime()), 0, 0
	var failed []error
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for ; time.Now().Before(end); <-tick.C {
		name := fmt.Sprintf("p%d", tries)
		tries++
		if p, err := w.Client().CoreV1().Pods(beside).Create(t.Context(), pod(name, nil), metav1.CreateOptions{}); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", name, err))
		} else {
			w.kill(t, beside, p.Name)
		}
		most = max(most, w.pinned(t, ns))
	}
	t.Logf("at most %d leases in %s; the other namespace tried %d times", most, stormTime(), tries)
	starved(t, failed)
	w.clear(t, ns, beside)
}

// B39: fifty creations a second that a quota refuses, on a /24: every creation of another namespace succeeds, and what the
// refused ones pin is bounded.
func TestB39StormGuard(t *testing.T) {
	w := start(t)
	const ns, beside, rate, wanted = "storm", "storm-beside", 50, 100
	w.enter(t, space{name: ns, cidr: "10.211.0.0/24", beside: []string{beside}})
	w.shippedAge(t)
	w.quota(t, ns, "1")
	w.create(t, ns, pod("the-one", nil))
	kube, err := kubernetes.NewForConfig(w.config(10000))
	if err != nil {
		t.Fatal(err)
	}
	s := &storm{kube: kube, namespace: ns}
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	n, most := int(stormTime().Seconds())*rate, 0
	var took []time.Duration
	var failed []error
	for i := range n {
		<-tick.C
		s.calls.Go(func() { s.create(t, i) })
		if i%(n/wanted) == 0 {
			asked := time.Now()
			_, err := w.Client().CoreV1().Pods(beside).Create(t.Context(), pod(fmt.Sprintf("p%d", i), nil), metav1.CreateOptions{})
			if err != nil {
				failed = append(failed, fmt.Errorf("after %d creations of the storm: %w", i, err))
			}
			took = append(took, time.Since(asked))
		}
		if i%rate == 0 {
			most = max(most, w.pinned(t, ns))
		}
	}
	s.calls.Wait()
	t.Logf("%d refused by the quota, %d told to come later, %d others; at most %d leases; the other namespace p50 %s, p99 %s",
		s.forbidden.Load(), s.told.Load(), s.others.Load(), most, percentile(took, 50), percentile(took, 99))
	starved(t, failed)
	if got := len(w.pods(t, beside)); got != wanted {
		t.Errorf("%d pods of the other namespace, want %d", got, wanted)
	}
	if s.told.Load() == 0 {
		t.Error("nobody was told to come later: the case was not there")
	}
	w.clear(t, ns, beside)
}

// storm is creations of pods that fail.
type storm struct {
	kube                    kubernetes.Interface
	namespace               string
	calls                   sync.WaitGroup
	forbidden, told, others atomic.Int64
}

// create makes a pod, and doesn't try again when it is told to: a storm has no manners.
func (s *storm) create(t *testing.T, i int) {
	err := s.kube.CoreV1().RESTClient().Post().Namespace(s.namespace).Resource("pods").MaxRetries(0).
		Body(pod(fmt.Sprintf("s%d", i), nil)).Do(t.Context()).Error()
	switch {
	case apierrors.IsForbidden(err):
		s.forbidden.Add(1)
	case apierrors.IsTooManyRequests(err):
		s.told.Add(1)
	default:
		if s.others.Add(1) <= 3 {
			t.Logf("a creation of the storm: %v", err)
		}
	}
}

// starved fails when creations of the other namespace failed.
func starved(t *testing.T, failed []error) {
	t.Helper()
	if len(failed) > 0 {
		t.Errorf("%d creations of the other namespace failed, the first: %v", len(failed), failed[0])
	}
}

// pinned counts the leases of a namespace.
func (w *world) pinned(t *testing.T, namespace string) int {
	t.Helper()
	n := 0
	for _, l := range w.mustLeases(t, "") {
		if l.Owner == ipam.PodOwner(namespace).String() {
			n++
		}
	}
	return n
}
