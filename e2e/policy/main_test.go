//go:build e2e

// Package policy tests the shipped admission policies against a real kube-apiserver: who may change what of a pod and of
// the ledger, and that everything else stays free.
//
// Invariant: the policies under test are those of the rendered manifests, never a copy; every refusal is told from one of
// RBAC by the words of the policy, and every change that is allowed is read back.
package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/proc"
	"github.com/berth-net/berth/e2e/suite"
)

func TestMain(m *testing.M) {
	suite.Main(m, func(ctx context.Context) error {
		if shared.h == nil {
			return nil
		}
		return shared.h.Down(ctx)
	})
}

// harness is the control plane with the policies in force, which all tests share.
type harness struct {
	*cluster.Cluster
	dynamic dynamic.Interface
}

var shared struct {
	sync.Once
	h   *harness
	err error
}

func start(t *testing.T) *harness {
	t.Helper()
	shared.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
		defer cancel()
		shared.h, shared.err = startCluster(ctx)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.h
}

func startCluster(ctx context.Context) (*harness, error) {
	dir, err := os.MkdirTemp("", "bp") // short, for sockets
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.Options{Dir: dir, ControlPlaneOnly: true, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	h := &harness{Cluster: c}
	if h.dynamic, err = dynamic.NewForConfig(c.Config()); err != nil {
		return h, err
	}
	for name, label := range map[string]string{served: "enabled", lateServed: "late", foreign: "", "berth-system": ""} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if label != "" {
			ns.Labels = map[string]string{"berth.dev/inject": label}
		}
		if _, err := h.Client().CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return h, err
		}
	}
	if err := h.install(ctx); err != nil {
		return h, err
	}
	return h, h.awaitPolicies(ctx)
}

// resources are those of the base that the tests apply, and where they are.
func resources() map[string]schema.GroupVersionResource {
	of := func(group, plural string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural}
	}
	const registration = "admissionregistration.k8s.io"
	return map[string]schema.GroupVersionResource{
		"ConfigMap":                        of("", "configmaps"),
		"ClusterRole":                      of("rbac.authorization.k8s.io", "clusterroles"),
		"Role":                             of("rbac.authorization.k8s.io", "roles"),
		"ValidatingAdmissionPolicy":        of(registration, "validatingadmissionpolicies"),
		"ValidatingAdmissionPolicyBinding": of(registration, "validatingadmissionpolicybindings"),
	}
}

// rendered gives the objects of manifests/base.
func (h *harness) rendered(ctx context.Context) ([]*unstructured.Unstructured, error) {
	text, err := proc.Run(ctx, "", h.Kubectl(), "kustomize", filepath.Join(h.Repo, "manifests", "base"))
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := d.Decode(&u.Object); err != nil {
			break
		}
		out = append(out, u)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("manifests/base renders nothing")
	}
	return out, nil
}

// install applies the policies and the programs' roles.
func (h *harness) install(ctx context.Context) error {
	objs, err := h.rendered(ctx)
	if err != nil {
		return err
	}
	policies := 0
	for _, u := range objs {
		gvr, ok := resources()[u.GetKind()]
		if !ok {
			continue
		}
		var client dynamic.ResourceInterface = h.dynamic.Resource(gvr)
		if u.GetNamespace() != "" {
			client = h.dynamic.Resource(gvr).Namespace(u.GetNamespace())
		}
		if _, err := client.Create(ctx, u, metav1.CreateOptions{}); err != nil {
			return err
		}
		if u.GetKind() == "ValidatingAdmissionPolicy" {
			policies++
		}
	}
	if policies != 4 {
		return fmt.Errorf("%d policies are shipped, the tests know 4", policies)
	}
	return h.grant(ctx)
}

// grant gives the users of the tests every right that RBAC knows but the break-glass verb: what is refused then is refused
// by a policy. The program under test gets what is shipped for it.
func (h *harness) grant(ctx context.Context) error {
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	prog := []rbacv1.Subject{{Kind: "User", Name: program}}
	for _, shipped := range []string{"berth-webhook", "berth-webhook-bundle"} {
		if _, err := h.Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: shipped + "-program"},
			RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: shipped}, Subjects: prog}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if _, err := h.Client().RbacV1().RoleBindings("berth-system").Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "program"},
		RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "berth-webhook"}, Subjects: prog}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for role, rules := range map[string][]rbacv1.PolicyRule{
		"everything":  {{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: verbs}},
		"break-glass": {{APIGroups: []string{"berth.dev"}, Resources: []string{"addressblocks"}, Verbs: []string{"break-glass"}}},
	} {
		users := []string{rescuer}
		if role == "everything" {
			users = everybody()
		}
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role}}
		for _, u := range users {
			b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: "User", Name: u})
		}
		r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: role}, Rules: rules}
		if _, err := h.Client().RbacV1().ClusterRoles().Create(ctx, r, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := h.Client().RbacV1().ClusterRoleBindings().Create(ctx, b, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// awaitPolicies returns when each policy refuses: the API server takes a moment to put them in force.
func (h *harness) awaitPolicies(ctx context.Context) error {
	mallory := as(h.Config(), stranger)
	kube, err := kubernetes.NewForConfig(mallory)
	if err != nil {
		return err
	}
	d, err := dynamic.NewForConfig(mallory)
	if err != nil {
		return err
	}
	if _, err := h.Client().CoreV1().Pods(served).Create(ctx, pod("probe", nil), metav1.CreateOptions{}); err != nil {
		return err
	}
	dry := []string{metav1.DryRunAll}
	probes := map[string]func() error{
		"berth-pod-update": func() error {
			_, err := kube.CoreV1().Pods(served).Patch(ctx, "probe", types.MergePatchType, annotate(claimKey, "x"), metav1.PatchOptions{DryRun: dry})
			return err
		},
		"berth-pod-binding": func() error {
			return kube.CoreV1().Pods(served).Bind(ctx, binding("probe", claimKey), metav1.CreateOptions{DryRun: dry})
		},
		"berth-pod-create": func() error {
			_, err := kube.CoreV1().Pods(served).Create(ctx, pod("copy", map[string]string{routedKey: "true"}), metav1.CreateOptions{DryRun: dry})
			return err
		},
		"berth-ledger": func() error {
			_, err := d.Resource(blocks()).Create(ctx, block("probe"), metav1.CreateOptions{DryRun: dry})
			return err
		},
	}
	for policy, probe := range probes {
		var last error
		if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			last = probe()
			return refusedBy(last, policy), nil
		}); err != nil {
			return fmt.Errorf("%s is not in force, it answered %w", policy, last)
		}
	}
	return nil
}

// refusedBy tells a refusal of that policy from all others.
func refusedBy(err error, policy string) bool {
	return err != nil && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) &&
		strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+policy+"'") && !strings.Contains(err.Error(), "cost budget") &&
		strings.Contains(err.Error(), "denied request: ")
}

// as gives the access of another user, who is in the groups that all are in and in those named.
func as(c *rest.Config, user string, groups ...string) *rest.Config {
	c = rest.CopyConfig(c)
	c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append([]string{"system:authenticated"}, groups...)}
	return c
}

func (h *harness) kubeAs(t *testing.T, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	kube, err := kubernetes.NewForConfig(as(h.Config(), user, groups...))
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

func annotate(pairs ...string) []byte {
	annotations := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		annotations[pairs[i]] = pairs[i+1]
		if pairs[i+1] == removed {
			annotations[pairs[i]] = nil
		}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		panic(err) // maps of strings can always be written
	}
	return body
}
