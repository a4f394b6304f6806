package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/adopt"
	"github.com/berth-net/berth/internal/facts"
	"github.com/berth-net/berth/internal/jsonpatch"
	"github.com/berth-net/berth/internal/report"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// planAgain is what to do about an object that is not any more what was planned for.
const planAgain = "run the command again, which plans by what is there now"

// keeping asks owners whether they keep a lease.
func keeping(ctx context.Context, k *facts.Keeper) func(ipam.Held) lifecycle.Answer {
	return func(h ipam.Held) lifecycle.Answer { return k.Keeps(ctx, h) }
}

// networkOf is what a pod says of its network.
func networkOf(p *corev1.Pod) map[string]string {
	out := map[string]string{}
	for k, v := range p.Annotations {
		if _, _, ok := network.SplitKey(k); ok {
			out[k] = v
		}
	}
	return out
}

// changePod patches exactly the pod that was planned for, by the operations for how it is now, as long as it says of its
// network what it said then. One that is gone needs nothing.
func (c *cluster) changePod(ctx context.Context, planned *corev1.Pod, ops func(*corev1.Pod) []jsonpatch.Operation) error {
	p := planned
	var err error
	for range attempts {
		list := ops(p)
		if len(list) == 0 {
			return nil
		}
		body, bad := json.Marshal(append([]jsonpatch.Operation{jsonpatch.Test(jsonpatch.UID, p.UID), jsonpatch.Test(jsonpatch.ResourceVersion, p.ResourceVersion)}, list...))
		if bad != nil {
			return bad
		}
		err = c.client.Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}, client.RawPatch(types.JSONPatchType, body))
		if !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) {
			break
		}
		var now corev1.Pod
		if bad := c.client.Get(ctx, client.ObjectKeyFromObject(p), &now); bad != nil {
			err = bad
			break
		}
		if now.UID != p.UID {
			return nil
		}
		if !maps.Equal(networkOf(&now), networkOf(planned)) {
			return fmt.Errorf("pod %s/%s has changed meanwhile: %s", p.Namespace, p.Name, planAgain)
		}
		p = &now
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}

// markPod gives a pod what it lacks, and changes nothing that it has.
func (c *cluster) markPod(ctx context.Context, s adopt.PodStep) error {
	return c.changePod(ctx, s.Pod, func(p *corev1.Pod) []jsonpatch.Operation {
		var ops []jsonpatch.Operation
		if len(s.Annotations) > 0 {
			ops = jsonpatch.Fill(jsonpatch.Annotations, p.Annotations, s.Annotations)
		}
		if s.Finalize && p.DeletionTimestamp == nil && !slices.Contains(p.Finalizers, network.Finalizer) {
			ops = append(ops, jsonpatch.Append(jsonpatch.Finalizers, len(p.Finalizers) > 0, network.Finalizer))
		}
		return ops
	})
}

// unmarkPod takes our marks off a pod.
func (c *cluster) unmarkPod(ctx context.Context, s adopt.BackPod) error {
	return c.changePod(ctx, s.Pod, func(p *corev1.Pod) []jsonpatch.Operation {
		var ops []jsonpatch.Operation
		for _, k := range s.Annotations {
			if _, has := p.Annotations[k]; has {
				ops = append(ops, jsonpatch.Remove(jsonpatch.At(jsonpatch.Annotations, k)))
			}
		}
		if i := slices.Index(p.Finalizers, network.Finalizer); i >= 0 {
			ops = append(ops, jsonpatch.Remove(fmt.Sprintf("%s/%d", jsonpatch.Finalizers, i)))
		}
		i := slices.IndexFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == network.AddressGate })
		if i >= 0 {
			ops = append(ops, jsonpatch.Remove(fmt.Sprintf("%s/%d", jsonpatch.SchedulingGates, i)))
		}
		return ops
	})
}

// changeRecord patches exactly the IP record that was planned for, by the metadata for how it is now, as long as it keeps
// the same addresses. A worker that runs writes records, too: that is no reason to give up. nil needs nothing.
func (c *cluster) changeRecord(ctx context.Context, planned *kubeovnv1.IP, change func(*kubeovnv1.IP) map[string]any) error {
	ip := planned
	var err error
	for range attempts {
		metadata := change(ip)
		if metadata == nil {
			return nil
		}
		if err = c.patchAsRead(ctx, ip, metadata, nil); !apierrors.IsConflict(err) {
			return err
		}
		fresh := &kubeovnv1.IP{}
		if bad := c.client.Get(ctx, client.ObjectKeyFromObject(planned), fresh); bad != nil {
			return client.IgnoreNotFound(bad)
		}
		if fresh.UID != planned.UID {
			return nil
		}
		if fresh.Spec.Subnet != planned.Spec.Subnet || fresh.Spec.IPAddress != planned.Spec.IPAddress || fresh.Spec.MacAddress != planned.Spec.MacAddress {
			return fmt.Errorf("IP %s has changed meanwhile: %s", planned.Name, planAgain)
		}
		ip = fresh
	}
	return err
}

// markRecord marks an IP record as ours.
func (c *cluster) markRecord(ctx context.Context, s adopt.RecordStep) error {
	annotations := map[string]string{}
	if s.PodUID != "" {
		annotations[facts.AnnotationPodUID] = s.PodUID
	}
	return c.changeRecord(ctx, s.Record, func(ip *kubeovnv1.IP) map[string]any {
		if ip.Labels[facts.LabelClaim] == string(s.Claim) && ip.Annotations[facts.AnnotationPodUID] == s.PodUID {
			return nil
		}
		return map[string]any{"labels": map[string]string{facts.LabelClaim: string(s.Claim)}, "annotations": annotations}
	})
}

// patchAsRead merges into exactly the object that was read.
func (c *cluster) patchAsRead(ctx context.Context, o client.Object, metadata map[string]any, spec any) error {
	metadata["uid"], metadata["resourceVersion"] = o.GetUID(), o.GetResourceVersion()
	all := map[string]any{"metadata": metadata}
	if spec != nil {
		all["spec"] = spec
	}
	body, err := json.Marshal(all)
	if err != nil {
		return err
	}
	copied, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", o)
	}
	if err := c.client.Patch(ctx, copied, client.RawPatch(types.MergePatchType, body)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("patch %T %s: %w", o, o.GetName(), err)
	}
	return nil
}

// returnRecord brings an IP record into Kube-OVN's form.
func (c *cluster) returnRecord(ctx context.Context, r adopt.BackRecord) error {
	if r.Have == nil {
		if err := c.client.Create(ctx, r.Want.DeepCopy()); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make IP %s: %w", r.Want.Name, err)
		}
		return nil
	}
	return c.changeRecord(ctx, r.Have, func(ip *kubeovnv1.IP) map[string]any {
		if ip.Labels[facts.LabelClaim] == "" {
			return nil
		}
		finalizers := ip.Finalizers
		if !slices.Contains(finalizers, adopt.KubeOVNFinalizer) {
			finalizers = append(slices.Clone(finalizers), adopt.KubeOVNFinalizer)
		}
		return map[string]any{"finalizers": finalizers,
			"labels":      map[string]any{facts.LabelClaim: nil, facts.LabelReserved: r.Want.Labels[facts.LabelReserved]},
			"annotations": map[string]any{facts.AnnotationPodUID: nil}}
	})
}

// setFence puts a fence up, or takes it away. Others write the status of Subnets: that is no reason to give up.
func (c *cluster) setFence(ctx context.Context, s network.Subnet, plan func(network.Subnet) *adopt.FenceStep) error {
	var err error
	for range attempts {
		step := plan(s)
		if step == nil {
			return nil
		}
		labels, annotations := map[string]any{network.LabelManaged: nil}, map[string]any{network.ExcludeKey: nil}
		if step.Managed {
			labels[network.LabelManaged], annotations[network.ExcludeKey] = "true", step.Own
		}
		err = c.patchAsRead(ctx, s.Object, map[string]any{"labels": labels, "annotations": annotations}, map[string]any{"excludeIps": step.Exclude})
		if !apierrors.IsConflict(err) {
			return err
		}
		fresh := &kubeovnv1.Subnet{}
		if bad := c.client.Get(ctx, client.ObjectKeyFromObject(s.Object), fresh); bad != nil {
			return errors.Join(err, bad)
		}
		s.Object = fresh
	}
	return err
}

// freeAll frees leases, and the reservations that they were lent from.
func freeAll(ctx context.Context, l *ipam.Ledger, leases []ipam.Held, m *report.Migration) error {
	for range 2 {
		var refs []ipam.Ref
		lent := map[ipam.Ref]ipam.Held{}
		for _, h := range leases {
			refs = append(refs, h.Ref())
			if h.Under != nil {
				lent[h.Ref()] = h
			}
		}
		if err := l.Free(ctx, refs...); err != nil {
			return fmt.Errorf("free leases, run it again: %w", err)
		}
		leases = nil
		for _, h := range lent {
			if now, ok := l.Lookup(h.Subnet, h.Address); ok && h.LentFrom(now.Owner) {
				leases = append(leases, now)
				m.Step("free", "Subnet", "", now.Subnet, leaseText(now.Lease))
			}
		}
		if len(leases) == 0 {
			return nil
		}
	}
	return nil
}
