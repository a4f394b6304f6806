//go:build e2e

package ledger

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
)

// takeOne takes any address for a pod.
func takeOne(ctx context.Context, l *ipam.Ledger, s *ipam.Subnet, families ...ipam.Family) error {
	claim, err := ipam.NewClaim(rand.Reader)
	if err != nil {
		return err
	}
	_, err = l.Take(ctx, ipam.Request{Claim: claim, Owner: ipam.PodOwner("app"), Interfaces: []ipam.InterfaceRequest{from(s, families...)}})
	return err
}

// BenchmarkTakeReal measures takes of one IPv4 address through the API server by callers of one process, beside a
// baseline that makes one object of the same form per address.
func BenchmarkTakeReal(b *testing.B) {
	for _, callers := range []int{1, 20, 100} {
		baseline := 0.0
		b.Run("object per address/callers="+strconv.Itoa(callers), func(b *testing.B) {
			h := start(b)
			store := benchStore(b, h)
			var n atomic.Int64
			baseline = measure(b, callers, func(ctx context.Context) error { return oneObject(ctx, store, n.Add(1)) })
			b.ReportMetric(1, "writes/take")
		})
		b.Run("ledger/callers="+strconv.Itoa(callers), func(b *testing.B) {
			h := start(b)
			store := benchStore(b, h)
			l := watched(b, store, store, "bench")
			sub, err := bigSubnet().build()
			if err != nil {
				b.Fatal(err)
			}
			rate := measure(b, callers, func(ctx context.Context) error { return takeOne(ctx, l, sub, ipam.IPv4) })
			b.ReportMetric(float64(l.Stats().Writes)/float64(b.N), "writes/take")
			if baseline > 0 {
				b.ReportMetric(rate/baseline, "x-baseline")
			}
		})
	}
}

func benchStore(b *testing.B, h *harness) *blockstore.Store {
	b.Helper()
	s, err := blockstore.New(config(h.Config()))
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// oneObject stores the lease of one address in an object of its own.
func oneObject(ctx context.Context, s *blockstore.Store, n int64) error {
	sub := bigSubnet()
	a := inSixteen("fd00:91::", int(n))
	first, err := a.Prefix(122)
	if err != nil {
		return err
	}
	claim, err := ipam.NewClaim(rand.Reader)
	if err != nil {
		return err
	}
	_, err = s.Write(ctx, &ipam.Block{Name: "one-" + hex.EncodeToString(a.AsSlice()), Subnet: sub.Name, SubnetUID: sub.UID, First: first.Addr(),
		Version: ipam.FormatVersion, Revision: 1, Leases: []*ipam.Lease{{Address: a, MAC: ipam.HashedMAC(a, 0), Claim: claim, Generation: 1,
			Owner: ipam.PodOwner("app"), Provider: "ovn"}}})
	return err
}

// measure has callers do b.N calls between them and reports how long they took. It returns the calls per second.
func measure(b *testing.B, callers int, call func(context.Context) error) float64 {
	b.Helper()
	took := make([]time.Duration, b.N)
	errs := make([]error, callers)
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	begun := time.Now()
	for c := range callers {
		wg.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= b.N {
					return
				}
				at := time.Now()
				if err := call(b.Context()); err != nil {
					errs[c] = fmt.Errorf("call %d: %w", n, err)
					return
				}
				took[n] = time.Since(at)
			}
		})
	}
	wg.Wait()
	all := time.Since(begun)
	b.StopTimer()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(took)
	at := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Microseconds()) / 1000 }
	rate := float64(b.N) / all.Seconds()
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(rate, "takes/s")
	return rate
}
