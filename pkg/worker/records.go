package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

const (
	labelSubnet   = "ovn.kubernetes.io/subnet"
	labelNode     = "ovn.kubernetes.io/node-name"
	labelReserved = "ovn.kubernetes.io/ip_reserved"
	// labelClaim marks the records that this project makes.
	labelClaim = network.ClaimKey
	// annotationUID is the UID of the pod that a record is for.
	annotationUID = "berth.dev/pod-uid"
)

// recordOf is the IP record of one network of a pod.
func recordOf(s *subject, c wire) *kubeovnv1.IP {
	ip := &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{
			Name: network.PortName(s.identity, s.Namespace, c.Provider),
			Labels: map[string]string{labelSubnet: c.subnet.Name, labelNode: s.Spec.NodeName, c.subnet.Name: "",
				labelReserved: "false", labelClaim: string(s.claim)},
			Annotations: map[string]string{annotationUID: s.uid()},
		},
		Spec: kubeovnv1.IPSpec{PodName: s.identity, Namespace: s.Namespace, Subnet: c.subnet.Name, NodeName: s.Spec.NodeName,
			MacAddress: c.MAC.String(), AttachSubnets: []string{}, AttachIPs: []string{}, AttachMacs: []string{}},
	}
	var texts []string
	for _, a := range c.Addresses {
		texts = append(texts, a.String())
		setFamily(&ip.Spec, a)
	}
	ip.Spec.IPAddress = strings.Join(texts, ",")
	if s.owner.Sticky() {
		ip.Spec.PodType = s.owner.Kind
	}
	return ip
}

func setFamily(spec *kubeovnv1.IPSpec, a netip.Addr) {
	if a.Is4() {
		spec.V4IPAddress = a.String()
		return
	}
	spec.V6IPAddress = a.String()
}

// ensureRecords makes the pod's records, or corrects them.
func (w *Worker) ensureRecords(ctx context.Context, s *subject, wires []wire) error {
	var errs []error
	for _, c := range wires {
		if err := w.ensureRecord(ctx, recordOf(s, c)); err != nil {
			errs = append(errs, fmt.Errorf("IP record of pod %s: %w", s.key(), err))
		}
	}
	return errors.Join(errs...)
}

// reservation tells that somebody made the record to keep the address for the pod: it outlives pods.
func reservation(ip *kubeovnv1.IP) bool {
	return ip.Labels[labelClaim] == "" && ip.Labels[labelReserved] != "false"
}

// noteNode tells by a reservation where its pod is, and touches nothing else of it.
func (w *Worker) noteNode(ctx context.Context, ip *kubeovnv1.IP, node string) error {
	if ip.Spec.NodeName == node {
		return nil
	}
	base := ip.DeepCopy()
	ip.Spec.NodeName = node
	return w.Client.Patch(ctx, ip, client.MergeFrom(base))
}

func (w *Worker) ensureRecord(ctx context.Context, want *kubeovnv1.IP) error {
	var have kubeovnv1.IP
	err := w.Client.Get(ctx, client.ObjectKeyFromObject(want), &have)
	if apierrors.IsNotFound(err) {
		if w.justRecorded(want) {
			return nil
		}
		if err = w.Client.Create(ctx, want.DeepCopy()); err == nil {
			w.noteRecord(want)
		}
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		err = w.Live.Get(ctx, client.ObjectKeyFromObject(want), &have)
	}
	switch {
	case err != nil:
		return err
	case have.DeletionTimestamp != nil:
		return fmt.Errorf("%s is still being deleted: remove its finalizers if nobody does", have.Name)
	case sameRecord(&have, want):
		return nil
	case reservation(&have):
		return w.noteNode(ctx, &have, want.Spec.NodeName)
	}
	labels := map[string]any{}
	if old := have.Labels[labelSubnet]; old != "" && old != want.Spec.Subnet {
		labels[old] = nil
	}
	for k, v := range want.Labels {
		labels[k] = v
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": have.ResourceVersion, "uid": have.UID, "labels": labels, "annotations": want.Annotations},
		"spec":     want.Spec,
	})
	if err != nil {
		return err
	}
	return w.Client.Patch(ctx, &have, client.RawPatch(types.MergePatchType, body))
}

// recordSeen is how long a record that was made may be missing from the cache. A pod's own mark brings the worker back to
// the pod before that.
const recordSeen = 5 * time.Second

// madeRecord is a record and when it was made.
type madeRecord struct {
	record *kubeovnv1.IP
	at     time.Time
}

func (w *Worker) noteRecord(made *kubeovnv1.IP) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recorded[made.Name] = madeRecord{made, w.Clock.Now()}
}

// justRecorded tells that the record was made a moment ago.
func (w *Worker) justRecorded(want *kubeovnv1.IP) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, ok := w.recorded[want.Name]
	return ok && w.Clock.Since(m.at) < recordSeen && sameRecord(m.record, want)
}

// forgetRecords forgets those that the cache must have by now.
func (w *Worker) forgetRecords() {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.recorded, func(_ string, m madeRecord) bool { return w.Clock.Since(m.at) >= recordSeen })
}

func sameRecord(have, want *kubeovnv1.IP) bool {
	labels := maps.Clone(have.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, want.Labels)
	spec := have.Spec
	spec.AttachSubnets, spec.AttachIPs, spec.AttachMacs = want.Spec.AttachSubnets, want.Spec.AttachIPs, want.Spec.AttachMacs
	spec.ContainerID = want.Spec.ContainerID
	return maps.Equal(labels, have.Labels) && have.Annotations[annotationUID] == want.Annotations[annotationUID] && reflect.DeepEqual(spec, want.Spec)
}

// dropRecords deletes the pod's own records. thorough looks live for those that the cache doesn't know yet.
func (w *Worker) dropRecords(ctx context.Context, s *subject, thorough bool) error {
	var errs []error
	for _, c := range s.carried {
		if len(c.Addresses) == 0 && c.MAC == (ipam.MAC{}) {
			continue
		}
		key := client.ObjectKey{Name: network.PortName(s.identity, s.Namespace, c.Provider)}
		var ip kubeovnv1.IP
		err := w.Client.Get(ctx, key, &ip)
		if apierrors.IsNotFound(err) && thorough {
			err = w.Live.Get(ctx, key, &ip)
		}
		if err == nil && ip.Annotations[annotationUID] == s.uid() {
			err = w.dropRecord(ctx, &ip)
		}
		if client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("IP record of pod %s: %w", s.key(), err))
		}
	}
	return errors.Join(errs...)
}

// dropRecord deletes exactly this record.
func (w *Worker) dropRecord(ctx context.Context, ip *kubeovnv1.IP) error {
	w.mu.Lock()
	delete(w.recorded, ip.Name)
	w.mu.Unlock()
	return client.IgnoreNotFound(w.Client.Delete(ctx, ip, client.Preconditions{UID: &ip.UID, ResourceVersion: &ip.ResourceVersion}))
}
