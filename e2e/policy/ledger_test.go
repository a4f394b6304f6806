//go:build e2e

package policy

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
)

// The ledger is written by Berth and by holders of the break-glass verb; Kube-OVN has nothing to do with it.
func TestLedger(t *testing.T) {
	h := start(t)
	refused := map[string]bool{ovn: true, ovnCNI: true}
	for _, u := range strangers() {
		refused[u] = true
	}
	for _, u := range []string{webhook, worker, rescuer} {
		refused[u] = false
	}
	for user, refused := range refused {
		t.Run(strings.ReplaceAll(user, ":", "-"), func(t *testing.T) {
			d, err := dynamic.NewForConfig(as(h.Config(), user))
			if err != nil {
				t.Fatal(err)
			}
			mine, name := d.Resource(blocks()), "s-0a100000"
			if _, err := h.dynamic.Resource(blocks()).Create(t.Context(), block(name), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = h.dynamic.Resource(blocks()).Delete(t.Context(), name, metav1.DeleteOptions{}) }()
			check := func(what string, err error) {
				t.Helper()
				if refused && !refusedBy(err, "berth-ledger") || !refused && err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			_, err = mine.Create(t.Context(), block("s-0a100040"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			check("create", err)
			_, err = mine.Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"revision":2}}`), metav1.PatchOptions{})
			check("change", err)
			_, err = mine.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"berth.dev/subnet":"x"}}}`), metav1.PatchOptions{})
			check("relabel", err)
			check("delete all", mine.DeleteCollection(t.Context(), metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}, metav1.ListOptions{}))
			check("delete", mine.Delete(t.Context(), name, metav1.DeleteOptions{}))
			if _, err := mine.List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Errorf("reading: %v", err)
			}
		})
	}
}

// The parameters can be edited: a user and a group that are put there become keepers, and nobody of a name that is a part
// of one. Without the parameters nothing of a pod is refused, and the ledger still is.
func TestParameters(t *testing.T) {
	h := start(t)
	h.stored(t, served, wired("params"))
	params := h.Client().CoreV1().ConfigMaps("berth-system")
	was, err := params.Get(t.Context(), "berth-policy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	try := func(user string, groups ...string) error {
		_, err := h.kubeAs(t, user, groups...).CoreV1().Pods(served).Patch(t.Context(), "params", types.MergePatchType, annotate(claimKey, otherClaim),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return ok(), nil }); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	body := []byte(`{"data":{"users":"` + member + `\n","groups":"net-admins\n"}}`)
	if _, err := params.Patch(t.Context(), "berth-policy", types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await("a user of the parameters", func() bool { return try(member) == nil })
	await("a group of the parameters", func() bool { return try(stranger, "net-admins") == nil })
	if err := try(ovn); !refusedBy(err, "berth-pod-update") {
		t.Errorf("a user that was taken out: %v", err)
	}
	if err := try(stranger, "net"); !refusedBy(err, "berth-pod-update") {
		t.Errorf("a group by a part of its name: %v", err)
	}
	if err := params.Delete(t.Context(), "berth-policy", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await("without parameters", func() bool { return try(stranger) == nil })
	d, err := dynamic.NewForConfig(as(h.Config(), stranger))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Resource(blocks()).Create(t.Context(), block("x"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); !refusedBy(err, "berth-ledger") {
		t.Errorf("the ledger without parameters: %v", err)
	}
	was.ResourceVersion, was.UID = "", ""
	if _, err := params.Create(t.Context(), was, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("parameters back", func() bool { return refusedBy(try(stranger), "berth-pod-update") && try(ovn) == nil })
}

// The webhook configurations and policies state what the API server would fill in: applying them again changes nothing.
func TestNothingIsLeftToDefaults(t *testing.T) {
	h := start(t)
	objs, err := h.rendered(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, u := range objs {
		switch u.GetKind() {
		case "ValidatingWebhookConfiguration":
			var want admissionv1.ValidatingWebhookConfiguration
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &want); err != nil {
				t.Fatal(err)
			}
			got, err := h.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &want, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want.Webhooks, got.Webhooks); d != "" {
				t.Errorf("(-shipped +stored):\n%s", d)
			}
		case "ValidatingAdmissionPolicy":
			var want admissionv1.ValidatingAdmissionPolicy
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &want); err != nil {
				t.Fatal(err)
			}
			got, err := h.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), u.GetName(), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want.Spec, got.Spec); d != "" {
				t.Errorf("%s (-shipped +stored):\n%s", u.GetName(), d)
			}
		default:
			continue
		}
		seen++
	}
	if seen != 5 {
		t.Errorf("looked at %d objects, want 5", seen)
	}
}
