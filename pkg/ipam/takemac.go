package ipam

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// salts bounds how many MACs are tried for one address: of 2^40, each is taken by another with next to no chance.
const salts = 64

// askedMAC leases the MAC that was asked for. A MAC that is derived from the pod's own address needs no lease.
func (s *serving) askedMAC(sub *Subnet, v4 netip.Addr) (MAC, error) {
	m := s.ir.MAC
	if m == (MAC{}) || s.noMAC() {
		return MAC{}, nil
	}
	if m.Derived() {
		if v4.IsValid() && m == DerivedMAC(v4) {
			return m, nil
		}
		for _, h := range s.have { // a returning owner asks for what it has
			if h.Provider == s.ir.Provider && h.Address.Is4() && h.MAC == m {
				return m, nil
			}
		}
		return MAC{}, &MACReservedError{MAC: m}
	}
	return m, s.leaseMAC(sub, m, true)
}

func (s *serving) leaseMAC(sub *Subnet, m MAC, requested bool) error {
	want := Lease{MAC: m, Claim: s.claim, Owner: s.request.Owner, Provider: s.ir.Provider, Requested: requested}
	_, err := s.claimLease(Block{Name: m.bucket(sub.domain), Subnet: sub.domain}, want, func(x *Lease) error {
		return &MACHeldError{Domain: sub.domain, MAC: m, Holder: *x}
	})
	return err
}

// fillMAC gives want a MAC by its address when it has none.
func (s *serving) fillMAC(sub *Subnet, want *Lease) error {
	switch {
	case want.MAC != (MAC{}):
		return nil
	case want.Address.Is4():
		want.MAC = DerivedMAC(want.Address)
		return nil
	case s.noMAC():
		return nil
	}
	return s.hashedMAC(sub, want)
}

// keepMAC has x keep the MAC that it has, whose own lease is renewed with it; or gives it another, when that is somebody
// else's by now.
func (s *serving) keepMAC(sub *Subnet, x *Lease) error {
	if x.MAC != (MAC{}) && !x.MAC.Derived() && s.renews(x) {
		var held *MACHeldError
		if err := s.leaseMAC(sub, x.MAC, false); !errors.As(err, &held) {
			return err
		}
		x.MAC = MAC{}
	}
	return s.fillMAC(sub, x)
}

// hashedMAC leases a MAC for an interface that has only an IPv6 address.
func (s *serving) hashedMAC(sub *Subnet, want *Lease) error {
	m, err := s.firstMAC(sub, func(salt uint32) (MAC, error) { return HashedMAC(want.Address, salt), nil })
	want.MAC = m
	return err
}

// anyMAC leases a MAC for an interface without address: the one that it has, or one that is drawn.
func (s *serving) anyMAC(sub *Subnet) (MAC, error) {
	for _, h := range s.have {
		if h.Provider == s.ir.Provider && !h.Address.IsValid() && h.Subnet == sub.domain {
			kept, err := s.reuse(h, h.MAC)
			return kept.MAC, err
		}
	}
	return s.firstMAC(sub, func(uint32) (MAC, error) {
		m := MAC{0x0e}
		if _, err := io.ReadFull(s.ledger.Random, m[1:]); err != nil {
			return m, fmt.Errorf("drawing a MAC: %w", err)
		}
		return m, nil
	})
}

// firstMAC leases the first of a series of MACs that nobody has.
func (s *serving) firstMAC(sub *Subnet, of func(salt uint32) (MAC, error)) (MAC, error) {
	for salt := uint32(0); ; salt++ {
		m, err := of(salt)
		if err != nil {
			return MAC{}, err
		}
		err = s.leaseMAC(sub, m, false)
		var held *MACHeldError
		if err == nil {
			return m, nil
		}
		if !errors.As(err, &held) || salt == salts {
			return MAC{}, err
		}
	}
}

// addMAC leases the MAC of an interface that has only an IPv6 address, and corrects the address's lease when the
// first choice had a holder.
func (s *serving) addMAC(sub *Subnet, h Held) (Held, error) {
	want := h.Lease
	if err := s.hashedMAC(sub, &want); err != nil {
		return Held{}, err
	}
	if s.preview() || want.MAC == h.MAC {
		h.MAC = want.MAC
		return h, nil
	}
	r := h.Ref()
	o := &op{ctx: s.ctx, apply: func(b *Block) (*Lease, error) {
		x, err := b.at(r)
		if err != nil {
			return nil, err
		}
		y := *x
		y.MAC = want.MAC
		return b.put(y), nil
	}, landed: landedAs}
	x, err := s.ledger.submit(s.ledger.entryAt(r), o)
	if err != nil {
		return Held{}, err
	}
	h.Lease = *x
	for i := range s.took {
		if s.took[i].Ref() == r {
			s.took[i].Held = h
		}
	}
	return h, nil
}
