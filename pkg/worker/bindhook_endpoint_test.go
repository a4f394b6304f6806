package worker

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// leaders is an API server with the Service, and what tells that marks pass.
func leaders(t *testing.T, more ...client.Object) client.Client {
	t.Helper()
	types, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "leader", UID: "s1"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "bind", Port: 443}}}}
	return fake.NewClientBuilder().WithScheme(types).WithObjects(append(more, service)...).Build()
}

func policy(passes bool) *registration.ValidatingAdmissionPolicy {
	p := &registration.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: BindingPolicy}}
	if passes {
		p.Annotations = map[string]string{MarksAnnotation: "true"}
	}
	return p
}

func endpointAt(c client.Client, address string) *BindEndpoint {
	return &BindEndpoint{Client: c, Live: c, Clock: clock.RealClock{}, Service: client.ObjectKey{Namespace: "berth-system", Name: "leader"},
		Address: netip.MustParseAddr(address), Port: 9444}
}

// led gives the addresses that a Service leads to.
func led(t *testing.T, c client.Client) []string {
	t.Helper()
	var list discoveryv1.EndpointSliceList
	if err := c.List(t.Context(), &list, client.MatchingLabels{discoveryv1.LabelServiceName: "leader"}); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if !*e.Conditions.Ready || *s.Ports[0].Port != 9444 || *s.Ports[0].Name != "bind" || s.OwnerReferences[0].UID != "s1" {
				t.Errorf("%+v", s)
			}
			out = append(out, string(s.AddressType)+" "+e.Addresses[0])
		}
	}
	return out
}

func TestBindEndpoint(t *testing.T) {
	first, second := "10.0.0.1", "10.0.0.2"
	publish := func(address string, want error) func(*testing.T, client.Client) {
		return func(t *testing.T, c client.Client) {
			if err := endpointAt(c, address).Publish(t.Context()); !errors.Is(err, want) {
				t.Fatal(err)
			}
		}
	}
	withdraw := func(address string) func(*testing.T, client.Client) {
		return func(t *testing.T, c client.Client) {
			if err := endpointAt(c, address).withdraw(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	setPolicy := func(passes bool) func(*testing.T, client.Client) {
		return func(t *testing.T, c client.Client) {
			var p registration.ValidatingAdmissionPolicy
			if err := c.Get(t.Context(), client.ObjectKey{Name: BindingPolicy}, &p); err != nil {
				t.Fatal(err)
			}
			p.Annotations = policy(passes).Annotations
			if err := c.Update(t.Context(), &p); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		have  []client.Object
		steps []func(*testing.T, client.Client)
		want  []string
	}{
		"first":                  {[]client.Object{policy(true)}, []func(*testing.T, client.Client){publish(first, nil)}, []string{"IPv4 10.0.0.1"}},
		"IPv6":                   {[]client.Object{policy(true)}, []func(*testing.T, client.Client){publish("fd00::1", nil)}, []string{"IPv6 fd00::1"}},
		"no policy at all":       {nil, []func(*testing.T, client.Client){publish(first, nil)}, []string{"IPv4 10.0.0.1"}},
		"the next leader":        {nil, []func(*testing.T, client.Client){publish(first, nil), publish(second, nil)}, []string{"IPv4 10.0.0.2"}},
		"ends in order":          {nil, []func(*testing.T, client.Client){publish(first, nil), withdraw(first)}, nil},
		"ends after the next":    {nil, []func(*testing.T, client.Client){publish(first, nil), publish(second, nil), withdraw(first)}, []string{"IPv4 10.0.0.2"}},
		"never began":            {nil, []func(*testing.T, client.Client){withdraw(first)}, nil},
		"marks are refused":      {[]client.Object{policy(false)}, []func(*testing.T, client.Client){publish(first, errRefused)}, nil},
		"marks are refused now":  {[]client.Object{policy(true)}, []func(*testing.T, client.Client){publish(first, nil), setPolicy(false), publish(first, errRefused)}, nil},
		"marks are let pass now": {[]client.Object{policy(false)}, []func(*testing.T, client.Client){publish(first, errRefused), setPolicy(true), publish(first, nil)}, []string{"IPv4 10.0.0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			api := leaders(t, c.have...)
			for _, step := range c.steps {
				step(t, api)
			}
			if d := cmp.Diff(c.want, led(t, api)); d != "" {
				t.Errorf("it leads to (-want +got):\n%s", d)
			}
		})
	}
}

// Without the Service there is nothing to lead.
func TestBindEndpointWithoutService(t *testing.T) {
	api := leaders(t)
	if err := api.Delete(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "leader"}}); err != nil {
		t.Fatal(err)
	}
	if err := endpointAt(api, "10.0.0.1").Publish(t.Context()); err == nil || len(led(t, api)) != 0 {
		t.Errorf("%v %v", err, led(t, api))
	}
}

// An EndpointSlice that is as it should be is not written, one that others change is restored, and at the end nobody is
// left in it.
func TestBindEndpointRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := leaders(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- endpointAt(api, "10.0.0.1").Run(ctx) }()
		version := func() string {
			var s discoveryv1.EndpointSlice
			if err := api.Get(t.Context(), client.ObjectKey{Namespace: "berth-system", Name: "leader-ipv4"}, &s); err != nil {
				t.Fatal(err)
			}
			return s.ResourceVersion
		}
		synctest.Wait()
		before := version()
		time.Sleep(10 * publishEvery)
		synctest.Wait()
		if now := version(); now != before {
			t.Errorf("written without a change: %s, %s", before, now)
		}
		if err := endpointAt(api, "10.0.0.9").Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(publishEvery)
		synctest.Wait()
		if d := cmp.Diff([]string{"IPv4 10.0.0.1"}, led(t, api)); d != "" {
			t.Error(d)
		}
		cancel()
		if err := <-ended; err != nil || led(t, api) != nil {
			t.Errorf("%v, it leads to %v", err, led(t, api))
		}
	})
}
