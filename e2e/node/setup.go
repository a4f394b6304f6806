package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

func kubeOVN(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: resource}
}

// setUp gives the pod its network, in the order of the stock daemon: annotations, IP record, interfaces, installed,
// gateway.
func (p *podActor) setUp(ctx context.Context) error {
	pod := p.latest()
	s := &Sandbox{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name}
	if pod.Spec.HostNetwork {
		s.Started = time.Now()
		p.sandbox = s
		return p.agent.sandboxes.save(s)
	}
	plan, err := p.waitForPlan(ctx)
	if err != nil {
		return err
	}
	s.Netns, s.Interfaces = PodNetns(p.agent.cfg.Cluster, pod.UID), plan
	p.sandbox = s
	mtu, check := map[string]int{}, map[string]bool{}
	for n := range plan {
		i := &plan[n]
		if mtu[i.Name], check[i.Name], err = p.agent.subnet(ctx, i.Subnet); err != nil {
			return err
		}
		p.recordNode(ctx, i)
	}
	if err := p.agent.sandboxes.attach(ctx, s, mtu); err != nil {
		return err
	}
	for n := range plan {
		if err := p.agent.sandboxes.installed(ctx, &plan[n], p.agent.cfg.InstalledTimeout); err != nil {
			return err
		}
	}
	for n := range plan {
		if err := p.checkGateways(ctx, s, &plan[n], check[plan[n].Name]); err != nil {
			return err
		}
	}
	s.Started = time.Now()
	return p.agent.sandboxes.save(s)
}

// waitForPlan returns when the annotations are complete.
func (p *podActor) waitForPlan(ctx context.Context) ([]Interface, error) {
	for {
		plan, err := Plan(p.latest())
		if err == nil {
			return plan, nil
		}
		if !errors.Is(err, ErrNotYet) {
			return nil, err
		}
		select {
		case <-p.changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// subnet reads what the Subnet says about the interface: the MTU and whether the gateway must answer.
func (a *Agent) subnet(ctx context.Context, name string) (mtu int, check bool, err error) {
	mtu = a.cfg.MTU
	if name == "" {
		return mtu, true, nil
	}
	o, err := a.objects.Resource(kubeOVN("subnets")).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return mtu, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read Subnet %s: %w", name, err)
	}
	if m, ok, _ := unstructured.NestedInt64(o.Object, "spec", "mtu"); ok && m > 0 {
		mtu = int(m)
	}
	off, _, _ := unstructured.NestedBool(o.Object, "spec", "disableGatewayCheck")
	return mtu, !off, nil
}

// recordNode writes this node into the interface's IP record. A missing record costs the wait and no more.
func (p *podActor) recordNode(ctx context.Context, i *Interface) {
	ips := p.agent.objects.Resource(kubeOVN("ips"))
	node := p.agent.cfg.Name
	err := wait.PollUntilContextTimeout(ctx, time.Second, p.agent.cfg.RecordTimeout, true, func(ctx context.Context) (bool, error) {
		o, err := ips.Get(ctx, i.Port, metav1.GetOptions{})
		if err != nil {
			return false, nil
		}
		if at, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName"); at == node {
			return true, nil
		}
		patch := fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{"ovn.kubernetes.io/node-name":%q}},"spec":{"nodeName":%q}}`,
			o.GetUID(), node, node)
		_, err = ips.Patch(ctx, i.Port, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err == nil, nil
	})
	if err != nil && ctx.Err() == nil {
		p.log.Warn("no IP record to write the node into", "record", i.Port, "waited", p.agent.cfg.RecordTimeout)
	}
}

// checkGateways waits until the gateways answer; unless they have to, one try is made and its failure only told.
func (p *podActor) checkGateways(ctx context.Context, s *Sandbox, i *Interface, must bool) error {
	for _, gw := range i.Gateways {
		if !must {
			if !s.ping(ctx, gw.String()) {
				p.log.Warn("gateway doesn't answer", "gateway", gw, "interface", i.Name)
			}
			continue
		}
		err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, p.agent.cfg.GatewayTimeout, true,
			func(ctx context.Context) (bool, error) { return s.ping(ctx, gw.String()), nil })
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("gateway %s of %s did not answer within %v, look for the router's port on switch %s or set disableGatewayCheck: %w",
				gw, i.Port, p.agent.cfg.GatewayTimeout, i.Subnet, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// report writes the pod's status. It tries until the API server has it, or the pod is another or gone.
func (p *podActor) report(ctx context.Context) {
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		pod := p.latest()
		patch, err := statusPatch(pod, Status(pod, p.facts(), time.Now()))
		if err != nil || patch == nil {
			return true, err
		}
		_, err = p.agent.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}, "status")
		switch {
		case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
			return true, nil
		case apierrors.IsInvalid(err):
			return true, err
		case ctx.Err() != nil:
			return false, ctx.Err()
		}
		p.log.Warn("can't write the pod's status, trying again", "error", err)
		return false, nil
	})
	if err != nil && ctx.Err() == nil {
		p.log.Error("the pod's status was refused", "error", err)
	}
}

// statusPatch is the patch of a status for exactly this incarnation of the pod; nil when nothing changes.
func statusPatch(pod *corev1.Pod, want corev1.PodStatus) ([]byte, error) {
	old, err := json.Marshal(pod.Status)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	status, err := json.Marshal(want)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	if string(old) == string(status) {
		return nil, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   json.RawMessage(status),
	})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	return patch, nil
}

// facts gathers what the node knows of the pod now.
func (p *podActor) facts() Facts {
	f := Facts{HostIP: p.agent.cfg.IP, Ended: p.ended, Containers: map[string]ContainerFacts{}}
	if p.sandbox != nil {
		f.Started = p.sandbox.Started
		f.PodIPs = p.sandbox.IPs()
		if p.sandbox.Netns == "" {
			f.PodIPs = []string{p.agent.cfg.IP}
		}
	}
	for _, c := range p.containers {
		f.Containers[c.spec.Name] = c.facts()
	}
	return f
}

// deleteObject ends the object's grace, as a kubelet does when nothing of the pod is left.
func (p *podActor) deleteObject(ctx context.Context) {
	pod := p.latest()
	if g := pod.DeletionGracePeriodSeconds; g != nil && *g == 0 {
		return // already so; only finalizers hold it
	}
	select {
	case <-p.gone:
		return
	default:
	}
	now := int64(0)
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		err := p.agent.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID},
		})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return true, nil
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		p.log.Warn("can't delete the pod, trying again", "error", err)
		return false, nil
	})
	if err != nil && ctx.Err() == nil {
		p.log.Error("the pod's deletion was refused", "error", err)
	}
}
