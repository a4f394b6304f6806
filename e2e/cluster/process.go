package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-net/berth/e2e/node"
	"github.com/berth-net/berth/e2e/proc"
)

const (
	startLimit = 3 * time.Minute // on a machine that has other work, too
	stopGrace  = 5 * time.Second
	// downGrace is short: the API server and etcd take long to end, and what they would save is removed anyway.
	downGrace = time.Second
)

// StartError is a process that did not get ready.
type StartError struct {
	Process string
	Log     string
	Tail    string
	Err     error
}

// Error shows the end of the process's log.
func (e *StartError) Error() string {
	return fmt.Sprintf("%s did not get ready, read %s: %v; its last words:\n%s", e.Process, e.Log, e.Err, e.Tail)
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Process is one of the cluster's processes: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, ovn-nb
// (and ovn-nb-2, ovn-nb-3 ...), ovn-sb, ovn-northd, and per node <node>-ovsdb, <node>-vswitchd, <node>-ovn-controller and <node>-agent.
type Process struct {
	cluster *Cluster
	state   *processState
}

// Process finds a process by name.
func (c *Cluster) Process(name string) (*Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make([]string, len(c.Processes))
	for n, p := range c.Processes {
		if p.Name == name {
			return &Process{c, p}, nil
		}
		names[n] = p.Name
	}
	return nil, fmt.Errorf("no process %q, take one of %s", name, strings.Join(names, ", "))
}

// ID is the process, while it runs.
func (p *Process) ID() proc.ID {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	return p.state.ID
}

// Alive tells whether the process runs.
func (p *Process) Alive() bool { return p.ID().Alive() }

// Signal sends a signal.
func (p *Process) Signal(sig syscall.Signal) error { return p.ID().Signal(sig) }

// Stop asks the process to end, and kills it if it doesn't.
func (p *Process) Stop(ctx context.Context) error { return p.ID().Stop(ctx, stopGrace) }

// Log is the path of the process's log.
func (p *Process) Log() string { return filepath.Join(p.cluster.LogDir(), p.state.Name+".log") }

// Start starts the process again, with the same arguments, after it has ended.
func (p *Process) Start() error {
	if p.Alive() {
		return nil
	}
	return p.cluster.launch(p.state)
}

// RunProcess starts a program of the caller's as one of the cluster's processes. One of that name that was run before is started
// again, as it was.
func (c *Cluster) RunProcess(name string, env []string, command ...string) (*Process, error) {
	if p, err := c.Process(name); err == nil {
		return p, p.Start()
	}
	if err := c.start(name, env, command...); err != nil {
		return nil, err
	}
	return c.Process(name)
}

// start adds a process and starts it.
func (c *Cluster) start(name string, env []string, command ...string) error {
	p := &processState{Name: name, Command: command, Env: env}
	c.mu.Lock()
	c.Processes = append(c.Processes, p)
	c.mu.Unlock()
	return c.launch(p)
}

// launch starts a process in a session of its own, so that it outlives this one.
func (c *Cluster) launch(p *processState) error {
	log, err := os.OpenFile(filepath.Join(c.LogDir(), p.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", p.Name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(p.Command[0], p.Command[1:]...) //nolint:noctx // it outlives the caller
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, c.Dir
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	id, err := proc.Of(cmd.Process.Pid)
	go func() { _ = cmd.Wait() }() // reaps it, should it end while this program runs
	if err != nil && !errors.Is(err, proc.ErrGone) {
		return err
	}
	c.mu.Lock()
	p.ID = id
	c.mu.Unlock()
	return c.save()
}

// await polls until a process does what it should; it gives up at once when the process has ended.
func (c *Cluster) await(ctx context.Context, name string, ready func(context.Context) error) error {
	p, err := c.Process(name)
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startLimit, true, func(ctx context.Context) (bool, error) {
		if last = ready(ctx); last == nil {
			return true, nil
		}
		if !p.Alive() {
			return false, proc.ErrGone
		}
		return false, nil
	})
	if err == nil {
		return nil
	}
	return &StartError{Process: name, Log: p.Log(), Tail: tail(p.Log(), 12), Err: errors.Join(err, last)}
}

// tail returns the last lines of a file.
func tail(file string, lines int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// anyAlive tells whether any of the cluster's processes runs.
func (c *Cluster) anyAlive() bool {
	for _, p := range c.Processes {
		if p.ID.Alive() {
			return true
		}
	}
	return false
}

// stop ends all processes and removes all that was made outside of the directory.
func (c *Cluster) stop(ctx context.Context) error {
	// Agents first, so that they don't see the rest fail; then the pods' programs; then all others at once.
	var agents, others []proc.ID
	for _, p := range c.Processes {
		if strings.HasSuffix(p.Name, "-agent") {
			agents = append(agents, p.ID)
		} else {
			others = append(others, p.ID)
		}
	}
	errs := []error{stopAll(ctx, agents)}
	var programs []proc.ID
	for _, n := range c.NodeNames() {
		records, err := node.Records(c.nodeDir(n))
		errs = append(errs, err)
		for _, r := range records {
			programs = append(programs, r.Process)
		}
	}
	errs = append(errs, stopAll(ctx, append(programs, others...)), removeNetwork(ctx, c.Name))
	return errors.Join(errs...)
}

func stopAll(ctx context.Context, ids []proc.ID) error {
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for n, id := range ids {
		wg.Go(func() { errs[n] = id.Stop(ctx, downGrace) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// joinStop adds the failure to clean up to the failure that made it necessary.
func joinStop(err, stop error) error {
	if stop == nil {
		return err
	}
	return errors.Join(err, fmt.Errorf("and not everything could be stopped, try down: %w", stop))
}
