package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/e2e/proc"
)

// RunDir is the directory, inside a node's, that holds the records of containers that really run.
const RunDir = "run"

// Record is a container that really runs, as kept on disk: RunDir/<pod's UID>/<container>.json.
type Record struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Container string    `json:"container"`
	Image     string    `json:"image"`
	Process   proc.ID   `json:"process"`
	Started   time.Time `json:"started"`
	Restarts  int32     `json:"restarts"`
}

// Records reads all containers' records below a node's directory.
func Records(nodeDir string) ([]Record, error) {
	return records(filepath.Join(nodeDir, RunDir, "*"))
}

func records(podDirs string) ([]Record, error) {
	files, err := filepath.Glob(filepath.Join(podDirs, "*.json"))
	if err != nil {
		return nil, err
	}
	var out []Record
	for _, f := range files {
		text, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its pod has just ended
		}
		if err != nil {
			return nil, fmt.Errorf("read record of a container: %w", err)
		}
		var r Record
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("record %s is damaged, remove it: %w", f, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// container supervises one program.
type container struct {
	pod    *podActor
	spec   *corev1.Container
	binary string
	dir    string
	netns  string
	status corev1.PodStatus // the pod's addresses, for the environment
	done   chan struct{}

	mu     sync.Mutex
	record Record
	state  ContainerFacts
	ready  bool
	// again is set once the program has run before.
	again bool
}

// startContainers starts the programs of those containers whose image is mapped to one. They are restarted while the
// pod lives, and awaited while the agent does; neither end stops them.
func (a *Agent) startContainers(agent, living context.Context, p *podActor) []*container {
	var list []*container
	pod := p.latest()
	for n := range pod.Spec.Containers {
		spec := &pod.Spec.Containers[n]
		if binary := a.cfg.Run[spec.Image]; binary != "" {
			list = append(list, &container{
				pod: p, spec: spec, binary: binary, dir: filepath.Join(a.runDir(), string(p.uid)), netns: p.sandbox.Netns,
				status: Status(pod, p.facts(), time.Now()), done: make(chan struct{}),
			})
		}
	}
	if len(list) == 0 {
		return nil
	}
	dir := filepath.Join(a.runDir(), string(p.uid))
	if a.credentials(living, p, dir) != nil || a.volumes(living, p, dir) != nil {
		return nil // the pod stops
	}
	for _, c := range list {
		c.state.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
		c.state.ID = "berth-e2e://" + string(p.uid) + "/" + c.spec.Name
		a.wg.Go(func() { c.supervise(agent, living) })
		a.probe(living, c)
	}
	return list
}

// facts is the container's state now.
func (c *container) facts() ContainerFacts {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.state
	f.Ready = f.State.Running != nil && c.ready
	return f
}

// set changes the state and tells the pod.
func (c *container) set(change func()) {
	c.mu.Lock()
	change()
	c.mu.Unlock()
	c.pod.poke()
}

// supervise keeps the program running.
func (c *container) supervise(agent, living context.Context) {
	defer close(c.done)
	delay := time.Second
	for living.Err() == nil {
		code, err := c.once(agent)
		if errors.Is(err, context.Canceled) {
			return
		}
		if err != nil && !isClosed(c.pod.stopping) {
			c.pod.log.Error("container ended", "container", c.spec.Name, "error", err)
		}
		c.ran(code, err)
		if c.pod.latest().Spec.RestartPolicy == corev1.RestartPolicyNever {
			return
		}
		if c.lasted() > time.Minute {
			delay = time.Second
		}
		select {
		case <-time.After(delay):
		case <-living.Done():
			return
		}
		delay = min(2*delay, 20*time.Second)
	}
}

func (c *container) lasted() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.record.Started)
}

// ran notes the end of a run.
func (c *container) ran(code int32, cause error) {
	now := time.Now()
	c.set(func() {
		t := terminated(c.record.Started, now, code, c.state.ID)
		if cause != nil {
			t.Message = cause.Error()
		}
		c.ready = false
		c.state.Last = corev1.ContainerState{Terminated: t}
		c.state.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		if c.pod.latest().Spec.RestartPolicy == corev1.RestartPolicyNever || isClosed(c.pod.stopping) {
			c.state.State = corev1.ContainerState{Terminated: t}
		}
	})
}

func isClosed(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// once runs the program to its end, adopting one that an earlier agent has left running. When the agent stops it
// returns context.Canceled and leaves the program alone; when the pod stops it stays until the program has ended.
func (c *container) once(ctx context.Context) (int32, error) {
	if r, ok := c.left(); ok {
		c.running(r)
		if err := r.Process.Wait(ctx); err != nil {
			return 0, context.Canceled
		}
		return 137, errors.New("it ended while another agent's child, so its exit code is unknown")
	}
	cmd, err := c.start()
	if err != nil {
		return 128, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		return 0, context.Canceled
	}
	code := int32(cmd.ProcessState.ExitCode())
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = 128 + int32(ws.Signal())
	}
	if code != 0 {
		return code, fmt.Errorf("%s: %w; see its log", filepath.Base(c.binary), err)
	}
	return 0, nil
}

// left finds the process that an earlier agent started and that still runs.
func (c *container) left() (Record, bool) {
	text, err := os.ReadFile(c.file())
	var r Record
	if err != nil || json.Unmarshal(text, &r) != nil {
		return r, false
	}
	c.mu.Lock()
	c.again, c.state.Restarts = true, r.Restarts
	c.mu.Unlock()
	return r, r.Process.Alive()
}

func (c *container) file() string { return filepath.Join(c.dir, c.spec.Name+".json") }

// running notes a started process.
func (c *container) running(r Record) {
	c.set(func() {
		c.record = r
		c.ready = !c.probed(c.spec.ReadinessProbe)
		c.state.Restarts = r.Restarts
		c.state.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(r.Started)}}
	})
}

// start starts the program in the pod's network and records it.
func (c *container) start() (*exec.Cmd, error) {
	a, pod := c.pod.agent, c.pod.latest().DeepCopy()
	pod.Status = c.status
	env, err := Env(pod, c.spec)
	if err != nil {
		return nil, err
	}
	words := append([]string{c.binary}, mounted(pod, c.spec, c.dir, Args(c.spec, env))...)
	if c.netns != "" {
		words = append([]string{"nsenter", "--net=/run/netns/" + c.netns}, words...)
	}
	log, err := os.OpenFile(filepath.Join(a.cfg.LogDir, pod.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the pod's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(words[0], words[1:]...) //nolint:noctx // it outlives the agent, whose successor adopts it
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, c.dir
	cmd.Env = append(append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir, "HOSTNAME=" + pod.Name}, env...),
		"KUBECONFIG="+filepath.Join(c.dir, "kubeconfig"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s, is it built: %w", c.binary, err)
	}
	id, err := proc.Of(cmd.Process.Pid)
	if err != nil && !errors.Is(err, proc.ErrGone) {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	r := Record{Namespace: pod.Namespace, Pod: pod.Name, Container: c.spec.Name, Image: c.spec.Image, Process: id, Started: time.Now()}
	if c.again {
		r.Restarts = c.state.Restarts + 1
	}
	text, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(c.file(), text, 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("record container %s: %w", c.spec.Name, err), cmd.Process.Kill(), cmd.Wait())
	}
	c.running(r)
	return cmd, nil
}

// stopAll asks the programs to end, kills them at the end of the limit, and returns when all have ended.
func stopAll(ctx, limit context.Context, list []*container) {
	var wg sync.WaitGroup
	for _, c := range list {
		wg.Go(func() {
			if err := c.stop(ctx, limit); err != nil {
				c.pod.log.Error("can't stop container", "container", c.spec.Name, "error", err)
			}
		})
	}
	wg.Wait()
}

// stop returns when the container has ended. A program that was just being started is met in the next round.
func (c *container) stop(ctx, limit context.Context) error {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		c.mu.Lock()
		id := c.record.Process
		c.mu.Unlock()
		if err := stopProcess(ctx, limit, id); err != nil {
			return err
		}
		select {
		case <-c.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
	}
}

// stopProcess is a stop whose patience is a context.
func stopProcess(ctx, limit context.Context, id proc.ID) error {
	patience := time.Duration(0)
	if deadline, ok := limit.Deadline(); ok {
		patience = time.Until(deadline)
	}
	return errors.Join(ctx.Err(), id.Stop(limit, patience))
}

// stopRecorded kills what still runs of a pod by its records, and forgets them.
func (a *Agent) stopRecorded(ctx context.Context, uid types.UID) {
	dir := filepath.Join(a.runDir(), string(uid))
	list, err := records(dir)
	if err != nil {
		a.log.Error("can't read the records of a pod", "uid", uid, "error", err)
	}
	for _, r := range list {
		if err := r.Process.Stop(ctx, 2*time.Second); err != nil {
			a.log.Error("can't stop a container", "pod", r.Namespace+"/"+r.Pod, "error", err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		a.log.Error("can't remove the records of a pod", "uid", uid, "error", err)
	}
}
