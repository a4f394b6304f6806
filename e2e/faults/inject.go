package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/node"
	"github.com/berth-net/berth/e2e/proc"
	berthv1alpha1 "github.com/berth-net/berth/pkg/api/berth/v1alpha1"
)

// errNobody is of a fault that found nothing to happen to, such as a webhook that waits to be started again.
var errNobody = errors.New("nothing there to break")

// undo ends a fault.
type undo func(context.Context) error

func nothing(context.Context) error { return nil }

// begin begins a fault.
func (w *World) begin(ctx context.Context, s Step) (undo, error) {
	if proxied(s.Kind) {
		end := w.proxy.Begin(s.Kind)
		return func(context.Context) error { end(); return nil }, nil
	}
	switch s.Kind {
	case WebhookKilled, WebhookStopped:
		return w.signalContainers(cluster.WebhookImage, s, s.Kind == WebhookKilled)
	case WorkerKilled, WorkerStopped:
		return w.signalContainers(cluster.WorkerImage, s, s.Kind == WorkerKilled)
	case WorkerTwice:
		return w.secondWorker(ctx)
	case APIServerKilled, EtcdKilled, NorthboundKilled, NorthdKilled:
		return w.killProcess(ctx, processOf(s.Kind))
	case APIServerStopped, EtcdStopped, NorthboundStopped, NorthdStopped:
		return w.stopProcess(processOf(s.Kind))
	case NorthboundReadOnly:
		return w.readOnly(ctx)
	case NorthboundFull:
		return w.fillDisk()
	case BlocksDeleted:
		return nothing, w.deleteBlocks(ctx, s.Target+1)
	}
	return nil, fmt.Errorf("nobody knows how to do %s", s.Kind)
}

func processOf(k Kind) string {
	name, _, _ := strings.Cut(string(k), "-")
	return map[string]string{"apiserver": "kube-apiserver", "etcd": "etcd", "northbound": "ovn-nb", "northd": "ovn-northd"}[name]
}

// signalContainers signals one of the containers of an image, or all when the target is beyond them. Nodes start again
// what was killed.
func (w *World) signalContainers(image string, s Step, kill bool) (undo, error) {
	all, err := w.Containers(image)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b node.Record) int { return cmp.Compare(a.Pod, b.Pod) })
	if s.Target < len(all) {
		all = all[s.Target : s.Target+1]
	}
	if len(all) == 0 {
		return nil, errNobody
	}
	sig := syscall.SIGSTOP
	if kill {
		sig = syscall.SIGKILL
	}
	var errs []error
	for _, r := range all {
		errs = append(errs, alive(r.Process.Signal(sig)))
	}
	return func(context.Context) error {
		var errs []error
		for _, r := range all {
			if !kill {
				errs = append(errs, alive(r.Process.Signal(syscall.SIGCONT)))
			}
		}
		return errors.Join(errs...)
	}, errors.Join(errs...)
}

// alive takes no offence at a process that has ended meanwhile.
func alive(err error) error {
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	return err
}

func (w *World) killProcess(ctx context.Context, name string) (undo, error) {
	p, err := w.Process(name)
	if err != nil {
		return nil, err
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return nil, err
	}
	return func(context.Context) error { return p.Start() }, p.ID().Wait(ctx)
}

func (w *World) stopProcess(name string) (undo, error) {
	p, err := w.Process(name)
	if err != nil {
		return nil, err
	}
	return func(context.Context) error { return p.Signal(syscall.SIGCONT) }, p.Signal(syscall.SIGSTOP)
}

// readOnly makes the northbound server the backup of one that doesn't exist.
func (w *World) readOnly(ctx context.Context) (undo, error) {
	servers, err := w.Northbound()
	if err != nil {
		return nil, err
	}
	nb := servers[0]
	if _, err := nb.Command(ctx, "ovsdb-server/set-active-ovsdb-server", "tcp:127.0.0.1:9"); err != nil {
		return nil, err
	}
	_, err = nb.Command(ctx, "ovsdb-server/connect-active-ovsdb-server")
	return func(ctx context.Context) error {
		_, err := nb.Command(ctx, "ovsdb-server/disconnect-active-ovsdb-server")
		return err
	}, err
}

// fillDisk writes a file until the disk of OVN's databases is full.
func (w *World) fillDisk() (undo, error) {
	name := filepath.Join(w.Dir, "ovn", "filler")
	f, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("fill the disk: %w", err)
	}
	remove := func(context.Context) error { return os.Remove(name) }
	for _, size := range []int{1 << 20, 1 << 12, 1} {
		for err == nil {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return remove, errors.Join(err, f.Close())
		}
		err = nil
	}
	return remove, f.Close()
}

// deleteBlocks deletes every so many-th block of the ledger.
func (w *World) deleteBlocks(ctx context.Context, every int) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var list berthv1alpha1.AddressBlockList
	if err := w.objs.List(ctx, &list); err != nil {
		return fmt.Errorf("list the blocks: %w", err)
	}
	if len(list.Items) == 0 {
		return errNobody
	}
	for n := 0; n < len(list.Items); n += every {
		if err := client.IgnoreNotFound(w.objs.Delete(ctx, &list.Items[n])); err != nil {
			return fmt.Errorf("delete block %s: %w", list.Items[n].Name, err)
		}
	}
	return nil
}

// secondWorker runs a worker that doesn't ask who leads, beside those that do, and starts it again when it ends.
func (w *World) secondWorker(ctx context.Context) (undo, error) {
	var d appsv1.Deployment
	if err := w.objs.Get(ctx, client.ObjectKey{Namespace: system, Name: worker}, &d); err != nil {
		return nil, fmt.Errorf("read how the worker is run: %w", err)
	}
	command := []string{w.WorkerBin}
	for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
		switch name, _, _ := strings.Cut(arg, "="); name {
		case "--leader-elect":
			command = append(command, "--leader-elect=false")
		case "--metrics-bind-address", "--health-probe-bind-address":
			command = append(command, name+"=0")
		default:
			command = append(command, arg)
		}
	}
	file, err := w.workerAccess(ctx)
	if err != nil {
		return nil, err
	}
	// Its log is looked through with those of the others.
	p, err := w.RunProcess("berth-worker-second", []string{"KUBECONFIG=" + file, "POD_NAME=second", "POD_NAMESPACE=" + system}, command...)
	if err != nil {
		return nil, err
	}
	living, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- keepRunning(living, p) }()
	return func(ctx context.Context) error {
		cancel()
		return errors.Join(<-ended, p.Stop(ctx))
	}, nil
}

// keepRunning starts a process again whenever it has ended, until ctx ends.
func keepRunning(ctx context.Context, p *cluster.Process) error {
	for {
		if err := p.ID().Wait(ctx); err != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
		if err := p.Start(); err != nil {
			return err
		}
	}
}

// workerAccess writes a kubeconfig of the worker's service account, through the proxy.
func (w *World) workerAccess(ctx context.Context) (string, error) {
	token, err := w.Client().CoreV1().ServiceAccounts(system).CreateToken(ctx, worker, &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of the worker: %w", err)
	}
	config := w.Config()
	colon := strings.LastIndex(config.Host, ":")
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host[:colon+1] + w.proxy.Port(), CertificateAuthorityData: config.CAData}
	cfg.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	cfg.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	cfg.CurrentContext = "x"
	file := filepath.Join(w.Dir, "second.kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		return "", fmt.Errorf("write the second worker's kubeconfig: %w", err)
	}
	return file, nil
}
