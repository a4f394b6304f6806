package node

import (
	"context"
	"sync"

	"github.com/berth-net/berth/e2e/proc"
)

// runHooks runs the preStop commands of all containers in the pod's network, with programs of this machine, and returns
// when they have ended, or at the end of the limit.
func (p *podActor) runHooks(limit context.Context) {
	var wg sync.WaitGroup
	for _, c := range p.latest().Spec.Containers {
		if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Exec == nil {
			continue
		}
		command := c.Lifecycle.PreStop.Exec.Command
		if p.sandbox.Netns != "" {
			command = append([]string{"nsenter", "--net=/run/netns/" + p.sandbox.Netns}, command...)
		}
		wg.Go(func() {
			if _, err := proc.Run(limit, "", command[0], command[1:]...); err != nil {
				p.log.Warn("preStop hook failed, or took longer than the grace", "container", c.Name, "error", err)
			}
		})
	}
	wg.Wait()
}
