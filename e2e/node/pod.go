package node

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Annotations that tell the agent how the containers of a pod, which don't exist, behave.
const (
	// ExitAfter: the containers of a pod that isn't restarted always end by themselves after that time.
	ExitAfter = "e2e.berth.dev/exit-after"
	// ExitCode of the containers that end by themselves, 0 unless set.
	ExitCode = "e2e.berth.dev/exit-code"
	// StopAfter: how long the containers take to stop once they are asked to, 200 ms unless set.
	StopAfter = "e2e.berth.dev/stop-after"

	// Stopped is what the agent logs at the moment when the last container of a pod that is being deleted has stopped.
	Stopped = "containers stopped"

	defaultStopAfter = 200 * time.Millisecond
)

// podActor serves one pod from the moment it is bound here until nothing is left of it. Its run is sequential; the
// informer only tells it what changed.
type podActor struct {
	agent *Agent
	uid   types.UID
	log   *slog.Logger

	mu       sync.Mutex
	pod      *corev1.Pod
	changed  chan struct{}
	stopping chan struct{}
	gone     chan struct{}

	sandbox    *Sandbox
	containers []*container
	ended      *Ending
}

func newPodActor(a *Agent, pod *corev1.Pod, s *Sandbox) *podActor {
	return &podActor{
		agent: a, uid: pod.UID, pod: pod, sandbox: s, log: a.log.With("pod", pod.Namespace+"/"+pod.Name, "uid", pod.UID),
		changed: make(chan struct{}, 1), stopping: make(chan struct{}), gone: make(chan struct{}),
	}
}

// update stores the pod's present state.
func (p *podActor) update(pod *corev1.Pod) {
	p.mu.Lock()
	p.pod = pod
	p.mu.Unlock()
	if pod.DeletionTimestamp != nil {
		closeOnce(p.stopping)
	}
	p.poke()
}

// vanish says that the object is gone.
func (p *podActor) vanish() {
	closeOnce(p.stopping)
	closeOnce(p.gone)
}

// closeOnce closes a channel that only the informer's one goroutine closes.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// poke wakes the actor up.
func (p *podActor) poke() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *podActor) latest() *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pod
}

// run is the pod's whole life on this node.
func (p *podActor) run(ctx context.Context) {
	living, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.stopping:
		case <-living.Done():
		}
		cancel()
	}()
	if !finished(p.latest()) {
		p.live(ctx, living)
	}
	if ctx.Err() != nil {
		return // the agent stops; the pod stays
	}
	p.retire(ctx)
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// live sets the pod up and keeps it running until it has to stop or has ended by itself.
func (p *podActor) live(agent, ctx context.Context) {
	if !p.setUpUntilDone(ctx) {
		return
	}
	p.containers = p.agent.startContainers(agent, ctx, p)
	var exit <-chan time.Time
	if after, ok := duration(p.latest(), ExitAfter); ok && p.latest().Spec.RestartPolicy != corev1.RestartPolicyAlways {
		timer := time.NewTimer(time.Until(p.sandbox.Started.Add(after)))
		defer timer.Stop()
		exit = timer.C
	}
	p.report(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-exit:
			code, _ := strconv.ParseInt(p.latest().Annotations[ExitCode], 10, 32)
			p.ended = &Ending{At: time.Now(), ExitCode: int32(code)}
			return
		case <-p.changed:
			if len(p.containers) > 0 {
				p.report(ctx)
			}
		}
	}
}

// setUpUntilDone tries again, like a kubelet, until the pod has its network or has to stop.
func (p *podActor) setUpUntilDone(ctx context.Context) bool {
	if p.sandbox != nil && !p.sandbox.Started.IsZero() {
		return true // made by an earlier agent
	}
	delay := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: 10 * time.Second}
	for {
		err := p.setUp(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		p.log.Error("can't set the pod up, trying again", "error", err)
		select {
		case <-time.After(delay.Step()):
		case <-ctx.Done():
			return false
		}
	}
}

// retire ends the pod: containers first, then what they stood on, then the object.
func (p *podActor) retire(ctx context.Context) {
	if p.ended != nil || finished(p.latest()) {
		if p.ended != nil {
			p.report(ctx)
		}
		p.tearDown(ctx)
		select {
		case <-p.stopping:
		case <-ctx.Done():
			return
		}
	} else {
		ran := p.sandbox != nil && !p.sandbox.Started.IsZero()
		p.stopContainers(ctx)
		if ctx.Err() != nil {
			return
		}
		p.ended = &Ending{At: time.Now()}
		p.log.Info(Stopped)
		if ran {
			p.report(ctx)
		}
		p.tearDown(ctx)
	}
	p.deleteObject(ctx)
	select {
	case <-p.gone: // a finalizer may hold the object for long; it isn't touched again
	case <-ctx.Done():
	}
}

// stopContainers returns when the containers have ended: by themselves, at the end of the grace, or at once when the
// object is gone.
func (p *podActor) stopContainers(ctx context.Context) {
	pod := p.latest()
	grace := time.Duration(0)
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		grace = min(time.Until(pod.DeletionTimestamp.Time), time.Duration(*pod.DeletionGracePeriodSeconds)*time.Second)
	}
	limit, cancel := context.WithTimeout(ctx, max(grace, 0))
	defer cancel()
	go func() {
		select {
		case <-p.gone:
			cancel()
		case <-limit.Done():
		}
	}()
	if p.sandbox == nil {
		return
	}
	p.runHooks(limit)
	if len(p.containers) > 0 {
		stopAll(ctx, limit, p.containers)
		return
	}
	after, ok := duration(pod, StopAfter)
	if !ok {
		after = defaultStopAfter
	}
	timer := time.NewTimer(after)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case <-limit.Done():
			return
		case <-p.changed:
			// A second deletion may have taken the grace away.
			if g := p.latest().DeletionGracePeriodSeconds; g != nil && *g == 0 {
				return
			}
		}
	}
}

// tearDown removes the pod's network, and tries again until it is gone.
func (p *podActor) tearDown(ctx context.Context) {
	if p.sandbox == nil {
		return
	}
	p.agent.stopRecorded(ctx, p.uid)
	err := wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := p.agent.sandboxes.detach(ctx, p.sandbox)
		if err != nil && !errors.Is(err, context.Canceled) {
			p.log.Error("can't take the pod's network down, trying again", "error", err)
		}
		return err == nil, nil
	})
	if err == nil {
		p.sandbox = nil
	}
}

func duration(pod *corev1.Pod, key string) (time.Duration, bool) {
	d, err := time.ParseDuration(pod.Annotations[key])
	return d, err == nil && d >= 0
}
