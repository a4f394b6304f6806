package blockstore

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-net/berth/internal/memkube"
	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/storetest"
)

func open(t *testing.T, o memkube.Options) *Store {
	t.Helper()
	server, err := memkube.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	s, err := New(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Watched { return open(t, memkube.Options{}) })
}

func TestErrorsOfWrites(t *testing.T) {
	gr, gk := schema.GroupResource{Group: "berth.dev", Resource: resource}, schema.GroupKind{Group: "berth.dev", Kind: "AddressBlock"}
	status := func(code int, reason metav1.StatusReason) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason}}
	}
	for name, c := range map[string]struct {
		err  error
		want error // nil: unknown
	}{
		"conflict":      {apierrors.NewConflict(gr, "b", errors.New("changed")), ipam.ErrConflict},
		"exists":        {apierrors.NewAlreadyExists(gr, "b"), ipam.ErrConflict},
		"invalid":       {apierrors.NewInvalid(gk, "b", nil), ipam.ErrRefused},
		"forbidden":     {apierrors.NewForbidden(gr, "b", errors.New("no")), ipam.ErrRefused},
		"bad request":   {apierrors.NewBadRequest("no"), ipam.ErrRefused},
		"too large":     {status(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge), ipam.ErrRefused},
		"not found":     {apierrors.NewNotFound(gr, "b"), nil}, // of a POST: the kind is not served
		"timeout":       {apierrors.NewTimeoutError("slow", 0), nil},
		"too many":      {apierrors.NewTooManyRequests("busy", 1), nil},
		"internal":      {apierrors.NewInternalError(errors.New("etcd")), nil},
		"lost the line": {memkube.ErrAbort, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			s := open(t, memkube.Options{Intercept: func(memkube.Request) memkube.Fault {
				asked.Add(1)
				return memkube.Fault{Err: c.err}
			}})
			_, err := s.Write(t.Context(), storetest.Blocks()[0])
			if err == nil || errors.Is(err, ipam.ErrConflict) != errors.Is(c.want, ipam.ErrConflict) || errors.Is(err, ipam.ErrRefused) != errors.Is(c.want, ipam.ErrRefused) {
				t.Errorf("got %v, want kind %v", err, c.want)
			}
			if n := asked.Load(); n != 1 {
				t.Errorf("the write was sent %d times", n)
			}
		})
	}
}

func TestLostAnswerIsUnknown(t *testing.T) {
	drop := true
	s := open(t, memkube.Options{Intercept: func(r memkube.Request) memkube.Fault { return memkube.Fault{DropAnswer: drop && r.Verb == "create"} }})
	b := storetest.Blocks()[0]
	if _, err := s.Write(t.Context(), b); err == nil || errors.Is(err, ipam.ErrConflict) || errors.Is(err, ipam.ErrRefused) {
		t.Errorf("got %v, want an unknown outcome", err)
	}
	if got, err := s.Get(t.Context(), b.Name); err != nil || storetest.Diff(b, got) != "" {
		t.Errorf("the write had landed, but reading gives %v (%v)", got, err)
	}
}

func TestDerivedMACIsNotWritten(t *testing.T) {
	o := encode(storetest.Blocks()[0])
	if a, b := o.Spec.Leases[0], o.Spec.Leases[1]; strings.Contains(a, " mac=") || !strings.Contains(b, " mac=02:01:02:03:04:05 ") {
		t.Errorf("written: %q, %q", a, b)
	}
}

// reword gives the word of a key another value.
func reword(list []string, i int, key, value string) {
	words := strings.Split(list[i], " ")
	for j, w := range words {
		if strings.HasPrefix(w, key+"=") {
			words[j] = key + "=" + value
		}
	}
	list[i] = strings.Join(words, " ")
}

func TestMalformed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1alpha1.AddressBlock)
		field  string
		key    string
	}{
		"no subnet":       {func(o *v1alpha1.AddressBlock) { o.Spec.Subnet = "" }, "spec.subnet", ""},
		"first":           {func(o *v1alpha1.AddressBlock) { o.Spec.First = "x" }, "spec.first", ""},
		"first unaligned": {func(o *v1alpha1.AddressBlock) { o.Spec.First = "10.0.0.65" }, "spec.first", ""},
		"no first":        {func(o *v1alpha1.AddressBlock) { o.Spec.First = "" }, "spec.first", ""},
		"address":         {func(o *v1alpha1.AddressBlock) { reword(o.Spec.Leases, 1, "ip", "10.0.0.300") }, "spec.leases[1]", "ip"},
		"other block":     {func(o *v1alpha1.AddressBlock) { reword(o.Spec.Leases, 0, "ip", "10.0.0.1") }, "spec.leases[0]", "ip"},
		"mapped":          {func(o *v1alpha1.AddressBlock) { reword(o.Spec.Leases, 0, "ip", "::ffff:10.0.0.65") }, "spec.leases[0]", "ip"},
		"MAC":             {func(o *v1alpha1.AddressBlock) { reword(o.Spec.Leases, 1, "mac", "zz") }, "spec.leases[1]", "mac"},
		"claim":           {func(o *v1alpha1.AddressBlock) { reword(o.Spec.Leases, 0, "c", "me") }, "spec.leases[0]", "c"},
		"owner":           {func(o *v1alpha1.AddressBlock) { reword(o.Spec.Leases, 0, "o", "me") }, "spec.leases[0]", "o"},
		"twice":           {func(o *v1alpha1.AddressBlock) { reword(o.Spec.Leases, 1, "ip", "10.0.0.65") }, "spec.leases", ""},
		"generation":      {func(o *v1alpha1.AddressBlock) { reword(o.Spec.Leases, 0, "g", "x") }, "spec.leases[0]", "g"},
		"requested":       {func(o *v1alpha1.AddressBlock) { reword(o.Spec.Leases, 1, "r", "yes") }, "spec.leases[1]", "r"},
		"escape":          {func(o *v1alpha1.AddressBlock) { reword(o.Spec.Leases, 0, "p", "50%") }, "spec.leases[0]", "p"},
		"no word":         {func(o *v1alpha1.AddressBlock) { o.Spec.Leases[0] += " x" }, "spec.leases[0]", `"x"`},
		"nothing":         {func(o *v1alpha1.AddressBlock) { o.Spec.Freed[0] = "" }, "spec.freed[0]", `""`},
		"freed":           {func(o *v1alpha1.AddressBlock) { reword(o.Spec.Freed, 0, "ip", "") }, "spec.freed[0]", "ip"},
		"freed's owner":   {func(o *v1alpha1.AddressBlock) { reword(o.Spec.Freed, 0, "o", "me") }, "spec.freed[0]", "o"},
	} {
		t.Run(name, func(t *testing.T) {
			o := encode(storetest.Blocks()[0])
			c.change(o)
			_, err := decode(o)
			var bad *MalformedError
			if !errors.As(err, &bad) || bad.Field != c.field || bad.Block != o.Name {
				t.Errorf("got %v, want a *MalformedError of %s", err, c.field)
			}
			var word *v1alpha1.WordError
			if errors.As(err, &word); c.key != "" && (word == nil || word.Key != c.key) {
				t.Errorf("got %v, want a *WordError of %s", err, c.key)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range storetest.Blocks() {
		raw, err := json.Marshal(encode(b))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{"spec":{"subnet":"s","leases":["ip=x"],"freed":[""]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var o v1alpha1.AddressBlock
		if json.Unmarshal(raw, &o) != nil {
			return
		}
		b, err := decode(&o)
		if err != nil {
			var bad *MalformedError
			if !errors.As(err, &bad) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		again, err := decode(encode(b))
		if err != nil {
			t.Fatalf("what was read can't be read again: %v", err)
		}
		if d := storetest.Diff(b, again); d != "" {
			t.Fatalf("changed on the way:\n%s", d)
		}
	})
}
