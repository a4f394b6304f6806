package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	leaseNamespace = "kube-node-lease"
	leaseSeconds   = 40
	renewEvery     = 5 * time.Second
)

// register makes the Node object, or takes over the one that an earlier agent made, and marks it ready.
func (a *Agent) register(ctx context.Context) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:        a.cfg.Name,
		Labels:      map[string]string{corev1.LabelHostname: a.cfg.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH},
		Annotations: map[string]string{"ovn.kubernetes.io/chassis": a.cfg.Name},
	}}
	var last error
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, last = a.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		if last != nil && !apierrors.IsAlreadyExists(last) {
			return false, nil
		}
		if _, last = a.markReady(ctx); last != nil {
			return false, nil
		}
		last = a.renew(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("register node %s, is the API server up: %w", a.cfg.Name, firstOf(last, err))
	}
	return nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// markReady reads the node and writes its status, unless it says so already.
func (a *Agent) markReady(ctx context.Context) (*corev1.Node, error) {
	node, err := a.client.CoreV1().Nodes().Get(ctx, a.cfg.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	want := readyStatus(&node.Status, a.cfg.Name, a.cfg.IP, time.Now())
	if want == nil {
		return node, nil
	}
	patch, err := json.Marshal(map[string]any{"status": want})
	if err != nil {
		return nil, fmt.Errorf("encode node status: %w", err)
	}
	return a.client.CoreV1().Nodes().Patch(ctx, a.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

// readyStatus is the status of a ready node, or nil when the present one is right already.
func readyStatus(present *corev1.NodeStatus, name, ip string, now time.Time) *corev1.NodeStatus {
	conditions := map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady:              corev1.ConditionTrue,
		corev1.NodeMemoryPressure:     corev1.ConditionFalse,
		corev1.NodeDiskPressure:       corev1.ConditionFalse,
		corev1.NodePIDPressure:        corev1.ConditionFalse,
		corev1.NodeNetworkUnavailable: corev1.ConditionFalse,
	}
	right := 0
	for _, c := range present.Conditions {
		if conditions[c.Type] == c.Status {
			right++
		}
	}
	if right == len(conditions) {
		return nil
	}
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods: resource.MustParse("500"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	s := &corev1.NodeStatus{
		Capacity: resources, Allocatable: resources,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}, {Type: corev1.NodeHostName, Address: name}},
		NodeInfo:  corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: runtime.GOARCH, KubeletVersion: "v1.37.2", ContainerRuntimeVersion: "berth-e2e://1"},
	}
	for kind, status := range conditions {
		s.Conditions = append(s.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: "BerthNodeAgent", LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
		})
	}
	return s
}

// heartbeat renews the node's lease, puts the status right after the node was thought lost, and follows its annotations.
func (a *Agent) heartbeat(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := a.renew(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("can't renew the node's lease", "error", err)
		}
		node, err := a.markReady(ctx)
		if err == nil {
			err = errors.Join(a.join(ctx, node), a.provide(ctx, node))
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("can't keep the node in order", "error", err)
		}
	}
}

// renew writes the present time into the node's lease.
func (a *Agent) renew(ctx context.Context) error {
	leases := a.client.CoordinationV1().Leases(leaseNamespace)
	now, seconds := metav1.NowMicro(), int32(leaseSeconds)
	lease, err := leases.Get(ctx, a.cfg.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: a.cfg.Name, Namespace: leaseNamespace},
			Spec:       coordv1.LeaseSpec{HolderIdentity: &a.cfg.Name, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &a.cfg.Name, &seconds, &now
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}
