package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// patience is how long the demo waits for anything, unless it is told otherwise.
const patience = 40 * time.Second

// ErrLeft says that something was not released.
var ErrLeft = errors.New("not everything was released")

func newScheme(adds ...func(*runtime.Scheme) error) (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range adds {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func until(ctx context.Context, what string, patience time.Duration, ok func() (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(context.Context) (bool, error) { return ok() })
	if err != nil {
		return fmt.Errorf("waiting until %s: %w", what, err)
	}
	return nil
}

// BreakRelease leaves one pod undeleted: then the demo must fail with ErrLeft.
const BreakRelease = "release"

// Options say how the demo runs.
type Options struct {
	// Northbound is one of NorthboundAuto, NorthboundServer and NorthboundMemory.
	Northbound string
	// Break is BreakRelease, or empty.
	Break string
	// Patience is how long the demo waits for the accounts to be empty; 40 s when zero.
	Patience time.Duration
}

// Run shows the main job on out.
func Run(ctx context.Context, out io.Writer, o Options) (err error) {
	if o.Break != "" && o.Break != BreakRelease {
		return fmt.Errorf("--break=%s is not known: use %s", o.Break, BreakRelease)
	}
	in, missing := findInstall(installedSchema, findProgram)
	n, err := choose(o.Northbound, in, missing)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "API in memory, northbound %s, webhook over HTTPS, worker, all in this process\n", n.text)
	w, err := start(ctx, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.create(ctx); err != nil {
		return err
	}
	if err := w.table(ctx, out); err != nil {
		return err
	}
	refused := pod("refused", "", map[string]string{"ovn.kubernetes.io/ip_address": "10.16.0.77", "ovn.kubernetes.io/mac_address": "zz"})
	_, err = w.kube.CoreV1().Pods(namespace).Create(ctx, refused, metav1.CreateOptions{})
	if err == nil {
		return errors.New("a pod with a bad MAC was admitted")
	}
	fmt.Fprintf(out, "\nrefused at CREATE: %v\n", err)
	held := pod("held", "", map[string]string{"ovn.kubernetes.io/ip_address": "10.16.0.77"})
	if _, err = w.kube.CoreV1().Pods(namespace).Create(ctx, held, metav1.CreateOptions{}); err == nil {
		return errors.New("a held address was given twice")
	}
	fmt.Fprintf(out, "refused at CREATE: %v\n\n", err)
	if err := w.deleteAll(ctx, o.Break == BreakRelease); err != nil {
		return err
	}
	return w.accounts(ctx, out, cmp.Or(o.Patience, patience))
}

func pod(name, generate string, annotations map[string]string, owner ...metav1.OwnerReference) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, GenerateName: generate, Annotations: annotations, OwnerReferences: owner},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "pause:3.10"}}}}
}

// create makes the pods, and binds them to two nodes as a scheduler would.
func (w *world) create(ctx context.Context) error {
	controller := true
	rs := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-5d4f", UID: "rs", Controller: &controller}
	sts := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "sts", Controller: &controller}
	pods := []*corev1.Pod{
		pod("", "web-5d4f-", nil, rs), pod("", "web-5d4f-", nil, rs), pod("", "web-5d4f-", nil, rs),
		pod("db-0", "", nil, sts), pod("db-1", "", nil, sts),
		pod("dual", "", map[string]string{"ovn.kubernetes.io/logical_switch": "dual"}),
		pod("static", "", map[string]string{"ovn.kubernetes.io/ip_address": "10.16.0.77"}),
	}
	for i, p := range pods {
		got, err := w.kube.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating pod %d: %w", i, err)
		}
		if got.Annotations["ovn.kubernetes.io/ip_address"] == "" {
			return fmt.Errorf("the answer to CREATE of %s has no address", got.Name)
		}
		b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: got.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: fmt.Sprintf("node-%d", i%2+1)}}
		if err := w.kube.CoreV1().Pods(namespace).Bind(ctx, b, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return until(ctx, "all pods are routed", patience, func() (bool, error) {
		l, err := w.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		n := 0
		for _, p := range l.Items {
			if p.Annotations["ovn.kubernetes.io/routed"] == "true" {
				n++
			}
		}
		return n == len(pods), nil
	})
}

// table prints the stored pods beside the northbound rows that another client reads.
func (w *world) table(ctx context.Context, out io.Writer) error {
	l, err := w.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "\nPOD\tADDRESS\tNODE\tPORT IN OVN\tITS ADDRESSES\tGROUPS")
	for _, p := range l.Items {
		name := network.PortName(p.Name, p.Namespace, network.DefaultProvider)
		port, ok := w.nb.Port(name)
		if !ok {
			return fmt.Errorf("pod %s is routed and has no port", p.Name)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, p.Annotations["ovn.kubernetes.io/ip_address"], p.Spec.NodeName, port.Name,
			strings.Join(port.Addresses, " "), strings.Join(w.nb.GroupsOf(name), " "))
	}
	return t.Flush()
}

// deleteAll deletes the pods as kubelet would at the end of their grace, save one when keep is set.
func (w *world) deleteAll(ctx context.Context, keep bool) error {
	l, err := w.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	now := int64(0)
	for i, p := range l.Items {
		if keep && i == 0 {
			continue
		}
		if err := w.kube.CoreV1().Pods(namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			return err
		}
	}
	return nil
}

// accounts waits for empty accounts and prints what is left.
func (w *world) accounts(ctx context.Context, out io.Writer, patience time.Duration) error {
	var leases, ports int
	err := until(ctx, "the accounts are empty", patience, func() (bool, error) {
		var blocks v1alpha1.AddressBlockList
		if err := w.objs.List(ctx, &blocks); err != nil {
			return false, err
		}
		leases, ports = 0, 0
		for _, b := range blocks.Items {
			for _, text := range b.Spec.Leases {
				l, err := v1alpha1.ParseLease(text)
				if err != nil {
					return false, err
				}
				if o, err := ipam.ParseOwner(l.Owner); err != nil || !o.Reserves() {
					leases++
				}
			}
		}
		for _, p := range w.nb.Ports() {
			if p.ExternalIDs["pod"] != "" {
				ports++
			}
		}
		return leases+ports == 0, nil
	})
	fmt.Fprintf(out, "left: %d leases, %d ports\n", leases, ports)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return nil
}
