package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probed tells whether a probe is followed: HTTP probes of pods on the node's network, which this agent can reach.
func (c *container) probed(p *corev1.Probe) bool {
	return p != nil && p.HTTPGet != nil && c.pod.latest().Spec.HostNetwork
}

// probe runs the container's probes while the pod lives.
func (a *Agent) probe(ctx context.Context, c *container) {
	if p := c.spec.ReadinessProbe; c.probed(p) {
		a.wg.Go(func() { c.repeat(ctx, p, func(ok bool) { c.readyIs(ok) }) })
	}
	if p := c.spec.LivenessProbe; c.probed(p) {
		a.wg.Go(func() {
			c.repeat(ctx, p, func(ok bool) {
				if !ok {
					c.unhealthy(ctx)
				}
			})
		})
	}
}

func (c *container) readyIs(ok bool) {
	c.mu.Lock()
	ok = ok && c.state.State.Running != nil
	same := c.ready == ok
	c.ready = ok
	c.mu.Unlock()
	if !same {
		c.pod.poke()
	}
}

// unhealthy stops the program; its supervisor starts it again.
func (c *container) unhealthy(ctx context.Context) {
	c.mu.Lock()
	id := c.record.Process
	c.mu.Unlock()
	c.pod.log.Warn("liveness probe failed, restarting", "container", c.spec.Name)
	grace := 30 * time.Second
	if g := c.pod.latest().Spec.TerminationGracePeriodSeconds; g != nil {
		grace = time.Duration(*g) * time.Second
	}
	if err := id.Stop(ctx, grace); err != nil {
		c.pod.log.Error("can't stop an unhealthy container", "container", c.spec.Name, "error", err)
	}
}

// repeat probes and reports each time a threshold is reached. The counts start anew with every run of the program.
func (c *container) repeat(ctx context.Context, p *corev1.Probe, report func(ok bool)) {
	client := &http.Client{
		Timeout: time.Duration(max(p.TimeoutSeconds, 1)) * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // as a kubelet's probe
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	tick := time.NewTicker(time.Duration(max(p.PeriodSeconds, 1)) * time.Second)
	defer tick.Stop()
	good, bad, pid := int32(0), int32(0), 0
	for {
		c.mu.Lock()
		running, started, now := c.state.State.Running != nil, c.record.Started, c.record.Process.PID
		c.mu.Unlock()
		if now != pid {
			good, bad, pid = 0, 0, now
		}
		if running && time.Since(started) >= time.Duration(p.InitialDelaySeconds)*time.Second {
			if err := c.get(ctx, client, p.HTTPGet); err == nil {
				good, bad = good+1, 0
			} else {
				good, bad = 0, bad+1
			}
			switch {
			case good >= max(p.SuccessThreshold, 1):
				report(true)
			case bad >= max(p.FailureThreshold, 1):
				report(false)
				bad = 0
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (c *container) get(ctx context.Context, client *http.Client, g *corev1.HTTPGetAction) error {
	port, err := portNumber(c.spec, g.Port)
	if err != nil {
		return err
	}
	scheme := "http"
	if g.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	url := scheme + "://" + net.JoinHostPort(cmp.Or(g.Host, c.pod.agent.cfg.IP), strconv.Itoa(port)) + "/"
	if len(g.Path) > 0 && g.Path[0] == '/' {
		url += g.Path[1:]
	} else {
		url += g.Path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("probe %s: %w", url, err)
	}
	for _, h := range g.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("probe %s: %w", url, err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("probe %s: %s", url, resp.Status)
	}
	return nil
}

// portNumber looks up a port by number or name.
func portNumber(c *corev1.Container, port intstr.IntOrString) (int, error) {
	if port.Type == intstr.Int {
		return port.IntValue(), nil
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return int(p.ContainerPort), nil
		}
	}
	if n, err := strconv.Atoi(port.StrVal); err == nil {
		return n, nil
	}
	return 0, fmt.Errorf("container %s has no port named %q", c.Name, port.StrVal)
}
