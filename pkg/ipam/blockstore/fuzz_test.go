package blockstore

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/storetest"
)

// written gives an object's bytes, as they go to the API server.
func written(t *testing.T, b *ipam.Block) []byte {
	t.Helper()
	raw, err := json.Marshal(encode(b))
	if err != nil {
		t.Fatalf("%+v can't be written: %v", b, err)
	}
	return raw
}

func readBack(t *testing.T, raw []byte) *ipam.Block {
	t.Helper()
	var o v1alpha1.AddressBlock
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Fatalf("%s can't be read: %v", raw, err)
	}
	b, err := decode(&o)
	if err != nil {
		t.Fatalf("%s can't be decoded: %v", raw, err)
	}
	return b
}

// ambiguous tells that an object has a field whose name is a known one but for its case: JSON of Go takes it for both.
func ambiguous(raw []byte) bool {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return true
	}
	known := strings.Fields("version subnet subnetuid first revision leases freed spec metadata kind apiversion")
	var look func(any) bool
	look = func(v any) bool {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				for _, name := range known {
					if k != "subnetUID" && k != "apiVersion" && k != name && strings.EqualFold(k, name) {
						return true
					}
				}
				if look(x) {
					return true
				}
			}
		case []any:
			for _, x := range v {
				if look(x) {
					return true
				}
			}
		}
		return false
	}
	return look(v)
}

// FuzzObject holds that whatever is read is written in one form, and that nothing gets lost on the way.
func FuzzObject(f *testing.F) {
	for _, b := range storetest.Blocks() {
		raw, err := json.Marshal(encode(b))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	claim := strings.Repeat("0f", 16)
	f.Add([]byte(`{"spec":{"subnet":"s","first":"10.0.0.0","x":[1,{"y":2}],"leases":["ip=10.0.0.9 mac=0a-58-0a-00-00-09 c=` + claim +
		` o=Pod/ns/ z=a%20b","ip=10.0.0.1 c=` + claim + ` o=Pod/ns/ v=kubeovn.io/Vip//v"],"freed":["ip=10.0.0.9 t=1","ip=10.0.0.2"]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var o v1alpha1.AddressBlock
		if ambiguous(raw) || json.Unmarshal(raw, &o) != nil {
			return
		}
		b, err := decode(&o)
		if err != nil {
			var bad *MalformedError
			if !errors.As(err, &bad) || bad.Block != o.Name || bad.Field == "" {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if d := cmp.Diff(o.Spec.Unknown, b.Unknown); d != "" {
			t.Fatalf("unknown fields of the block:\n%s", d)
		}
		first := written(t, b)
		again := readBack(t, first)
		if d := storetest.Diff(compact(t, b), compact(t, again)); d != "" {
			t.Fatalf("changed on the way:\n%s", d)
		}
		if second := written(t, again); !bytes.Equal(first, second) {
			t.Fatalf("written in two forms:\n%s\n%s", first, second)
		}
	})
}

// compact gives b with its unknown fields as JSON is written: without spaces, and escaped.
func compact(t *testing.T, b *ipam.Block) *ipam.Block {
	t.Helper()
	small := func(m map[string]json.RawMessage) map[string]json.RawMessage {
		out := map[string]json.RawMessage{}
		for k, v := range m {
			raw, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			out[k] = raw
		}
		return out
	}
	c := *b
	c.Unknown = small(b.Unknown)
	return &c
}

// FuzzBlock holds that every block that a ledger can make comes back as it was.
func FuzzBlock(f *testing.F) {
	f.Add(false, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9}, "ns", "web", "provider")
	f.Add(true, bytes.Repeat([]byte{0x5a, 7, 0xff}, 60), "", "", "")
	f.Fuzz(func(t *testing.T, v6 bool, seed []byte, namespace, name, provider string) {
		for _, s := range []string{namespace, name, provider} {
			if strings.ContainsAny(s, "/") || strings.ToValidUTF8(s, "") != s {
				t.Skip("the API server has no such name")
			}
		}
		b := blockOf(v6, seed, namespace, name, provider)
		if d := storetest.Diff(b, readBack(t, written(t, b))); d != "" {
			t.Fatalf("changed on the way:\n%s", d)
		}
	})
}

// blockOf makes a block: of each three bytes of seed, the first says what becomes of the next address.
func blockOf(v6 bool, seed []byte, namespace, name, provider string) *ipam.Block {
	b := &ipam.Block{Name: "s-x", Subnet: "s", SubnetUID: "uid", First: netip.MustParseAddr("10.1.2.64"), Version: ipam.FormatVersion}
	if v6 {
		b.First = netip.MustParseAddr("fd00:1::40")
	}
	a := b.First
	for i := 0; i+3 <= len(seed) && i/3 < ipam.BlockSize; i, a = i+3, a.Next() {
		what, n := seed[i], int64(binary.BigEndian.Uint16(seed[i+1:]))
		owner := ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: namespace, Name: name}
		if what&1 == 0 {
			owner = ipam.PodOwner(namespace)
		}
		switch {
		case what&6 == 2:
			x := ipam.Freed{Address: a, At: n}
			if owner.Sticky() {
				x.Owner = owner
			}
			b.Freed = append(b.Freed, x)
		case what&6 >= 4:
			l := &ipam.Lease{Address: a, Generation: n, Owner: owner, Provider: provider, Requested: what&8 != 0,
				Claim: ipam.Claim(hex.EncodeToString(bytes.Repeat(seed[i:i+1], 16)))}
			switch {
			case a.Is4() && what&16 == 0:
				l.MAC = ipam.DerivedMAC(a)
			case a.Is4() || what&16 != 0:
				l.MAC = ipam.HashedMAC(a, uint32(what))
			}
			if what&32 != 0 {
				l.PodUID, l.PodName = "uid-"+name, name
			}
			if what&64 != 0 {
				l.Under = &ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindVip, Name: name}
				l.OwnerUID = "uid-of-" + name
			}
			if what&128 != 0 {
				l.Unknown = map[string]string{"later": name}
			}
			b.Leases = append(b.Leases, l)
			b.Revision = max(b.Revision, n)
		}
	}
	return b
}
