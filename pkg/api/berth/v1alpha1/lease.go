package v1alpha1

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Lease records that an address belongs to an owner. In a block it is one text of words "key=value" with a space
// between them: the keys are short, for there are 64 leases in a block. Spaces and percent signs of a value are written
// as in a URL. A word with an unknown key was written by a newer version, and is kept.
//
// +kubebuilder:object:generate=false
type Lease struct {
	// Address (ip); empty in a bucket of MACs.
	Address string
	// MAC (mac), unless it is derived from an IPv4 address (0a:58 and its four bytes).
	MAC string
	// Claim (c) is the random id of one pod's set of leases: 32 hexadecimal digits.
	Claim string
	// Generation (g) is raised by every take, bind and reuse.
	Generation int64
	// Owner (o) is who may come back to this lease: "[group/]Kind/namespace/name".
	Owner string
	// OwnerUID (i) is the UID of the object that the owner's pods are controlled by, where that is known.
	OwnerUID string
	// Provider (n) is the network of the pod that the lease is for, as in its annotations' prefix.
	Provider string
	// Requested (r=1) tells that the address was asked for.
	Requested bool
	// Under (v) is the owner of the reservation that the address is lent from and goes back to when it is freed.
	Under string
	// PodUID (u) is the UID of the pod that the lease is bound to; empty while it is pending.
	PodUID string
	// PodName (p) is the name of that pod, for people.
	PodName string

	// Unknown holds the words of a newer version by their keys.
	Unknown map[string]string
}

// Freed remembers the last use of a free address. Its text has the form of a Lease's.
//
// +kubebuilder:object:generate=false
type Freed struct {
	// Address (ip) that was freed.
	Address string
	// At (t) is when, in seconds of Unix time on the clock of whoever freed it. It orders reuse and nothing else.
	At int64
	// Owner (o) who had it: the rest does not hold for them.
	Owner string

	// Unknown holds the words of a newer version by their keys.
	Unknown map[string]string
}

// WordError says which word of a lease's text can't be read.
//
// +kubebuilder:object:generate=false
type WordError struct {
	// Key of the word; the whole word where there is none.
	Key string
	// Err says what is wrong with it.
	Err error
}

func (e *WordError) Error() string { return fmt.Sprintf("%s: %v", e.Key, e.Err) }

// Unwrap returns what is wrong.
func (e *WordError) Unwrap() error { return e.Err }

// String gives the text of the lease.
func (l Lease) String() string {
	var t text
	t.word("ip", l.Address)
	t.word("mac", l.MAC)
	t.word("c", l.Claim)
	t.number("g", l.Generation)
	t.word("o", l.Owner)
	t.word("i", l.OwnerUID)
	t.word("n", l.Provider)
	if l.Requested {
		t.word("r", "1")
	}
	t.word("v", l.Under)
	t.word("u", l.PodUID)
	t.word("p", l.PodName)
	return t.end(l.Unknown)
}

// ParseLease reads the text of a lease. Errors are *WordError.
func ParseLease(s string) (Lease, error) {
	var l Lease
	err := parse(s, func(key, value string) (err error) {
		switch key {
		case "ip":
			l.Address = value
		case "mac":
			l.MAC = value
		case "c":
			l.Claim = value
		case "g":
			l.Generation, err = number(value)
		case "o":
			l.Owner = value
		case "i":
			l.OwnerUID = value
		case "n":
			l.Provider = value
		case "r":
			if l.Requested = value == "1"; !l.Requested {
				err = fmt.Errorf("%q is not 1", value)
			}
		case "v":
			l.Under = value
		case "u":
			l.PodUID = value
		case "p":
			l.PodName = value
		default:
			l.Unknown = with(l.Unknown, key, value)
		}
		return err
	})
	return l, err
}

// String gives the text of what is remembered.
func (f Freed) String() string {
	var t text
	t.word("ip", f.Address)
	t.number("t", f.At)
	t.word("o", f.Owner)
	return t.end(f.Unknown)
}

// ParseFreed reads the text of what is remembered of a free address. Errors are *WordError.
func ParseFreed(s string) (Freed, error) {
	var f Freed
	err := parse(s, func(key, value string) (err error) {
		switch key {
		case "ip":
			f.Address = value
		case "t":
			f.At, err = number(value)
		case "o":
			f.Owner = value
		default:
			f.Unknown = with(f.Unknown, key, value)
		}
		return err
	})
	return f, err
}

// text is a text under construction.
//
// +kubebuilder:object:generate=false
type text struct{ b []byte }

// word adds a word, unless its value is empty.
func (t *text) word(key, value string) {
	if value != "" {
		t.add(key, value)
	}
}

func (t *text) number(key string, n int64) {
	t.b = t.key(key)
	t.b = strconv.AppendInt(t.b, n, 10)
}

func (t *text) key(key string) []byte {
	if len(t.b) > 0 {
		t.b = append(t.b, ' ')
	}
	return append(append(t.b, key...), '=')
}

func (t *text) add(key, value string) {
	t.b = t.key(key)
	for i := range len(value) {
		switch value[i] {
		case ' ':
			t.b = append(t.b, "%20"...)
		case '%':
			t.b = append(t.b, "%25"...)
		default:
			t.b = append(t.b, value[i])
		}
	}
}

func (t *text) end(unknown map[string]string) string {
	for _, k := range slices.Sorted(maps.Keys(unknown)) {
		t.add(k, unknown[k])
	}
	return string(t.b)
}

// parse tells the words of s, one after the other.
func parse(s string, tell func(key, value string) error) error {
	for word := range strings.SplitSeq(s, " ") {
		key, value, ok := strings.Cut(word, "=")
		if !ok || key == "" {
			return &WordError{Key: strconv.Quote(word), Err: errors.New("is not of the form key=value")}
		}
		if strings.Contains(value, "%") {
			var err error
			if value, err = url.PathUnescape(value); err != nil {
				return &WordError{Key: key, Err: err}
			}
		}
		if err := tell(key, value); err != nil {
			return &WordError{Key: key, Err: err}
		}
	}
	return nil
}

func number(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}
