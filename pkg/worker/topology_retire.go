package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// errStale means that the cache doesn't know something that there is. Nothing may be removed then.
var errStale = errors.New("the cache is older than the northbound database")

// retire adds to the change the switches and routers whose objects are gone. Before anything goes with an object, a live
// read tells that it is gone. kept tells that something must stay for now.
func (w *Worker) retire(ctx context.Context, l *landscape, ch *ovn.Change) (kept bool, err error) {
	want := map[string]bool{}
	for _, s := range ch.Ensure.Switches {
		want[s.Name] = true
	}
	for _, sw := range w.Northbound.Switches() {
		if want[sw.Name] || !nb.OfTopology(sw.ExternalIDs) {
			continue
		}
		want[sw.Name] = true // there may be two of the name, and all go at once
		var s kubeovnv1.Subnet
		if gone, err := w.gone(ctx, sw.Name, &s); err != nil || !gone && topology.IsOVN(s.Spec.Provider) {
			return false, errors.Join(err, staleUnless(err, "Subnet", sw.Name))
		}
		if port, ok := w.inhabited(sw.Name); ok {
			w.tellOnce("switch "+sw.Name, "The switch of a deleted subnet stays until it is empty", "subnet", sw.Name, "port", port)
			ch.Ensure.Held = append(ch.Ensure.Held, sw.Name)
			kept = true
			continue
		}
		ch.RemoveSwitches = append(ch.RemoveSwitches, sw.Name)
	}
	routers, err := w.retireRouters(ctx, l, ch)
	return kept || routers, errors.Join(err, w.confirmNodes(ctx, l))
}

func staleUnless(err error, kind, name string) error {
	if err != nil {
		return nil
	}
	return fmt.Errorf("%s %s exists: %w", kind, name, errStale)
}

// inhabited names a port on a switch that is a pod's or somebody else's.
func (w *Worker) inhabited(sw string) (string, bool) {
	for _, p := range w.Northbound.Ports() {
		if p.ExternalIDs[nb.KeySwitch] == sw && p.ExternalIDs[nb.KeyPod] != "" {
			return p.Name, true
		}
	}
	return "", false
}

// retireRouters does the same for routers. One that a Subnet still names stays, and so does one that somebody else uses.
func (w *Worker) retireRouters(ctx context.Context, l *landscape, ch *ovn.Change) (kept bool, err error) {
	want := map[string]bool{}
	for _, r := range ch.Ensure.Routers {
		want[r.Name] = true
	}
	named := map[string]bool{}
	for _, s := range l.Subnets {
		named[s.Spec.Vpc] = true
	}
	for _, r := range w.Northbound.Routers() {
		if want[r.Name] || !nb.OfTopology(r.ExternalIDs) {
			continue
		}
		want[r.Name] = true
		if gone, err := w.gone(ctx, r.Name, &kubeovnv1.Vpc{}); err != nil || !gone {
			return false, errors.Join(err, staleUnless(err, "Vpc", r.Name))
		}
		if named[r.Name] || w.Northbound.Shared(r.Name) {
			w.tellOnce("router "+r.Name, "The router of a deleted VPC stays until nobody uses it", "vpc", r.Name)
			kept = true
			continue
		}
		ch.RemoveRouters = append(ch.RemoveRouters, r.Name)
	}
	return kept, nil
}

// confirmNodes makes sure that nodes whose ports are to go are gone.
func (w *Worker) confirmNodes(ctx context.Context, l *landscape) error {
	for _, p := range w.Northbound.TopologyPorts() {
		node, ok := strings.CutPrefix(p.Name, nb.NodePortName(""))
		if !ok || p.Type != "" || l.nodes[node] != nil {
			continue
		}
		if gone, err := w.gone(ctx, node, &corev1.Node{}); err != nil || !gone {
			return errors.Join(err, staleUnless(err, "Node", node))
		}
	}
	return nil
}

// gone tells, by a live read, that an object doesn't exist.
func (w *Worker) gone(ctx context.Context, name string, obj client.Object) (bool, error) {
	err := w.Live.Get(ctx, client.ObjectKey{Name: name}, obj)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %T %s: %w", obj, name, err)
	}
	return false, nil
}
