package memstore_test

import (
	"errors"
	"testing"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
	"github.com/berth-net/berth/pkg/ipam/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Watched { return memstore.New() })
}

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault  memstore.Fault
		want   error
		landed bool
	}{
		"lost answer": {memstore.Fault{LoseAnswer: true}, memstore.ErrLostAnswer, true},
		"conflict":    {memstore.Fault{Err: ipam.ErrConflict}, ipam.ErrConflict, false},
		"delay":       {memstore.Fault{Delay: 1}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, b := memstore.New(), storetest.Blocks()[0]
			s.SetFault(func(call memstore.Call) memstore.Fault {
				if call == (memstore.Call{Verb: memstore.Write, Block: b.Name}) {
					return c.fault
				}
				return memstore.Fault{}
			})
			_, err := s.Write(t.Context(), b)
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if _, err := s.Get(t.Context(), b.Name); (err == nil) != c.landed {
				t.Errorf("reading gives %v, landed should be %t", err, c.landed)
			}
		})
	}
}
