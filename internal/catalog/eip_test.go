package catalog

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

// external is an object of one of the kinds of external addresses.
func external(kind, name string, spec, status map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec, "status": status}}
	o.SetGroupVersionKind(kubeovnv1.GroupVersion().WithKind(kind))
	o.SetName(name)
	return o
}

// External addresses are kept from pods, whether they were asked for or given, in whichever of its kinds Kube-OVN is there.
func TestExternalAddressesAreReserved(t *testing.T) {
	kinds := map[string]memkube.Kind{}
	for kind, resource := range map[string]string{ipam.KindOvnEip: "ovn-eips", ipam.KindIptablesEIP: "iptables-eips"} {
		kinds[kind] = memkube.Kind{Group: "kubeovn.io", Version: "v1", Kind: kind, Resource: resource, Custom: true}
	}
	asked := external(ipam.KindOvnEip, "asked", map[string]any{"externalSubnet": "ext", "v4Ip": "10.9.0.5", "v6Ip": "fd09::5"}, nil)
	given := external(ipam.KindOvnEip, "given", map[string]any{"externalSubnet": "ext"}, map[string]any{"v4Ip": "10.9.0.6", "v6Ip": "fd09::6"})
	nat := external(ipam.KindIptablesEIP, "nat", map[string]any{"externalSubnet": "ext", "v4ip": "10.9.0.7"}, map[string]any{"ip": "10.9.0.8"})
	odd := external(ipam.KindIptablesEIP, "odd", map[string]any{"externalSubnet": int64(5), "v4ip": "x"}, nil)
	owner := func(kind, name string) ipam.Owner { return ipam.Owner{Group: "kubeovn.io", Kind: kind, Name: name} }
	ofOVN := map[string]ipam.Owner{"10.9.0.5": owner(ipam.KindOvnEip, "asked"), "fd09::5": owner(ipam.KindOvnEip, "asked"),
		"10.9.0.6": owner(ipam.KindOvnEip, "given"), "fd09::6": owner(ipam.KindOvnEip, "given")}
	ofNAT := map[string]ipam.Owner{"10.9.0.7": owner(ipam.KindIptablesEIP, "nat"), "10.9.0.8": owner(ipam.KindIptablesEIP, "nat")}
	for name, c := range map[string]struct {
		served  []string
		objects []client.Object
		want    []map[string]ipam.Owner
	}{
		"none": {},
		"one":  {[]string{ipam.KindOvnEip}, []client.Object{asked, given}, []map[string]ipam.Owner{ofOVN}},
		"both": {[]string{ipam.KindOvnEip, ipam.KindIptablesEIP}, []client.Object{asked, given, nat, odd}, []map[string]ipam.Owner{ofOVN, ofNAT}},
	} {
		t.Run(name, func(t *testing.T) {
			var o memkube.Options
			for _, kind := range c.served {
				o.Kinds = append(o.Kinds, kinds[kind])
			}
			live := served(t, o, append(c.objects, subnet("ext", "10.9.0.0/24,fd09::/64"))...)
			eips, err := ServedEIPs(live.RESTMapper())
			if err != nil || len(eips) != len(c.served) {
				t.Fatalf("%v are served (%v)", eips, err)
			}
			cat, err := New(Options{Cache: live, Live: live, EIPs: eips}).Topology(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := map[netip.Addr]ipam.Owner{}
			for _, m := range c.want {
				for a, o := range m {
					want[netip.MustParseAddr(a)] = o
				}
			}
			got := cat.Reserved["ext"]
			if got == nil {
				got = map[netip.Addr]ipam.Owner{}
			}
			if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Error(d)
			}
		})
	}
}

// A kind that can't be looked for is not taken for one that isn't there.
func TestUnknownWhetherServed(t *testing.T) {
	s, err := memkube.Start(memkube.Options{})
	if err != nil {
		t.Fatal(err)
	}
	live, err := client.New(s.Config(), client.Options{Scheme: kinds(t)})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if eips, err := ServedEIPs(live.RESTMapper()); err == nil {
		t.Errorf("no error, and %v", eips)
	}
}

// served is an API server with these objects.
func served(t *testing.T, o memkube.Options, objs ...client.Object) client.Client {
	t.Helper()
	s, err := memkube.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	c, err := client.New(s.Config(), client.Options{Scheme: kinds(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, obj := range objs {
		if err := c.Create(t.Context(), obj.DeepCopyObject().(client.Object)); err != nil {
			t.Fatal(err)
		}
	}
	return c
}
