package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// BindingPolicy is the ValidatingAdmissionPolicy of what a Binding may carry.
	BindingPolicy = "berth-pod-binding"
	// MarksAnnotation is "true" on a BindingPolicy that lets marks pass, since PathGuard refuses those of callers.
	MarksAnnotation = "berth.dev/marks-by-hook"
	// managedBy is the value of the label by which nobody else takes the EndpointSlice for his.
	managedBy = "finalizer-worker.berth.dev"
)

const (
	publishEvery  = 10 * time.Second
	withdrawLimit = 2 * time.Second
)

// errRefused is that marks on Bindings are refused, whoever puts them there.
var errRefused = errors.New("ValidatingAdmissionPolicy " + BindingPolicy + " refuses marks on Bindings: apply manifests/components/bind-hook, which lets them pass, or take --bind-hook off")

// BindEndpoint leads a Service without a selector to this process while it leads. It writes the Service's EndpointSlice.
//
// Why neither readiness nor a label: a standby has to be ready, or no rollout would get on and none would be left when the
// leader's node is drained; and a label stays on the pod whose container dies, whose next process may be the standby, while
// the new leader labels another. An EndpointSlice has one place for one address:
//   - a new leader writes over it as soon as it leads, and nobody else has to do anything first;
//   - one that ends in order takes itself out before it gives up the lease;
//   - one that crashes stays in it until the next one leads. Calls to it are refused by its host meanwhile, or time out
//     after a second if that is gone too; both are failed calls, and failurePolicy Ignore lets the Binding pass;
//   - after a rollback to a worker without the hook it points to nobody who has the certificate, and goes with its Service.
//
// Two that take themselves for leaders, for the seconds that the lease needs to tell them, overwrite each other; the one
// that was taken over from finds by the epoch that it must give no marks.
type BindEndpoint struct {
	// Client writes the EndpointSlice, Live reads it, the Service and the policy.
	Client client.Client
	Live   client.Reader
	Clock  clock.WithTicker
	// Log may be the zero value.
	Log logr.Logger
	// Service is where the API server calls.
	Service client.ObjectKey
	// Address and Port are where this process listens.
	Address netip.Addr
	Port    int32
}

// Run publishes the address until ctx ends, restores it when somebody else changes it, and takes it out at the end.
func (e *BindEndpoint) Run(ctx context.Context) error {
	tick := e.Clock.NewTicker(publishEvery)
	defer tick.Stop()
	told := ""
	for {
		problem := ""
		if err := e.Publish(ctx); err != nil && ctx.Err() == nil {
			problem = err.Error()
		}
		if problem != told && problem != "" {
			e.Log.Info("Bindings are not asked about", "service", e.Service, "reason", problem)
		}
		told = problem
		select {
		case <-ctx.Done():
			return e.withdraw(context.WithoutCancel(ctx))
		case <-tick.C():
		}
	}
}

// Publish writes the EndpointSlice where it is not as it should be. While the policy refuses marks nobody is in it: every
// Binding that got some would be refused.
func (e *BindEndpoint) Publish(ctx context.Context) error {
	var service corev1.Service
	if err := e.Live.Get(ctx, e.Service, &service); err != nil {
		return fmt.Errorf("read Service %s, which manifests/components/bind-hook has: %w", e.Service, err)
	}
	pass, err := e.marksPass(ctx)
	if err != nil {
		return err
	}
	want := e.slice(&service)
	if !pass {
		want.Endpoints, err = []discoveryv1.Endpoint{}, errRefused
	}
	return errors.Join(err, e.write(ctx, want))
}

// marksPass tells whether the policy lets marks on Bindings pass. Where there is no policy everything passes.
func (e *BindEndpoint) marksPass(ctx context.Context) (bool, error) {
	var policy registration.ValidatingAdmissionPolicy
	err := e.Live.Get(ctx, client.ObjectKey{Name: BindingPolicy}, &policy)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read ValidatingAdmissionPolicy %s: %w", BindingPolicy, err)
	}
	return policy.Annotations[MarksAnnotation] == "true", nil
}

func (e *BindEndpoint) name() string {
	if e.Address.Unmap().Is4() {
		return e.Service.Name + "-ipv4"
	}
	return e.Service.Name + "-ipv6"
}

// slice leads the Service's port to this process. It goes with the Service.
func (e *BindEndpoint) slice(service *corev1.Service) *discoveryv1.EndpointSlice {
	ready, family := true, discoveryv1.AddressTypeIPv6
	if e.Address.Unmap().Is4() {
		family = discoveryv1.AddressTypeIPv4
	}
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.Service.Namespace, Name: e.name(),
			Labels:          map[string]string{discoveryv1.LabelServiceName: e.Service.Name, discoveryv1.LabelManagedBy: managedBy},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID}}},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{e.Address.Unmap().String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
	for _, p := range service.Spec.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &e.Port, Protocol: new(corev1.ProtocolTCP)})
	}
	return s
}

// write creates the EndpointSlice or puts it right: by PUT with the version that was read, so that of two writers the
// later one sees what the other has written.
func (e *BindEndpoint) write(ctx context.Context, want *discoveryv1.EndpointSlice) error {
	var have discoveryv1.EndpointSlice
	err := e.Live.Get(ctx, client.ObjectKeyFromObject(want), &have)
	switch {
	case err == nil && sameSlice(&have, want):
		return nil
	case err == nil:
		have.OwnerReferences, have.Endpoints, have.Ports = want.OwnerReferences, want.Endpoints, want.Ports
		if have.Labels == nil {
			have.Labels = map[string]string{}
		}
		maps.Copy(have.Labels, want.Labels)
		err = e.Client.Update(ctx, &have)
	case apierrors.IsNotFound(err):
		err = e.Client.Create(ctx, want)
	}
	if err != nil {
		return fmt.Errorf("EndpointSlice %s/%s: %w", want.Namespace, want.Name, err)
	}
	e.Log.Info("The EndpointSlice of bindings is written", "service", e.Service, "endpoints", len(want.Endpoints), "address", e.Address.String(), "port", e.Port)
	return nil
}

func sameSlice(have, want *discoveryv1.EndpointSlice) bool {
	for k, v := range want.Labels {
		if have.Labels[k] != v {
			return false
		}
	}
	return equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) &&
		equality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences)
}

// withdraw takes this process out of the EndpointSlice, unless another one has taken its place.
func (e *BindEndpoint) withdraw(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, withdrawLimit)
	defer cancel()
	var have discoveryv1.EndpointSlice
	if err := e.Live.Get(ctx, client.ObjectKey{Namespace: e.Service.Namespace, Name: e.name()}, &have); err != nil {
		return client.IgnoreNotFound(err)
	}
	if len(have.Endpoints) != 1 || len(have.Endpoints[0].Addresses) != 1 || have.Endpoints[0].Addresses[0] != e.Address.Unmap().String() {
		return nil
	}
	have.Endpoints = []discoveryv1.Endpoint{}
	if err := e.Client.Update(ctx, &have); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("EndpointSlice %s/%s: %w", have.Namespace, have.Name, err)
	}
	return nil
}
