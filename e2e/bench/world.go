package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-net/berth/e2e/await"
	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/pkg/network"
)

const (
	systemNamespace = "berth-system"
	webhookName     = "berth-webhook"
	workerName      = "berth-worker"
	ourPrefix       = "berth-"
	statusPatch     = types.StrategicMergePatchType
	patience        = 2 * time.Minute
	poll            = 100 * time.Millisecond
	webhookMetrics  = 8080
	webhookHealth   = 8081
	workerMetrics   = 8082
)

// World is a local cluster with nodes that nobody runs, and namespaces of its own.
type World struct {
	*cluster.Cluster
	client  kubernetes.Interface
	objects dynamic.Interface
	audit   *auditLog
	nodes   []string
	out     io.Writer
	dir     string
	stop    context.CancelFunc
}

// Options choose a world.
type Options struct {
	// Out hears of progress.
	Out io.Writer
	// Tight is how many addresses the small subnet has.
	Tight int
	// Bin is the directory of this work tree's programs; empty: bin.
	Bin string
	// BindHook has the API server ask the worker about bindings.
	BindHook bool
}

// Start starts the cluster.
func Start(ctx context.Context, o Options) (*World, error) {
	dir, err := os.MkdirTemp("", "bb") // short, for sockets
	if err != nil {
		return nil, fmt.Errorf("make a directory for the cluster: %w", err)
	}
	policy, log := filepath.Join(dir, "audit.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, fmt.Errorf("write the policy of the audit log: %w", err)
	}
	choice := cluster.Options{Dir: filepath.Join(dir, "c"), Nodes: 2, Bin: o.Bin, Progress: o.Out, BindHook: o.BindHook,
		APIServerArgs: []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log, "--audit-log-maxsize=2000"}}
	c, err := cluster.Start(ctx, choice)
	if err != nil {
		return nil, err
	}
	w := &World{Cluster: c, audit: &auditLog{path: log}, out: o.Out, dir: dir, stop: func() {}}
	if err := w.furnish(ctx, o.Tight); err != nil {
		return nil, errors.Join(err, w.Stop(context.WithoutCancel(ctx)))
	}
	return w, nil
}

// Stop takes the cluster down. The logs of one that is of no more use go with it.
func (w *World) Stop(ctx context.Context) error {
	w.stop()
	return errors.Join(w.Down(ctx), os.RemoveAll(w.dir))
}

func (w *World) say(format string, args ...any) {
	_, _ = fmt.Fprintf(w.out, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05.0")}, args...)...)
}

// furnish makes clients, nodes, networks and namespaces.
func (w *World) furnish(ctx context.Context, tight int) error {
	config := w.Config()
	config.QPS = -1 // it does not hold itself back
	config.WarningHandler = rest.NoWarnings{}
	config.UserAgent = authorBench
	var err error
	if w.objects, err = dynamic.NewForConfig(config); err != nil {
		return fmt.Errorf("client of the API server: %w", err)
	}
	config.ContentType = runtime.ContentTypeProtobuf // as the controllers' clients
	if w.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("client of the API server: %w", err)
	}
	small, err := tightSubnet(tight)
	if err != nil {
		return err
	}
	for name, s := range map[string]subnetRange{roomyName: {CIDR: "10.64.0.0/16"}, tightName: small} {
		if err := w.makeNetwork(ctx, name, s); err != nil {
			return err
		}
	}
	if err := w.makeNodes(ctx); err != nil {
		return err
	}
	return w.awaitBerth(ctx)
}

// Names of the namespaces and of their subnets: one with room, and one with just so many addresses.
const (
	roomyName = "bench"
	tightName = "bench-tight"
)

func subnets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "subnets"}
}

func blocks() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "berth.dev", Version: "v1alpha1", Resource: "addressblocks"}
}

func (w *World) makeNetwork(ctx context.Context, name string, s subnetRange) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{network.LabelInject: network.InjectEnabled}}}
	if _, err := w.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make namespace %s: %w", name, err)
	}
	if _, err := w.objects.Resource(subnets()).Create(ctx, s.object(name), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make subnet %s: %w", name, err)
	}
	return nil
}

// until waits until something is so, and tells why it isn't when time is up.
func until(ctx context.Context, what string, so func(context.Context) error) error {
	return await.Until(ctx, what, poll, patience, so)
}

// awaitBerth returns when both programs are there, a pod of each namespace would get an address, and the nodes are joined.
func (w *World) awaitBerth(ctx context.Context) error {
	for _, name := range []string{webhookName, workerName} {
		err := until(ctx, "deployment "+name, func(ctx context.Context) error {
			d, err := w.client.AppsV1().Deployments(systemNamespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if s := d.Status; s.ObservedGeneration < d.Generation || s.AvailableReplicas != *d.Spec.Replicas || s.Replicas != *d.Spec.Replicas || *d.Spec.Replicas == 0 {
				return fmt.Errorf("%d of %d replicas are available", s.AvailableReplicas, *d.Spec.Replicas)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, ns := range []string{roomyName, tightName} {
		err := until(ctx, "an address for a pod of namespace "+ns, func(ctx context.Context) error {
			p, err := w.client.CoreV1().Pods(ns).Create(ctx, pod("trial", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil && p.Annotations[network.ClaimKey] != network.ClaimPreview {
				err = errors.New("the webhook was not asked")
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return w.awaitJoined(ctx)
}

// WithoutBerth takes Berth out of the cluster: its programs, and all by which the API server asks for it.
func (w *World) WithoutBerth(ctx context.Context) error {
	w.say("taking Berth out")
	a := w.client.AdmissionregistrationV1()
	all := metav1.ListOptions{}
	mutating, err1 := a.MutatingWebhookConfigurations().List(ctx, all)
	validating, err2 := a.ValidatingWebhookConfigurations().List(ctx, all)
	policies, err3 := a.ValidatingAdmissionPolicies().List(ctx, all)
	bindings, err4 := a.ValidatingAdmissionPolicyBindings().List(ctx, all)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return fmt.Errorf("find what asks for Berth: %w", err)
	}
	var errs []error
	remove := func(name string, del func(context.Context, string, metav1.DeleteOptions) error) {
		if strings.HasPrefix(name, ourPrefix) {
			errs = append(errs, del(ctx, name, metav1.DeleteOptions{}))
		}
	}
	for _, o := range mutating.Items {
		remove(o.Name, a.MutatingWebhookConfigurations().Delete)
	}
	for _, o := range validating.Items {
		remove(o.Name, a.ValidatingWebhookConfigurations().Delete)
	}
	for _, o := range bindings.Items {
		remove(o.Name, a.ValidatingAdmissionPolicyBindings().Delete)
	}
	for _, o := range policies.Items {
		remove(o.Name, a.ValidatingAdmissionPolicies().Delete)
	}
	for _, name := range []string{webhookName, workerName} {
		_, err := w.client.AppsV1().Deployments(systemNamespace).Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{})
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take Berth out: %w", err)
	}
	return until(ctx, "the end of Berth's pods", func(ctx context.Context) error {
		l, err := w.client.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(l.Items) > 0 {
			err = fmt.Errorf("%d are left", len(l.Items))
		}
		return err
	})
}

// WithBerth puts Berth back.
func (w *World) WithBerth(ctx context.Context) error {
	w.say("putting Berth back")
	if err := w.Apply(ctx, filepath.Join(w.Dir, "manifests")); err != nil {
		return err
	}
	return w.awaitBerth(ctx)
}

// addressesOf gives where the replicas of one of our programs are, sorted.
func (w *World) addressesOf(ctx context.Context, deployment string) ([]string, error) {
	l, err := w.client.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("find the pods of %s: %w", deployment, err)
	}
	var out []string
	for _, p := range l.Items {
		if strings.HasPrefix(p.Name, deployment+"-") && p.Status.PodIP != "" {
			out = append(out, p.Status.PodIP)
		}
	}
	slices.Sort(out)
	return out, nil
}

// scrape reads the metrics of all replicas of a program.
func (w *World) scrape(ctx context.Context, deployment string, port int) (Samples, error) {
	ips, err := w.addressesOf(ctx, deployment)
	if err != nil {
		return nil, err
	}
	var out Samples
	for _, ip := range ips {
		text, err := fetch(ctx, fmt.Sprintf("http://%s:%d/metrics", ip, port))
		if err != nil {
			return nil, err
		}
		ss, err := ParseMetrics(text)
		if err != nil {
			return nil, err
		}
		out = append(out, ss...)
	}
	return out, nil
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", url, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read %s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}
