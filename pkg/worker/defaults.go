package worker

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/topology"
)

// topologyConfig names the objects that have a part of their own.
func (w *Worker) topologyConfig() topology.Config {
	return topology.Config{ClusterRouter: w.Network.ClusterRouter, DefaultSubnet: w.Network.DefaultSubnet,
		NodeSwitch: w.Network.NodeSwitch, ExternalSubnet: w.Routing.externalSubnet(), EnableLB: w.Routing.EnableLB,
		ServiceCIDRs: networksIn(w.Routing.ServiceCIDRs)}
}

// The longest and the first wait between tries to make what a cluster begins with.
const (
	firstTry = 100 * time.Millisecond
	lastTry  = 30 * time.Second
)

// makeNetworks makes the Vpc and the Subnets that a cluster begins with, where they don't exist. It looks at each once in
// the life of a leader: what is changed, deleted or being deleted afterwards is somebody's wish.
func (w *Worker) makeNetworks(ctx context.Context) error { return w.makeAll(ctx, w.Networks) }

func (w *Worker) makeAll(ctx context.Context, networks topology.Networks) error {
	vpc, subnets, err := networks.Objects(w.topologyConfig())
	if err != nil {
		return err
	}
	if err := w.awaitLead(ctx); err != nil {
		return nil // it never led
	}
	var left []client.Object
	if vpc != nil {
		left = append(left, vpc)
	}
	for _, s := range subnets {
		left = append(left, s)
	}
	for pause := firstTry; len(left) > 0; {
		err := w.makeAbsent(ctx, left[0])
		if err == nil {
			left, pause = left[1:], firstTry
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		w.Log.Error(err, "An object that the cluster begins with could not be made")
		select {
		case <-w.Clock.After(pause):
		case <-ctx.Done():
			return nil
		}
		pause = min(2*pause, lastTry)
	}
	return nil
}

// makeAbsent creates an object unless there is one of its name.
func (w *Worker) makeAbsent(ctx context.Context, obj client.Object) error {
	there, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", obj)
	}
	gone, err := w.gone(ctx, obj.GetName(), there)
	if err != nil || !gone {
		return err
	}
	if err := w.Client.Create(ctx, obj); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %T %s: %w", obj, obj.GetName(), err)
	}
	w.Log.Info("Made an object that the cluster begins with", "kind", fmt.Sprintf("%T", obj), "name", obj.GetName())
	return nil
}
