package v1alpha1

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLeaseText(t *testing.T) {
	for name, c := range map[string]struct {
		lease Lease
		text  string
	}{
		"pod": {Lease{Address: "10.0.0.5", Claim: "0f", Generation: 7, Owner: "Pod/ns/", Provider: "ovn", PodUID: "u", PodName: "web-0"},
			"ip=10.0.0.5 c=0f g=7 o=Pod/ns/ n=ovn u=u p=web-0"},
		"all": {Lease{Address: "fd00::5", MAC: "02:00:00:00:00:01", Claim: "0f", Generation: 1 << 40, Owner: "apps/StatefulSet/ns/web-0", OwnerUID: "su", Provider: "a.ns.ovn",
			Requested: true, Under: "kubeovn.io/Vip//v", PodUID: "u", PodName: "p", Unknown: map[string]string{"z": "", "y": "a b=100%"}},
			"ip=fd00::5 mac=02:00:00:00:00:01 c=0f g=1099511627776 o=apps/StatefulSet/ns/web-0 i=su n=a.ns.ovn r=1 v=kubeovn.io/Vip//v u=u p=p y=a%20b=100%25 z="},
		"least": {Lease{}, "g=0"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.lease.String(); got != c.text {
				t.Errorf("written as %q, want %q", got, c.text)
			}
			got, err := ParseLease(c.text)
			if d := cmp.Diff(c.lease, got); err != nil || d != "" {
				t.Errorf("%v\n%s", err, d)
			}
		})
	}
}

func TestFreedText(t *testing.T) {
	f := Freed{Address: "10.0.0.5", At: 1700000000, Owner: "Pod/ns/", Unknown: map[string]string{"x": "1"}}
	const text = "ip=10.0.0.5 t=1700000000 o=Pod/ns/ x=1"
	if f.String() != text {
		t.Errorf("written as %q", f)
	}
	if got, err := ParseFreed(text); err != nil || cmp.Diff(f, got) != "" {
		t.Errorf("%v\n%s", err, cmp.Diff(f, got))
	}
}

func TestBadText(t *testing.T) {
	for text, key := range map[string]string{"": `""`, "ip": `"ip"`, "=5": `"=5"`, "ip=1  c=2": `""`, "g=x": "g", "r=0": "r", "n=%zz": "n"} {
		var bad *WordError
		if _, err := ParseLease(text); !errors.As(err, &bad) || bad.Key != key {
			t.Errorf("%q gives %v, want a *WordError of %s", text, err, key)
		}
	}
	var bad *WordError
	if _, err := ParseFreed("t=soon"); !errors.As(err, &bad) || bad.Key != "t" {
		t.Errorf("got %v", err)
	}
}

// FuzzLease holds that whatever is read has one form to be written in, and that nothing gets lost on the way.
func FuzzLease(f *testing.F) {
	f.Add("ip=10.0.0.5 c=0f g=7 o=Pod/ns/ n=ovn u=u p=web-0 r=1 v=a/b/c/d x=%20")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLease(text)
		if err != nil {
			return
		}
		again, err := ParseLease(l.String())
		if d := cmp.Diff(l, again); err != nil || d != "" {
			t.Fatalf("%q: %v\n%s", text, err, d)
		}
	})
}
