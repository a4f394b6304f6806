package chart

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"

	"github.com/berth-net/berth/tools/ship/render"
)

const repo = "../../.."

func load(t *testing.T) *helmchart.Chart {
	t.Helper()
	c, err := loader.LoadDir(Dir(repo))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// helm renders the chart as helm install does, and returns the objects.
func helm(t *testing.T, namespace string, values map[string]any) ([]render.Object, error) {
	t.Helper()
	c := load(t)
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "berth", Namespace: namespace, IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := (&engine.Engine{Strict: true}).Render(c, all)
	if err != nil {
		return nil, err
	}
	var out []render.Object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		objects, err := render.Decode([]byte(files[name]))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out = append(out, objects...)
	}
	return render.Sorted(out), nil
}

// unkept takes off what only the chart's kinds have.
func unkept(objects []render.Object) []render.Object {
	for _, o := range objects {
		if o.Kind() != "CustomResourceDefinition" {
			continue
		}
		meta := o["metadata"].(map[string]any)
		annotations := meta["annotations"].(map[string]any)
		delete(annotations, KeepAnnotation)
		if len(annotations) == 0 {
			delete(meta, "annotations")
		}
	}
	return objects
}

// For every combination of the choices, the chart's objects are kustomize's.
func TestChartIsKustomize(t *testing.T) {
	for _, v := range Variants() {
		values := v.Values()
		values["createNamespace"] = true
		name := []string{v.Mode(), v.Certificates(), map[bool]string{true: "monitored", false: "unmonitored"}[v.Monitoring()]}
		if v.BindHook() {
			name = append(name, componentHook)
		}
		t.Run(strings.Join(name, "/"), func(t *testing.T) {
			want, err := v.Objects(repo)
			if err != nil {
				t.Fatal(err)
			}
			got, err := helm(t, "berth-system", values)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(render.Sorted(want), unkept(got)); d != "" {
				t.Error(d)
			}
		})
	}
}

// The defaults are overlays/beside without the namespace, which Helm needs before.
func TestDefaults(t *testing.T) {
	want, err := render.Overlay(repo, "beside")
	if err != nil {
		t.Fatal(err)
	}
	want = slices.DeleteFunc(want, func(o render.Object) bool { return o.Kind() == "Namespace" })
	got, err := helm(t, "berth-system", nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(render.Sorted(want), unkept(got)); d != "" {
		t.Error(d)
	}
}

// failurePolicy is the component of that name: the webhooks of bindings keep theirs.
func TestFail(t *testing.T) {
	for _, mode := range []string{modeAlone, modeBeside} {
		for _, components := range [][]string{nil, {componentHook}} {
			want, err := render.Overlay(repo, mode+"-fail", components...)
			if err != nil {
				t.Fatal(err)
			}
			got, err := helm(t, "berth-system", map[string]any{"mode": mode, "failurePolicy": "Fail", "createNamespace": true,
				"bindHook": map[string]any{"enabled": len(components) > 0}})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(render.Sorted(want), unkept(got)); d != "" {
				t.Error(mode, components, d)
			}
		}
	}
}

// Every value arrives, and a release in another namespace has nothing of the usual one.
func TestValues(t *testing.T) {
	values := map[string]any{
		"image":             map[string]any{"repository": "example.org/a/berth", "tag": "v9", "pullPolicy": "Always"},
		"webhook":           map[string]any{"replicas": 5, "resources": map[string]any{"limits": map[string]any{"memory": "7Gi"}}},
		"worker":            map[string]any{"replicas": 4, "resources": map[string]any{"limits": map[string]any{"memory": "8Gi"}}},
		"priorityClassName": "first", "certificates": "cert-manager", "monitoring": true, "createNamespace": true,
		"network":    map[string]any{"defaultSubnet": "s1", "clusterRouter": "r1", "nodeSwitch": "n1", "podNicType": "internal-port"},
		"northbound": map[string]any{"address": "ssl:[fd00::1]:6641,ssl:[fd00::2]:6641"},
		"bindHook":   map[string]any{"enabled": true},
	}
	objects, err := helm(t, "elsewhere", values)
	if err != nil {
		t.Fatal(err)
	}
	all, err := render.Encode(objects)
	if err != nil {
		t.Fatal(err)
	}
	text := string(all)
	for want, times := range map[string]int{
		"image: example.org/a/berth:v9": 2, "imagePullPolicy: Always": 2, "replicas: 5": 1, "replicas: 4": 1, "memory: 7Gi": 1, "memory: 8Gi": 1,
		"priorityClassName: first": 2, "--default-ls=s1": 2, "--cluster-router=r1": 2, "--node-switch=n1": 2, "--pod-nic-type=internal-port": 2,
		"--ovn-nb-addr=ssl:[fd00::1]:6641,ssl:[fd00::2]:6641": 1, "system:serviceaccount:elsewhere:berth-webhook": 4,
		"--bind-hook=true": 1, "- berth-worker-leader.elsewhere.svc\n": 1,
		"- berth-webhook.elsewhere.svc\n": 1, "cert-manager.io/inject-ca-from: elsewhere/berth-webhook": 2,
	} {
		if n := strings.Count(text, want); n != times {
			t.Errorf("%q is there %d times, want %d", want, n, times)
		}
	}
	if strings.Contains(text, systemNamespace) {
		t.Errorf("%s is still there", systemNamespace)
	}
}

// Unknown keys, wrong types and unknown choices are refused, on every level.
func TestSchema(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"unknown key":         {"replicas": 2},
		"unknown image key":   {"image": map[string]any{"registry": "x"}},
		"unknown webhook key": {"webhook": map[string]any{"replica": 2}},
		"unknown worker key":  {"worker": map[string]any{"count": 2}},
		"unknown resource":    {"worker": map[string]any{"resources": map[string]any{"limit": map[string]any{}}}},
		"unknown network key": {"network": map[string]any{"subnet": "x"}},
		"unknown address key": {"northbound": map[string]any{"addr": "x"}},
		"unknown mode":        {"mode": "both"},
		"unknown source":      {"certificates": "vault"},
		"unknown policy":      {"failurePolicy": "ignore"},
		"no replica":          {"webhook": map[string]any{"replicas": 0}},
		"half a replica":      {"webhook": map[string]any{"replicas": "2"}},
		"text for a switch":   {"monitoring": "yes"},
		"name with a space":   {"network": map[string]any{"defaultSubnet": "a b"}},
		"address of no kind":  {"northbound": map[string]any{"address": "10.0.0.1:6641"}},
		"no address":          {"northbound": map[string]any{"address": ""}},
		"unknown hook key":    {"bindHook": map[string]any{"port": 9444}},
		"text for the hook":   {"bindHook": map[string]any{"enabled": "yes"}},
		"switch for the hook": {"bindHook": true},
	} {
		if _, err := helm(t, "berth-system", values); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The schema knows the keys of values.yaml and no others, and closes every object of fixed keys.
func TestSchemaKnowsValues(t *testing.T) {
	c := load(t)
	var schema map[string]any
	if err := json.Unmarshal(c.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	sameKeys(t, "values", schema, c.Values)
}

func sameKeys(t *testing.T, at string, schema, values map[string]any) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	if properties == nil {
		return // a map of free keys
	}
	if schema["additionalProperties"] != false {
		t.Errorf("%s takes unknown keys", at)
	}
	for k := range values {
		if properties[k] == nil {
			t.Errorf("%s.%s has no schema", at, k)
		}
	}
	for k, p := range properties {
		if k == "global" && at == "values" {
			continue
		}
		v, there := values[k]
		if !there {
			t.Errorf("%s.%s has no default", at, k)
			continue
		}
		if m, ok := v.(map[string]any); ok {
			sameKeys(t, at+"."+k, p.(map[string]any), m)
		}
	}
}

// The checked-in templates are what is generated now.
func TestFresh(t *testing.T) {
	want, err := Templates(repo)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(Dir(repo), "templates", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]byte{}
	for _, f := range files {
		body, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		got[filepath.Base(f)] = body
	}
	for name := range want {
		if string(got[name]) != string(want[name]) {
			t.Errorf("%s is stale: run make generate", name)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("%s is of no object any more: run make generate", name)
	}
}

// A condition is of as few choices as will do, and holds for the wanted variants of the scope alone.
func TestCondition(t *testing.T) {
	of := func(ok func(Variant) bool) (s set) {
		for _, v := range Variants() {
			if ok(v) {
				s |= 1 << v
			}
		}
		return s
	}
	alone := func(v Variant) bool { return v.Mode() == modeAlone }
	own := func(v Variant) bool { return v.Certificates() == certsOwn }
	for name, c := range map[string]struct {
		want, scope set
		text        string
	}{
		"one":                  {of(alone), allVariants, `eq .Values.mode "alone"`},
		"one left":             {of(func(v Variant) bool { return alone(v) && own(v) }), of(own), `eq .Values.mode "alone"`},
		"two":                  {of(func(v Variant) bool { return alone(v) && own(v) }), allVariants, `and (eq .Values.mode "alone") (eq .Values.certificates "self-managed")`},
		"three":                {of(func(v Variant) bool { return alone(v) && own(v) && v.BindHook() }), allVariants, `and (eq .Values.mode "alone") (eq .Values.certificates "self-managed") (.Values.bindHook.enabled)`},
		"four":                 {1 << bitBindHook, allVariants, ""},
		"one choice or other":  {of(func(v Variant) bool { return alone(v) || own(v) }), allVariants, ""},
		"what no choice tells": {0b0110_1001, allVariants, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := condition(c.want, c.scope); got != c.text || (err == nil) != (c.text != "") {
				t.Errorf("%q %v, want %q", got, err, c.text)
			}
		})
	}
}
