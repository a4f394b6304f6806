package worker

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A pod that has its addresses waits a while for its node, and then one transaction does all of it.
func TestPreparedWithItsNode(t *testing.T) {
	w := newWorld(t, worldOptions{change: func(o *Options) { o.PrepareAfter = time.Hour }})
	before := w.worker.writer.Transactions()
	for i := range 5 {
		name := fmt.Sprintf("p%d", i)
		p := w.admit(podNamed(name))
		w.must(w.bindTo(p, "node-1", nil))
		w.wired(name)
	}
	if n := w.worker.writer.Transactions() - before; n != 5 {
		t.Errorf("%d transactions for 5 pods, one after the other", n)
	}
	for i := range 5 {
		w.end(fmt.Sprintf("p%d", i))
	}
	w.clean()
}

// One that gets no node has its leases bound and its port made all the same: its lease would be taken for nobody's.
func TestPreparedWithoutANode(t *testing.T) {
	w := newWorld(t, worldOptions{change: func(o *Options) { o.PrepareAfter = time.Millisecond }})
	w.admit(podNamed("p0"))
	w.until("the port of p0", func() error {
		if len(w.worker.Northbound.PodPorts("app", "p0")) != 1 {
			return fmt.Errorf("there is none")
		}
		return nil
	})
	w.end("p0")
	w.clean()
}

// Behind a gate a pod has its leases, and no port: there may be no node for days.
func TestNoPortBehindAGate(t *testing.T) {
	w := newWorld(t, worldOptions{})
	before := w.worker.writer.Transactions()
	p := w.admit(podNamed("p0", func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "else.where/hold"}}
	}))
	w.until("the leases are bound", func() error {
		for _, l := range w.podLeases() {
			if l.PodUID == string(p.UID) {
				return nil
			}
		}
		return fmt.Errorf("none is")
	})
	w.admit(podNamed("p1")) // its look comes after that of p0
	w.until("the port of p1", func() error {
		if len(w.worker.Northbound.PodPorts("app", "p1")) != 1 {
			return fmt.Errorf("there is none")
		}
		return nil
	})
	if n := w.worker.writer.Transactions() - before; n != 1 || len(w.worker.Northbound.PodPorts("app", "p0")) > 0 {
		t.Errorf("%d transactions, ports of the one behind the gate: %v", n, w.worker.Northbound.PodPorts("app", "p0"))
	}
	w.end("p0")
	w.end("p1")
	w.clean()
}
