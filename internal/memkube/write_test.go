package memkube_test

import (
	"context"
	"net/http"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-net/berth/internal/memkube"
)

func TestCreate(t *testing.T) {
	_, cs := start(t, memkube.Options{})
	ctx := within(t)
	pods := cs.CoreV1().Pods("default")

	got := must[*corev1.Pod](t)(pods.Create(ctx, pod("a", finalized), metav1.CreateOptions{}))
	if got.UID == "" || got.ResourceVersion == "" || got.CreationTimestamp.IsZero() || got.Generation != 1 {
		t.Errorf("server fields missing: %+v", got.ObjectMeta)
	}
	if got.Status.Phase != corev1.PodPending || *got.Spec.TerminationGracePeriodSeconds != 30 {
		t.Errorf("defaults missing: %+v", got)
	}
	if _, err := pods.Create(ctx, pod("a"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: %v", err)
	}
	gen := pod("")
	gen.GenerateName = "web-"
	made := must[*corev1.Pod](t)(pods.Create(ctx, gen, metav1.CreateOptions{}))
	if !regexp.MustCompile(`^web-[a-z0-9]{5}$`).MatchString(made.Name) {
		t.Errorf("generated name %q", made.Name)
	}
	if _, err := pods.Create(ctx, pod(""), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("no name: %v", err)
	}
	if _, err := pods.Create(ctx, pod("g", gated, onNode), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("gate with node: %v", err)
	}
	dry := must[*corev1.Pod](t)(pods.Create(ctx, pod("dry"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))
	if dry.UID == "" || dry.ResourceVersion != "" {
		t.Errorf("dry run answered %+v", dry.ObjectMeta)
	}
	if _, err := pods.Get(ctx, "dry", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("dry run stored: %v", err)
	}
	if _, err := cs.CoreV1().Pods("nowhere").Create(ctx, pod("x", func(p *corev1.Pod) { p.Namespace = "" }), metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("missing namespace: %v", err)
	}
}

func TestUpdateAndConflicts(t *testing.T) {
	_, cs := start(t, memkube.Options{})
	ctx := within(t)
	pods := cs.CoreV1().Pods("default")
	first := must[*corev1.Pod](t)(pods.Create(ctx, pod("a"), metav1.CreateOptions{}))

	second := first.DeepCopy()
	second.Labels = map[string]string{"x": "1"}
	second.Status.Phase = corev1.PodRunning // must not come through the main resource
	second = must[*corev1.Pod](t)(pods.Update(ctx, second, metav1.UpdateOptions{}))
	if second.Status.Phase != corev1.PodPending || second.Generation != 1 {
		t.Errorf("update of the pod wrote %s, generation %d", second.Status.Phase, second.Generation)
	}
	same := must[*corev1.Pod](t)(pods.Update(ctx, second, metav1.UpdateOptions{}))
	if same.ResourceVersion != second.ResourceVersion {
		t.Errorf("update without change made version %s of %s", same.ResourceVersion, second.ResourceVersion)
	}
	stale := first.DeepCopy()
	stale.Labels = map[string]string{"x": "2"}
	if _, err := pods.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("stale update: %v", err)
	}
	stale.ResourceVersion = ""
	must[*corev1.Pod](t)(pods.Update(ctx, stale, metav1.UpdateOptions{}))
	stale.UID = "other"
	if _, err := pods.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of another incarnation: %v", err)
	}
	status := first.DeepCopy()
	status.ResourceVersion = ""
	status.Status.Phase = corev1.PodRunning
	status.Spec.Hostname = "ignored"
	got := must[*corev1.Pod](t)(pods.UpdateStatus(ctx, status, metav1.UpdateOptions{}))
	if got.Status.Phase != corev1.PodRunning || got.Spec.Hostname != "" {
		t.Errorf("status update wrote %s %q", got.Status.Phase, got.Spec.Hostname)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "default"}}
	must[*coordinationv1.Lease](t)(cs.CoordinationV1().Leases("default").Create(ctx, lease, metav1.CreateOptions{}))
	if _, err := cs.CoordinationV1().Leases("default").Update(ctx, lease, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("lease without resourceVersion: %v", err)
	}
}

func TestCustomResource(t *testing.T) {
	s, _ := start(t, memkube.Options{})
	ctx := within(t)
	api := subnets(t, s)
	in := subnet("s")
	in.Object["status"] = map[string]any{"v4availableIPs": "1"}
	made := must[*unstructured.Unstructured](t)(api.Create(ctx, in, metav1.CreateOptions{}))
	if diff := cmp.Diff(subnet("s").Object["spec"], made.Object["spec"]); diff != "" {
		t.Errorf("unknown fields (-want +got):\n%s", diff)
	}
	if made.Object["status"] != nil || made.GetGeneration() != 1 {
		t.Errorf("status at creation %v, generation %d", made.Object["status"], made.GetGeneration())
	}
	change := made.DeepCopy()
	change.SetLabels(map[string]string{"a": "b"})
	change.Object["status"] = map[string]any{"v4availableIPs": "2"}
	got := must[*unstructured.Unstructured](t)(api.UpdateStatus(ctx, change, metav1.UpdateOptions{}))
	if len(got.GetLabels()) != 0 || got.Object["status"] == nil || got.GetGeneration() != 1 {
		t.Errorf("status update wrote %v", got.Object)
	}
	got.Object["spec"] = map[string]any{"cidrBlock": "10.0.1.0/24"}
	delete(got.Object, "status")
	got = must[*unstructured.Unstructured](t)(api.Update(ctx, got, metav1.UpdateOptions{}))
	if got.Object["status"] == nil || got.GetGeneration() != 2 {
		t.Errorf("update wrote %v", got.Object)
	}
	got.SetResourceVersion("")
	if _, err := api.Update(ctx, got, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("update without resourceVersion: %v", err)
	}
	if _, err := api.Patch(ctx, "s", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{}); !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("strategic merge patch: %v", err)
	}
}

func TestPatch(t *testing.T) {
	cases := map[string]struct {
		typ   types.PatchType
		patch string
		sub   []string
		code  int32
		check func(*corev1.Pod) any
		want  any
	}{
		"json add": {typ: types.JSONPatchType, patch: `[{"op":"add","path":"/metadata/annotations","value":{"k":"v"}}]`,
			check: func(p *corev1.Pod) any { return p.Annotations }, want: map[string]string{"k": "v"}},
		"json test holds": {typ: types.JSONPatchType, patch: `[{"op":"test","path":"/metadata/labels/app","value":"web"},{"op":"remove","path":"/metadata/labels/app"}]`,
			check: func(p *corev1.Pod) any { return len(p.Labels) }, want: 0},
		"json test fails":    {typ: types.JSONPatchType, patch: `[{"op":"test","path":"/metadata/labels/app","value":"db"}]`, code: http.StatusUnprocessableEntity},
		"json missing path":  {typ: types.JSONPatchType, patch: `[{"op":"remove","path":"/metadata/annotations/none"}]`, code: http.StatusUnprocessableEntity},
		"json other uid":     {typ: types.JSONPatchType, patch: `[{"op":"replace","path":"/metadata/uid","value":"x"}]`, code: http.StatusUnprocessableEntity},
		"merge other uid":    {typ: types.MergePatchType, patch: `{"metadata":{"uid":"x","annotations":{"k":"v"}}}`, code: http.StatusUnprocessableEntity},
		"merge old version":  {typ: types.MergePatchType, patch: `{"metadata":{"resourceVersion":"1","annotations":{"k":"v"}}}`, code: http.StatusConflict},
		"merge":              {typ: types.MergePatchType, patch: `{"metadata":{"labels":{"app":null,"b":"c"}}}`, check: func(p *corev1.Pod) any { return p.Labels }, want: map[string]string{"b": "c"}},
		"strategic keeps":    {typ: types.StrategicMergePatchType, patch: `{"metadata":{"finalizers":["second"]}}`, check: func(p *corev1.Pod) any { return len(p.Finalizers) }, want: 2},
		"strategic status":   {typ: types.StrategicMergePatchType, patch: `{"status":{"podIP":"10.0.0.1"}}`, sub: []string{"status"}, check: func(p *corev1.Pod) any { return p.Status.PodIP }, want: "10.0.0.1"},
		"status on the main": {typ: types.MergePatchType, patch: `{"status":{"podIP":"10.0.0.1"}}`, check: func(p *corev1.Pod) any { return p.Status.PodIP }, want: ""},
		"gate goes":          {typ: types.JSONPatchType, patch: `[{"op":"remove","path":"/spec/schedulingGates"}]`, check: func(p *corev1.Pod) any { return []any{len(p.Spec.SchedulingGates), p.Generation} }, want: []any{0, int64(2)}},
		"gate comes":         {typ: types.MergePatchType, patch: `{"spec":{"schedulingGates":[{"name":"new"}]}}`, code: http.StatusUnprocessableEntity},
		"node":               {typ: types.MergePatchType, patch: `{"spec":{"nodeName":"n"}}`, code: http.StatusUnprocessableEntity},
		"apply":              {typ: types.ApplyYAMLPatchType, patch: `{}`, code: http.StatusUnsupportedMediaType},
		"nonsense":           {typ: types.JSONPatchType, patch: `{`, code: http.StatusBadRequest},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, cs := start(t, memkube.Options{})
			ctx := within(t)
			pods := cs.CoreV1().Pods("default")
			in := pod("a", finalized, gated)
			in.Labels = map[string]string{"app": "web"}
			before := must[*corev1.Pod](t)(pods.Create(ctx, in, metav1.CreateOptions{}))
			opts := metav1.PatchOptions{}
			if c.typ == types.ApplyYAMLPatchType {
				opts.FieldManager = "test"
			}
			got, err := pods.Patch(ctx, "a", c.typ, []byte(c.patch), opts, c.sub...)
			if c.code != 0 {
				if status, _ := err.(apierrors.APIStatus); status == nil || status.Status().Code != c.code {
					t.Fatalf("want code %d, got %v", c.code, err)
				}
				now := must[*corev1.Pod](t)(pods.Get(ctx, "a", metav1.GetOptions{}))
				if now.ResourceVersion != before.ResourceVersion {
					t.Error("a refused patch changed the pod")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, c.check(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDelete(t *testing.T) {
	ptr := func(n int64) *int64 { return &n }
	cases := map[string]struct {
		pod   *corev1.Pod
		opts  []metav1.DeleteOptions
		left  bool
		grace int64
	}{
		"unscheduled goes at once":          {pod: pod("a"), opts: []metav1.DeleteOptions{{}}},
		"on a node keeps its grace":         {pod: pod("a", onNode), opts: []metav1.DeleteOptions{{}}, left: true, grace: 30},
		"forced":                            {pod: pod("a", onNode), opts: []metav1.DeleteOptions{{GracePeriodSeconds: ptr(0)}}},
		"confirmed by the kubelet":          {pod: pod("a", onNode), opts: []metav1.DeleteOptions{{}, {GracePeriodSeconds: ptr(0)}}},
		"never longer":                      {pod: pod("a", onNode), opts: []metav1.DeleteOptions{{GracePeriodSeconds: ptr(5)}, {GracePeriodSeconds: ptr(50)}}, left: true, grace: 5},
		"shorter":                           {pod: pod("a", onNode), opts: []metav1.DeleteOptions{{}, {GracePeriodSeconds: ptr(5)}}, left: true, grace: 5},
		"finalizer holds an unscheduled":    {pod: pod("a", finalized), opts: []metav1.DeleteOptions{{}}, left: true},
		"finalizer holds after the kubelet": {pod: pod("a", finalized, onNode), opts: []metav1.DeleteOptions{{}, {GracePeriodSeconds: ptr(0)}}, left: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, cs := start(t, memkube.Options{})
			ctx := within(t)
			pods := cs.CoreV1().Pods("default")
			must[*corev1.Pod](t)(pods.Create(ctx, c.pod, metav1.CreateOptions{}))
			for _, o := range c.opts {
				if err := pods.Delete(ctx, "a", o); err != nil {
					t.Fatal(err)
				}
			}
			got, err := pods.Get(ctx, "a", metav1.GetOptions{})
			if !c.left {
				if !apierrors.IsNotFound(err) {
					t.Fatalf("still there: %v %v", got, err)
				}
				return
			}
			if err != nil || got.DeletionTimestamp == nil || *got.DeletionGracePeriodSeconds != c.grace {
				t.Fatalf("left %+v, %v", got.ObjectMeta, err)
			}
			if c.grace == 0 {
				releaseFinalizers(ctx, t, cs)
			}
		})
	}
}

// releaseFinalizers takes the last finalizer away; the pod has to go with it.
func releaseFinalizers(ctx context.Context, t *testing.T, cs kubernetes.Interface) {
	t.Helper()
	pods := cs.CoreV1().Pods("default")
	add := []byte(`{"metadata":{"finalizers":["berth.dev/network","late"]}}`)
	if _, err := pods.Patch(ctx, "a", types.MergePatchType, add, metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("new finalizer on a pod being deleted: %v", err)
	}
	remove := []byte(`[{"op":"test","path":"/metadata/finalizers/0","value":"berth.dev/network"},{"op":"remove","path":"/metadata/finalizers/0"}]`)
	if _, err := pods.Patch(ctx, "a", types.JSONPatchType, remove, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the last finalizer: %v", err)
	}
}

func TestDeletePreconditionsAndCollection(t *testing.T) {
	_, cs := start(t, memkube.Options{Namespaces: []string{"team"}})
	ctx := within(t)
	pods := cs.CoreV1().Pods("default")
	a := must[*corev1.Pod](t)(pods.Create(ctx, pod("a"), metav1.CreateOptions{}))
	other, version := types.UID("other"), "1"
	for name, pre := range map[string]*metav1.Preconditions{"uid": {UID: &other}, "version": {ResourceVersion: &version}} {
		if err := pods.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: pre}); !apierrors.IsConflict(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.UID, ResourceVersion: &a.ResourceVersion}}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"x", "y", "z"} {
		p := pod(name)
		p.Labels = map[string]string{"last": map[bool]string{true: "yes", false: "no"}[name == "z"]}
		must[*corev1.Pod](t)(pods.Create(ctx, p, metav1.CreateOptions{}))
	}
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "last=no"}); err != nil {
		t.Fatal(err)
	}
	left := must[*corev1.PodList](t)(pods.List(ctx, metav1.ListOptions{}))
	if len(left.Items) != 1 || left.Items[0].Name != "z" {
		t.Errorf("left %v", left.Items)
	}
	team := cs.CoreV1().Pods("team")
	held := pod("held", finalized)
	held.Namespace = "team"
	must[*corev1.Pod](t)(team.Create(ctx, held, metav1.CreateOptions{}))
	if err := cs.CoreV1().Namespaces().Delete(ctx, "team", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ns := must[*corev1.Namespace](t)(cs.CoreV1().Namespaces().Get(ctx, "team", metav1.GetOptions{}))
	if ns.Status.Phase != corev1.NamespaceTerminating {
		t.Errorf("namespace is %s", ns.Status.Phase)
	}
	late := pod("late")
	late.Namespace = "team"
	if _, err := team.Create(ctx, late, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("create in a terminating namespace: %v", err)
	}
	if _, err := team.Patch(ctx, "held", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.CoreV1().Namespaces().Get(ctx, "team", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("emptied namespace: %v", err)
	}
}

func TestBinding(t *testing.T) {
	_, cs := start(t, memkube.Options{})
	ctx := within(t)
	pods := cs.CoreV1().Pods("default")
	must[*corev1.Pod](t)(pods.Create(ctx, pod("a"), metav1.CreateOptions{}))
	must[*corev1.Pod](t)(pods.Create(ctx, pod("g", gated), metav1.CreateOptions{}))
	binding := func(name string) *corev1.Binding {
		return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"from": "binding"}},
			Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
	}
	if err := pods.Bind(ctx, binding("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := must[*corev1.Pod](t)(pods.Get(ctx, "a", metav1.GetOptions{}))
	if got.Spec.NodeName != "n1" || got.Annotations["from"] != "binding" || got.Status.Conditions[0].Status != corev1.ConditionTrue {
		t.Errorf("bound pod: %+v", got)
	}
	for name, want := range map[string]func(error) bool{"a": apierrors.IsConflict, "g": apierrors.IsConflict, "none": apierrors.IsNotFound} {
		if err := pods.Bind(ctx, binding(name), metav1.CreateOptions{}); !want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A program that runs by kubeconfig may send protobuf, over TLS.
func TestProtobufOverTLS(t *testing.T) {
	s, _ := start(t, memkube.Options{TLS: true})
	ctx := within(t)
	cfg := rest.CopyConfig(s.Config())
	cfg.ContentType, cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	cs := must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(cfg))
	pods := cs.CoreV1().Pods("default")
	must[*corev1.Pod](t)(pods.Create(ctx, pod("a", onNode), metav1.CreateOptions{}))
	grace := int64(7)
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
	got := must[*corev1.Pod](t)(pods.Get(ctx, "a", metav1.GetOptions{}))
	if got.Spec.NodeName != "n1" || *got.DeletionGracePeriodSeconds != 7 {
		t.Errorf("got %+v", got)
	}
}
