package ipam

import (
	"bytes"
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

func heldOf(list []leaseAt) []Held {
	hs := make([]Held, 0, len(list))
	for _, x := range list {
		hs = append(hs, Held{Block: x.e.name, Subnet: x.e.template.Subnet, Lease: *x.lease})
	}
	sortHeld(hs)
	return hs
}

func sortHeld(hs []Held) {
	slices.SortFunc(hs, func(a, b Held) int {
		return cmp.Or(cmp.Compare(a.Subnet, b.Subnet), a.Address.Compare(b.Address), bytes.Compare(a.MAC[:], b.MAC[:]))
	})
}

// Binding is whom leases are bound to.
type Binding struct {
	PodUID, PodName string
	// OwnerUID is the UID of the pod's controller, where that is the leases' owner; empty leaves what is known.
	OwnerUID string
}

// of tells that the lease is bound like that.
func (to Binding) of(x *Lease) bool {
	return x.PodUID == to.PodUID && (to.OwnerUID == "" || x.OwnerUID == to.OwnerUID)
}

// Bind binds the leases to a pod whose owner has no UID that matters.
func (l *Ledger) Bind(ctx context.Context, podUID, podName string, refs ...Ref) ([]Held, error) {
	return l.BindTo(ctx, Binding{PodUID: podUID, PodName: podName}, refs...)
}

// BindTo binds the leases to a pod, where they are as the refs say, and returns them with their new generation. A lease
// that is bound to this pod already is left as it is.
func (l *Ledger) BindTo(ctx context.Context, to Binding, refs ...Ref) ([]Held, error) {
	return l.each(ctx, refs, func(r Ref) *op {
		return &op{
			apply: func(b *Block) (*Lease, error) {
				if x := b.find(r.Address, r.MAC); x != nil && x.Claim == r.Claim && to.of(x) {
					return x, nil
				}
				x, err := b.at(r)
				if err != nil {
					return nil, err
				}
				bound := *x
				bound.PodUID, bound.PodName = to.PodUID, to.PodName
				if to.OwnerUID != "" {
					bound.OwnerUID = to.OwnerUID
				}
				return b.put(bound), nil
			},
			landed: func(b *Block, _ *Lease) bool {
				x := b.find(r.Address, r.MAC)
				return x != nil && x.Claim == r.Claim && x.PodUID == to.PodUID
			},
		}
	})
}

// Free gives the leases back, where they are as the refs say. A lease that has changed since is left alone, for the
// release was decided before somebody came back: that is no error. What was lent goes back to whom it is reserved for.
func (l *Ledger) Free(ctx context.Context, refs ...Ref) error {
	at := l.Clock.Now().Unix()
	claim, err := NewClaim(l.Random)
	if err != nil {
		return err
	}
	return l.release(ctx, refs, func(_ Ref, x *Lease) (*Lease, Freed) {
		if x.Under != nil {
			return &Lease{Address: x.Address, Claim: claim, Owner: *x.Under, Requested: true}, Freed{}
		}
		f := Freed{Address: x.Address, At: at}
		if x.Owner.Sticky() {
			f.Owner = x.Owner
		}
		return nil, f
	})
}

// giveBack undoes takes: the addresses are as fresh, or as rested, as before, and what was lent or changed is back.
func (l *Ledger) giveBack(ctx context.Context, took ...taken) error {
	refs := make([]Ref, len(took))
	before := map[Ref]taken{}
	for i, t := range took {
		refs[i] = t.Ref()
		before[refs[i]] = t
	}
	return l.release(ctx, refs, func(r Ref, x *Lease) (*Lease, Freed) {
		t := before[r]
		if t.was != nil && t.was.Claim == x.Claim { // it was renewed
			y := *x
			y.MAC = t.was.MAC
			return &y, Freed{}
		}
		return t.was, t.prior
	})
}

// release drops leases. left tells what is put in a lease's place, or else what is to be remembered of its address.
func (l *Ledger) release(ctx context.Context, refs []Ref, left func(Ref, *Lease) (*Lease, Freed)) error {
	_, err := l.each(ctx, refs, func(r Ref) *op {
		return &op{
			frees: true,
			apply: func(b *Block) (*Lease, error) {
				x, err := b.at(r)
				if err != nil {
					return nil, err
				}
				if y, f := left(r, x); y != nil {
					b.put(*y)
				} else {
					b.drop(x, f)
				}
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

// HandOver gives a lease to somebody who waits for its address, in place of freeing it: nobody comes in between. The
// lease must be as the ref says: a *StaleError otherwise.
func (l *Ledger) HandOver(ctx context.Context, r Ref, to Lease) (Held, error) {
	hs, err := l.each(ctx, []Ref{r}, func(r Ref) *op {
		return &op{
			apply: func(b *Block) (*Lease, error) {
				x, err := b.at(r)
				if err != nil {
					return nil, err
				}
				to.Address, to.Under = x.Address, x.Under
				return b.put(to), nil
			},
			landed: landedAs,
		}
	})
	if err != nil {
		return Held{}, err
	}
	return hs[0], nil
}

// Restore puts leases back that the ledger of a subnet has lost. A lease that is there already stays, and is a
// *HeldError where its claim is another.
func (l *Ledger) Restore(ctx context.Context, s *Subnet, leases ...Lease) error {
	refs := make([]Ref, len(leases))
	want := make(map[Ref]Lease, len(leases))
	l.mu.Lock()
	for i, x := range leases {
		template := Block{Name: x.MAC.bucket(s.domain), Subnet: s.domain}
		if x.Address.IsValid() {
			template = blockOf(s, x.Address)
		}
		l.entryOf(template)
		refs[i] = Ref{Block: template.Name, Address: x.Address, MAC: x.MAC}
		want[refs[i]] = x
	}
	l.mu.Unlock()
	_, err := l.each(ctx, refs, func(r Ref) *op {
		return &op{
			apply: func(b *Block) (*Lease, error) {
				lost := want[r]
				if x := b.find(r.Address, r.MAC); x != nil {
					if x.Claim != lost.Claim {
						return nil, &HeldError{Subnet: s.name, Address: r.Address, Holder: *x}
					}
					return x, nil
				}
				if err := settle(b, s.uid); err != nil {
					return nil, err
				}
				return b.put(lost), nil
			},
			landed: landedAs,
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
			x, err := l.submit(e, o) //nolint:contextcheck // a write serves many callers
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
