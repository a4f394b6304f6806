package blockstore

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
)

// What others put on a block's object goes back with the next write.
func TestForeignMetadataSurvives(t *testing.T) {
	o := &v1alpha1.AddressBlock{ObjectMeta: metav1.ObjectMeta{Name: "s-0a000000", ResourceVersion: "7", UID: "u",
		Labels:      map[string]string{v1alpha1.LabelSubnet: "s", v1alpha1.LabelKind: v1alpha1.KindAddresses, "team": "net"},
		Annotations: map[string]string{"note": "mine"}, Finalizers: []string{"x.io/y"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "v"}}},
		Spec: v1alpha1.AddressBlockSpec{Version: 1, Subnet: "s", SubnetUID: "us", First: "10.0.0.0"}}
	b, err := decode(o)
	if err != nil {
		t.Fatal(err)
	}
	want := o.ObjectMeta
	want.ManagedFields = []metav1.ManagedFieldsEntry{{}} // the API server is not to track them
	if d := cmp.Diff(want, encode(b).ObjectMeta); d != "" {
		t.Error(d)
	}
}

// A block that can't be read is one that nobody writes and that has nothing to give, and hides no other.
func TestUnreadableBlock(t *testing.T) {
	meta := func(name string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, ResourceVersion: "7", UID: "u", Labels: labels}
	}
	cases := map[string]struct {
		object v1alpha1.AddressBlock
		want   ipam.Block
	}{
		"no subnet": {v1alpha1.AddressBlock{ObjectMeta: meta("s-a-0a000040", nil)},
			ipam.Block{Name: "s-a-0a000040", Subnet: "s-a", First: netip.MustParseAddr("10.0.0.64"), Version: ipam.Unreadable, ResourceVersion: "7", UID: "u"}},
		"bad lease": {v1alpha1.AddressBlock{ObjectMeta: meta("s-0a000000", nil),
			Spec: v1alpha1.AddressBlockSpec{Version: 1, Subnet: "s", First: "10.0.0.0", Leases: []string{"ip=10.0.0.5 c=x"}}},
			ipam.Block{Name: "s-0a000000", Subnet: "s", First: netip.MustParseAddr("10.0.0.0"), Version: ipam.Unreadable, ResourceVersion: "7", UID: "u"}},
		"bucket": {v1alpha1.AddressBlock{ObjectMeta: meta("s-mac-7f", map[string]string{v1alpha1.LabelSubnet: "s"}),
			Spec: v1alpha1.AddressBlockSpec{Leases: []string{"c=x"}}},
			ipam.Block{Name: "s-mac-7f", Subnet: "s", Version: ipam.Unreadable, ResourceVersion: "7", UID: "u"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := read(&c.object)
			if err == nil {
				t.Error("no error")
			}
			if d := cmp.Diff(&c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.IgnoreUnexported(ipam.Block{})); d != "" {
				t.Error(d)
			}
		})
	}
}
