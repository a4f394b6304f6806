package ipam_test

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/berth-net/berth/pkg/ipam"
)

func FuzzParseMAC(f *testing.F) {
	for _, s := range []string{"", "0a:58:0a:00:00:01", "0A-58-0A-00-00-01", "0a58.0a00.0001", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00",
		"01:00:5e:00:00:01", "02:00:5e:10:00:00:00:01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ipam.ParseMAC(s)
		if err != nil {
			if m != (ipam.MAC{}) || !strings.Contains(err.Error(), "MAC") {
				t.Errorf("%q gives %v and %v", s, m, err)
			}
			return
		}
		if m == (ipam.MAC{}) || m[0]&1 != 0 {
			t.Errorf("%q gives %v, which no interface can have", s, m)
		}
		if again, err := ipam.ParseMAC(m.String()); err != nil || again != m {
			t.Errorf("%v is read as %v (%v)", m, again, err)
		}
		// Whatever the spelling, the digits are the same.
		digits := strings.Map(func(r rune) rune {
			if strings.ContainsRune(":-.", r) {
				return -1
			}
			return r
		}, s)
		if b, err := hex.DecodeString(digits); err != nil || !bytes.Equal(b, m[:]) {
			t.Errorf("%q gives %v", s, m)
		}
	})
}

func FuzzParseOwner(f *testing.F) {
	for _, s := range []string{"", "/", "Pod/ns/", "apps/StatefulSet/ns/web-0", "kubeovn.io/Vip//v", "//", "a/b/c/d/e", "/Pod/ns/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := ipam.ParseOwner(s)
		if err != nil {
			if o != (ipam.Owner{}) {
				t.Errorf("%q gives %+v and %v", s, o, err)
			}
			return
		}
		if o.Kind == "" || o.String() != s {
			t.Errorf("%q gives %+v, which is written as %q", s, o, o)
		}
	})
}

func FuzzOwnerString(f *testing.F) {
	f.Add("apps", "StatefulSet", "ns", "web-0")
	f.Add("", "Pod", "ns", "")
	f.Fuzz(func(t *testing.T, group, kind, namespace, name string) {
		if kind == "" || strings.Contains(group+kind+namespace+name, "/") {
			t.Skip("no owner has such a name")
		}
		o := ipam.Owner{Group: group, Kind: kind, Namespace: namespace, Name: name}
		if again, err := ipam.ParseOwner(o.String()); err != nil || again != o {
			t.Errorf("%+v is written as %q and read as %+v (%v)", o, o, again, err)
		}
	})
}

func FuzzParseClaim(f *testing.F) {
	for _, s := range []string{"", "preview", strings.Repeat("0f", 16), strings.Repeat("0F", 16), strings.Repeat("0f", 17), strings.Repeat("é", 16)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, ok := ipam.ParseClaim(s)
		b, err := hex.DecodeString(s)
		if form := err == nil && len(b) == 16 && hex.EncodeToString(b) == s; ok != form {
			t.Errorf("%q is a claim: %t, want %t", s, ok, form)
		}
		if ok && string(c) != s || !ok && c != "" {
			t.Errorf("%q gives %q", s, c)
		}
		if !ok {
			return
		}
		if drawn, err := ipam.NewClaim(bytes.NewReader(b)); err != nil || drawn != c {
			t.Errorf("the bytes of %q are drawn as %q (%v)", c, drawn, err)
		}
	})
}
