package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/pkg/ipam"
)

// conditionAddress is the condition of a pod that tells whether it waits for an address.
const conditionAddress = "berth.dev/Address"

// waiter is a pod that waits for addresses, under a claim that stands on it already.
type waiter struct {
	key     client.ObjectKey
	uid     types.UID
	created time.Time
	request ipam.Request
}

// lacks finds the interface of the waiter for which it could have the address, besides what it has already.
func (x waiter) lacks(h ipam.Held, have []ipam.Held) (provider string, ok bool) {
	for _, i := range x.request.Interfaces {
		held := slices.ContainsFunc(have, func(l ipam.Held) bool {
			return l.Provider == i.Provider && l.Address.IsValid() && ipam.FamilyOf(l.Address) == ipam.FamilyOf(h.Address)
		})
		if !held && i.Takes(h.Subnet, h.Address) {
			return i.Provider, true
		}
	}
	return "", false
}

// wait puts a pod among those that wait for an address, or corrects what it waits for.
func (w *Worker) wait(pod *corev1.Pod, r ipam.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := client.ObjectKeyFromObject(pod)
	w.waiting[key] = waiter{key: key, uid: pod.UID, created: pod.CreationTimestamp.Time, request: r}
	w.Metrics.waiting.Set(float64(len(w.waiting)))
}

// unwait takes it out again.
func (w *Worker) unwait(key client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, key)
	w.Metrics.waiting.Set(float64(len(w.waiting)))
}

// queue gives the waiters, oldest pod first.
func (w *Worker) queue() []waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]waiter, 0, len(w.waiting))
	for _, x := range w.waiting {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b waiter) int { return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.uid, b.uid)) })
	return out
}

// free gives leases back: each to the oldest pod that waits for its address, else to everybody. So no creation overtakes
// those that wait.
func (w *Worker) free(ctx context.Context, leases []ipam.Held) error {
	queue := w.queue()
	got := map[ipam.Claim][]ipam.Held{}
	var refs []ipam.Ref
	for _, l := range leases {
		over, err := w.handOver(ctx, l, queue, got)
		if err != nil {
			return err
		}
		if !over {
			refs = append(refs, l.Ref())
		}
	}
	if len(refs) == 0 {
		return nil
	}
	return ignoreStale(w.Ledger.Free(ctx, refs...))
}

// handOver gives a lease to the oldest waiter that lacks it. What is lent goes back to whom it is reserved for.
func (w *Worker) handOver(ctx context.Context, l ipam.Held, queue []waiter, got map[ipam.Claim][]ipam.Held) (bool, error) {
	if !l.Address.IsValid() || l.Under != nil {
		return false, nil
	}
	if _, closed := w.Ledger.ClosedHere()[l.Subnet]; closed { // it may be another's, whose lease is lost
		return false, nil
	}
	for _, x := range queue {
		provider, ok := x.lacks(l, append(w.Ledger.ByClaim(x.request.Claim), got[x.request.Claim]...))
		if !ok || x.request.Claim == l.Claim {
			continue
		}
		to := ipam.Lease{Claim: x.request.Claim, Owner: x.request.Owner, Provider: provider}
		if l.Address.Is4() { // an IPv6 lease gets its MAC when the waiter takes it
			to.MAC = ipam.DerivedMAC(l.Address)
		}
		h, err := w.Ledger.HandOver(ctx, l.Ref(), to)
		if ignoreStale(err) != nil {
			return false, fmt.Errorf("hand %s over to pod %s: %w", l.Ref(), x.key, err)
		}
		if err == nil {
			fault.Hit(fault.HandedOver)
			got[x.request.Claim] = append(got[x.request.Claim], h)
			w.Metrics.handedOver.Inc()
			w.enqueue(x.key)
		}
		return true, nil // gone meanwhile: nothing is left to free
	}
	return false, nil
}

// Freed hears from the ledger of leases that are gone: the oldest pod that lacks the address is looked at. When too many
// come at once some are passed over; those that wait come back by themselves.
func (w *Worker) Freed(h ipam.Held) {
	select {
	case w.loose <- h:
	default:
	}
}

// stir wakes waiters until the context ends.
func (w *Worker) stir(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case h := <-w.loose:
			for _, x := range w.queue() {
				if _, lacks := x.lacks(h, w.Ledger.ByClaim(x.request.Claim)); lacks {
					w.enqueue(x.key)
					break
				}
			}
		}
	}
}

// tellWaiting says on the pod, by a condition, that it waits and for what; an empty text: no more.
func (w *Worker) tellWaiting(ctx context.Context, pod *corev1.Pod, text string) error {
	want := corev1.PodCondition{Type: conditionAddress, Status: corev1.ConditionFalse, Reason: reasonWaiting, Message: text}
	if text == "" {
		want.Status, want.Reason = corev1.ConditionTrue, "Given"
	}
	waited := false
	for _, c := range pod.Status.Conditions {
		if c.Type == conditionAddress && c.Status == want.Status && c.Reason == want.Reason {
			return nil // the figures in the text change all the time
		}
		waited = waited || c.Type == conditionAddress
	}
	if !waited && text == "" {
		return nil
	}
	want.LastTransitionTime = metav1.NewTime(w.Clock.Now())
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{want}}})
	if err != nil {
		return err
	}
	obj := &corev1.Pod{}
	obj.Namespace, obj.Name = pod.Namespace, pod.Name
	err = w.Client.Status().Patch(ctx, obj, client.RawPatch(types.StrategicMergePatchType, body))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("condition of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
