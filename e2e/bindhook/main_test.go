//go:build e2e

// Package bindhook runs a cluster whose API server asks the leading worker about bindings: pods become bound and routed in
// one write, and nobody's binding hangs on the worker.
//
// Invariant: a sampler looks all the time, and every test ends with empty accounts: no pod port and no IP record is left.
package bindhook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berth-net/berth/e2e/bench"
	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/sampling"
	"github.com/berth-net/berth/e2e/suite"
	"github.com/berth-net/berth/internal/sampler"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

const (
	served    = "demo"
	stranger  = "mallory"
	routedKey = "ovn.kubernetes.io/routed"
	// limit is how long something may take to come true.
	limit = 90 * time.Second
)

// harness is the cluster that all tests share, one after the other.
type harness struct {
	*cluster.Cluster
	api      client.WithWatch
	types    *runtime.Scheme
	nb       *ovn.Client
	sampling *sampling.Sampling
}

var shared struct {
	sync.Once
	h   *harness
	err error
}

func start(t *testing.T) *harness {
	t.Helper()
	shared.Do(func() { shared.h, shared.err = startCluster() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	h := shared.h
	t.Cleanup(func() {
		h.clear(t)
		suite.Broken(t, h.sampling)
		suite.Logs(t, h.LogDir(), "berth-w*")
	})
	return h
}

func startCluster() (*harness, error) {
	dir, err := os.MkdirTemp("", "bh") // short, for sockets
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	h := &harness{types: runtime.NewScheme()}
	h.Cluster, err = cluster.Start(ctx, cluster.Options{Dir: dir, Nodes: 2, Progress: os.Stderr, Bin: suite.Bin(), BindHook: true,
		WorkerArgs: []string{"--bind-hook-limit=900ms"}}) // whatever the machine is busy with
	if err != nil {
		return nil, err
	}
	log.SetLogger(logr.Discard())
	if err := errors.Join(clientgoscheme.AddToScheme(h.types), kubeovnv1.AddToScheme(h.types)); err != nil {
		return nil, err
	}
	if h.api, err = client.NewWithWatch(h.Config(), client.Options{Scheme: h.types}); err != nil {
		return nil, err
	}
	if h.nb, err = ovn.Connect(ctx, ovn.Config{Endpoints: []string{h.NBSocket()}}); err != nil {
		return nil, err
	}
	binder := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "binder"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods/binding", "bindings"}, Verbs: []string{"create"}}}}
	bound := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "binder"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "binder"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: stranger}}}
	if err := errors.Join(h.api.Create(ctx, binder), h.api.Create(ctx, bound)); err != nil {
		return nil, err
	}
	h.sampling, err = sampling.Start(ctx, h.Config(), h.NBSocket(), sampler.DefaultAllowed(30*time.Second))
	return h, err
}

func TestMain(m *testing.M) {
	suite.Main(m, func(ctx context.Context) error {
		h := shared.h
		if h == nil {
			return nil
		}
		h.nb.Close()
		return errors.Join(h.sampling.Stop(), h.Down(ctx))
	})
}

func until(ctx context.Context, t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	suite.Until(ctx, t, what, 100*time.Millisecond, limit, ok)
}

// as is a client that binds under another name.
func (h *harness) as(t *testing.T, user string) client.Client {
	t.Helper()
	config := h.Config()
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	c, err := client.New(config, client.Options{Scheme: h.types})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pod makes one that the scheduler leaves alone, unless it is changed.
func (h *harness) pod(t *testing.T, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: served, Name: name}, Spec: corev1.PodSpec{SchedulerName: "this-test",
		TerminationGracePeriodSeconds: new(int64(1)), Containers: []corev1.Container{{Name: "main", Image: "e2e.berth.dev/pause"}}}}
	for _, c := range change {
		c(p)
	}
	if err := h.api.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return p
}

func scheduled(p *corev1.Pod) { p.Spec.SchedulerName = "" }

// bind binds a pod as a user.
func (h *harness) bind(t *testing.T, user string, p *corev1.Pod, node string, annotations map[string]string) error {
	t.Helper()
	return h.as(t, user).SubResource("binding").Create(t.Context(), p, binding(p, node, annotations))
}

func binding(p *corev1.Pod, node string, annotations map[string]string) *corev1.Binding {
	return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Annotations: annotations},
		Target: corev1.ObjectReference{Kind: "Node", Name: node}}
}

// routed waits until the pod is routed, and tells that its record says where it is.
func (h *harness) routed(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	var p corev1.Pod
	until(t.Context(), t, name+" is routed", func(ctx context.Context) error {
		if err := h.api.Get(ctx, client.ObjectKey{Namespace: served, Name: name}, &p); err != nil {
			return err
		}
		if p.Annotations[routedKey] != "true" || p.Spec.NodeName == "" {
			return fmt.Errorf("on %q: %v", p.Spec.NodeName, p.Annotations)
		}
		var record kubeovnv1.IP
		if err := h.api.Get(ctx, client.ObjectKey{Name: name + "." + served}, &record); err != nil {
			return err
		}
		if record.Spec.NodeName != p.Spec.NodeName {
			return fmt.Errorf("it is on %s, its record says %s", p.Spec.NodeName, record.Spec.NodeName)
		}
		return nil
	})
	return &p
}

// answers gives how often workers have answered so.
func (h *harness) answers(ctx context.Context, outcome string) (float64, error) {
	var pods corev1.PodList
	if err := h.api.List(ctx, &pods, client.InNamespace("berth-system"), client.MatchingLabels{"app.kubernetes.io/name": "berth-worker"}); err != nil {
		return 0, err
	}
	sum := 0.0
	for _, p := range pods.Items {
		text, err := h.Client().CoreV1().Pods(p.Namespace).ProxyGet("http", p.Name, "8082", "metrics", nil).DoRaw(ctx)
		if err != nil {
			return 0, err
		}
		samples, err := bench.ParseMetrics(text)
		if err != nil {
			return 0, err
		}
		sum += samples.Sum("berth_bind_hook_requests_total", map[string]string{"outcome": outcome})
	}
	return sum, nil
}

// clear deletes all pods and waits for empty accounts.
func (h *harness) clear(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if err := h.api.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(served)); err != nil {
		t.Error(err)
	}
	until(ctx, t, "the accounts are empty", func(ctx context.Context) error {
		var pods corev1.PodList
		var records kubeovnv1.IPList
		if err := errors.Join(h.api.List(ctx, &pods, client.InNamespace(served)), h.api.List(ctx, &records, client.HasLabels{network.ClaimKey})); err != nil {
			return err
		}
		ports := 0
		for _, p := range h.nb.Ports() {
			if p.Type == "" && p.ExternalIDs[nb.KeyPod] != "" {
				ports++
			}
		}
		if len(pods.Items)+len(records.Items)+ports > 0 {
			return fmt.Errorf("%d pods, %d records, %d ports", len(pods.Items), len(records.Items), ports)
		}
		return nil
	})
}

// leads waits until a worker is there for the API server to ask.
func (h *harness) leads(t *testing.T) {
	t.Helper()
	until(t.Context(), t, "a worker answers about bindings", func(ctx context.Context) error {
		var p corev1.Pod
		p.Namespace, p.Name = served, "nobody"
		// A forged Binding of no pod: only who is asked can say why it is refused.
		err := h.as(t, stranger).SubResource("binding").Create(ctx, &p, binding(&p, "node-1", map[string]string{routedKey: "true"}))
		if !refused(err) {
			return fmt.Errorf("not refused by the guard: %w", err)
		}
		return nil
	})
}

// refused tells that the guard itself has said no.
func refused(err error) bool {
	status := apierrors.APIStatus(nil)
	return apierrors.IsForbidden(err) && errors.As(err, &status) && strings.Contains(status.Status().Message, "may not bind a pod with "+routedKey)
}
