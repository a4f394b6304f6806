package objects

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/berth-net/berth/tools/ship/render"
)

var update = flag.Bool("update", false, "write the list of rights anew")

func readFile(path string) (string, error) {
	body, err := os.ReadFile(filepath.Join(repo, path))
	return string(body), err
}

// Pods meet the restricted standard that their namespace enforces. Alone they run on the network of their nodes: of the
// standard they miss that and nothing else, and the namespace says why it is privileged.
func TestPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	eachOverlay(t, func(t *testing.T, overlay string, objects []render.Object) {
		namespace := all[corev1.Namespace](t, objects, "Namespace")[system]
		alone := strings.HasPrefix(overlay, "alone")
		level, missed := "restricted", []string(nil)
		if alone {
			level, missed = "privileged", []string{"host namespaces", "hostPort"}
		}
		if got := namespace.Labels[restrict]; got != level {
			t.Errorf("the namespace enforces %q, want %q", got, level)
		}
		if alone != (namespace.Annotations["berth.dev/why-privileged"] != "") {
			t.Errorf("why the namespace is privileged: %q", namespace.Annotations)
		}
		for name, d := range deployments(t, objects) {
			var got []string
			pod := d.Spec.Template
			for _, r := range evaluator.EvaluatePod(api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}, &pod.ObjectMeta, &pod.Spec) {
				if !r.Allowed {
					got = append(got, r.ForbiddenReason)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(missed, got); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	})
}

// More than the standard asks: nothing to write to, no file of the node, a bound on memory, a fixed image.
func TestContainers(t *testing.T) {
	eachOverlay(t, func(t *testing.T, _ string, objects []render.Object) {
		for name, d := range deployments(t, objects) {
			pod := d.Spec.Template.Spec
			c := pod.Containers[0]
			if len(pod.Containers) != 1 || len(pod.InitContainers) != 0 {
				t.Errorf("%s has more containers than its program", name)
			}
			if s := c.SecurityContext; s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
				t.Errorf("%s can write to its root", name)
			}
			for _, v := range pod.Volumes {
				if v.Secret == nil {
					t.Errorf("%s mounts %s, which is no Secret", name, v.Name)
				}
			}
			if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
				t.Errorf("%s: resources %v", name, c.Resources)
			}
			if !c.Resources.Limits.Cpu().IsZero() {
				t.Errorf("%s has a limit on CPU: it would be throttled in a storm", name)
			}
			if pod.PriorityClassName != "system-cluster-critical" {
				t.Errorf("%s: priority class %q", name, pod.PriorityClassName)
			}
			if _, tag, _ := strings.Cut(c.Image, ":"); tag == "" || tag == "latest" {
				t.Errorf("%s: image %s moves", name, c.Image)
			}
		}
	})
}

// Nobody but who watches over the list gives a program a right: it is in testdata/rbac.txt. Write it anew with -update,
// and read the difference.
func TestRights(t *testing.T) {
	var out strings.Builder
	for _, overlay := range []string{"beside", "beside-cert-manager"} {
		objects, err := render.Overlay(repo, overlay)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "== %s\n", overlay)
		for _, line := range rights(t, objects) {
			fmt.Fprintln(&out, line)
		}
	}
	const file = "testdata/rbac.txt"
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), out.String()); d != "" {
		t.Errorf("rights changed: look at each, then run the test with -update\n%s", d)
	}
}

// All overlays grant the same, but for cert-manager.
func TestRightsOfModes(t *testing.T) {
	of := func(overlay string) []string {
		objects, err := render.Overlay(repo, overlay)
		if err != nil {
			t.Fatal(err)
		}
		return rights(t, objects)
	}
	for a, b := range map[string]string{"alone": "beside", "alone-cert-manager": "beside-cert-manager", "alone-fail": "alone", "beside-fail": "beside"} {
		if d := cmp.Diff(of(a), of(b)); d != "" {
			t.Errorf("%s and %s differ: %s", a, b, d)
		}
	}
}

// rights lists who may do what, one right a line.
func rights(t *testing.T, objects []render.Object) []string {
	t.Helper()
	roles := map[string][]rbacv1.PolicyRule{}
	for _, o := range objects {
		switch o.Kind() {
		case "ClusterRole":
			roles["ClusterRole/"+o.Name()] = decode[rbacv1.ClusterRole](t, o).Rules
		case "Role":
			roles["Role/"+o.Name()] = decode[rbacv1.Role](t, o).Rules
		}
	}
	var out []string
	for _, o := range objects {
		if o.Kind() != "ClusterRoleBinding" && o.Kind() != "RoleBinding" {
			continue
		}
		b := decode[rbacv1.RoleBinding](t, o)
		rules, there := roles[b.RoleRef.Kind+"/"+b.RoleRef.Name]
		if !there {
			t.Errorf("%s binds no role", o.Key())
		}
		for _, s := range b.Subjects {
			if s.Kind != "ServiceAccount" || s.Namespace != system {
				t.Errorf("%s binds %v", o.Key(), s)
			}
			for _, r := range rules {
				out = append(out, ruleLines(s.Name, o.Namespace(), r)...)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func ruleLines(who, namespace string, r rbacv1.PolicyRule) []string {
	where := "everywhere"
	if namespace != "" {
		where = "in " + namespace
	}
	var out []string
	for _, g := range r.APIGroups {
		for _, res := range r.Resources {
			name := strings.TrimSuffix(res+"."+g, ".")
			if len(r.ResourceNames) > 0 {
				name += " named " + strings.Join(r.ResourceNames, ",")
			}
			for _, v := range r.Verbs {
				out = append(out, fmt.Sprintf("%s %s: %s %s", who, where, name, v))
			}
		}
	}
	return out
}

// No right is a wildcard, none leads to more rights, and Secrets are reached by name only.
func TestRightsAreLeast(t *testing.T) {
	eachOverlay(t, func(t *testing.T, overlay string, objects []render.Object) {
		for _, line := range rights(t, objects) {
			_, right, _ := strings.Cut(line, ": ")
			what, verb := right[:strings.LastIndex(right, " ")], right[strings.LastIndex(right, " ")+1:]
			resource, _, _ := strings.Cut(what, " ")
			switch {
			case strings.Contains(line, "*"):
				t.Errorf("wildcard: %s", line)
			case slices.Contains([]string{"escalate", "bind", "impersonate", "deletecollection", "break-glass"}, verb):
				t.Errorf("too much: %s", line)
			case strings.HasSuffix(resource, ".rbac.authorization.k8s.io"), strings.HasPrefix(resource, "serviceaccounts"), strings.HasPrefix(resource, "pods/exec"):
				t.Errorf("leads to more rights: %s", line)
			case resource == "pods" && slices.Contains([]string{"create", "update", "delete"}, verb):
				t.Errorf("pods are made by others: %s", line)
			case resource == "secrets" && (strings.Contains(line, "everywhere") || strings.HasSuffix(overlay, "cert-manager") ||
				verb != "create" && !strings.Contains(what, "named berth-webhook-tls")):
				t.Errorf("Secrets: %s", line)
			}
		}
	})
}
