package ipam

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
)

// addrOrMAC is what a lease is kept by in its block.
type addrOrMAC struct {
	addr netip.Addr
	mac  MAC
}

func keyOf(x *Lease) addrOrMAC {
	if x.Address.IsValid() {
		return addrOrMAC{addr: x.Address}
	}
	return addrOrMAC{mac: x.MAC}
}

func heldOf(m map[leaseKey]*Lease) []Held {
	hs := make([]Held, 0, len(m))
	for k, x := range m {
		hs = append(hs, Held{Block: k.e.name, Subnet: k.e.template.Subnet, Lease: *x})
	}
	sortHeld(hs)
	return hs
}

func sortHeld(hs []Held) {
	slices.SortFunc(hs, func(a, b Held) int {
		return cmp.Or(cmp.Compare(a.Subnet, b.Subnet), a.Address.Compare(b.Address), cmp.Compare(a.MAC.String(), b.MAC.String()))
	})
}

// Bind binds the leases to a pod, where they are as the refs say, and returns them with their new generation. A lease
// that is bound to this pod already is left as it is.
func (l *Ledger) Bind(ctx context.Context, podUID, podName string, refs ...Ref) ([]Held, error) {
	return l.each(ctx, refs, func(r Ref) *op {
		return &op{
			apply: func(b *Block) (*Lease, error) {
				if x := b.find(r.Address, r.MAC); x != nil && x.Claim == r.Claim && x.PodUID == podUID {
					return x, nil
				}
				x, err := b.at(r)
				if err != nil {
					return nil, err
				}
				bound := *x
				bound.PodUID, bound.PodName = podUID, podName
				return b.put(bound), nil
			},
			landed: func(b *Block, _ *Lease) bool {
				x := b.find(r.Address, r.MAC)
				return x != nil && x.Claim == r.Claim && x.PodUID == podUID
			},
		}
	})
}

// Free gives the leases back, where they are as the refs say. A lease that has changed since is left alone, for the
// release was decided before somebody came back: that is no error.
func (l *Ledger) Free(ctx context.Context, refs ...Ref) error {
	return l.release(ctx, l.Clock.Now().Unix(), refs)
}

func (l *Ledger) release(ctx context.Context, at int64, refs []Ref) error {
	_, err := l.each(ctx, refs, func(r Ref) *op {
		return &op{
			frees: true,
			apply: func(b *Block) (*Lease, error) {
				x, err := b.at(r)
				if err != nil {
					return nil, err
				}
				b.drop(x, at)
				return x, nil
			},
			landed: func(b *Block, _ *Lease) bool {
				_, err := b.at(r)
				return err != nil
			},
		}
	})
	return err
}

// each submits one op a ref, all at once so that those of one block share its next write, and joins their errors.
func (l *Ledger) each(ctx context.Context, refs []Ref, opFor func(Ref) *op) ([]Held, error) {
	held := make([]Held, len(refs))
	errs := make([]error, len(refs))
	var wg sync.WaitGroup
	for i, r := range refs {
		wg.Go(func() {
			o := opFor(r)
			o.ctx = ctx
			e := l.entryAt(r)
			x, err := l.submit(e, o)
			var stale *StaleError
			if o.frees && errors.As(err, &stale) {
				err = nil
			}
			if x != nil {
				held[i] = Held{Block: e.name, Subnet: l.subnetOf(e), Lease: *x}
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return held, errors.Join(errs...)
}

// entryAt gives the entry of the block that r names.
func (l *Ledger) entryAt(r Ref) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.known[r.Block]; e != nil {
		return e
	}
	return l.entryOf(Block{Name: r.Block})
}

func (l *Ledger) subnetOf(e *entry) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.template.Subnet
}
