package ipam_test

import (
	"fmt"
	"math/bits"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// fillings of a /16, but for the last, which is a /14: how many leases, and how many addresses of each block are left
// free.
func fillings() []filling {
	return []filling{
		{"full=0%", "10.0.0.0/16", 0, 0},
		{"full=50%", "10.0.0.0/16", 1 << 15, 0},
		{"full=99%", "10.0.0.0/16", 1 << 16 * 99 / 100, 0},
		{"one free in each block", "10.0.0.0/16", 1 << 16, 1},
		{"100000 leases", "10.0.0.0/14", 100_000, 0},
	}
}

type filling struct {
	name, cidr        string
	leases, leaveFree int
}

// blocks gives what is leased. What is left free within a block was used before.
func (f filling) blocks(b *testing.B, s *ipam.Subnet) []*ipam.Block {
	bs := leased(b, s, f.leases, f.leaveFree)
	if f.leaveFree == 0 {
		return bs
	}
	for i, block := range bs {
		has := map[netip.Addr]bool{}
		for _, x := range block.Leases {
			has[x.Address] = true
		}
		a := block.First
		for range ipam.BlockSize {
			if !has[a] && s.Check(a, ipam.Owner{}) == nil {
				block.Freed = append(block.Freed, ipam.Freed{Address: a, At: int64(1_700_000_000 + i)})
			}
			a = a.Next()
		}
	}
	return bs
}

// rounds calls do for b.N operations in all, at most size at once, and reset before each call, which is not counted. It
// gives the CPU time that do used.
func rounds(b *testing.B, size int, reset func(), do func(n int)) (cpu time.Duration) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; {
		n := min(size, b.N-done)
		b.StopTimer()
		reset()
		b.StartTimer()
		before := cpuTime(b) // the timer itself stops the world
		do(n)
		cpu += cpuTime(b) - before
		b.StopTimer()
		done += n
	}
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
	return cpu
}

// cpuTime is what the process has used so far: unlike the wall clock's, its figures hold on a busy machine too.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ratios reports what an operation takes against a benchmark of the same kind that ran before it.
type ratios map[string]float64

// report takes the time of b.N operations. Every benchmark runs several times, with ever more operations: the last
// run of the one that sets the measure counts.
func (r ratios) report(b *testing.B, kind, unit string, sets bool, spent time.Duration) {
	b.Helper()
	per := float64(spent.Nanoseconds()) / float64(b.N)
	if sets {
		r[kind] = per
	}
	if r[kind] > 0 {
		b.ReportMetric(per/r[kind], unit)
	}
}

// BenchmarkChoice is one allocation in memory: the choice of block and address and the lease in the block's draft;
// with "installed" also what the cache costs after each write of so many allocations. The baseline is a bitmap
// beside a map.
func BenchmarkChoice(b *testing.B) {
	const size = 600
	base := ratios{}
	want := ipam.Lease{Owner: ipam.PodOwner("default"), Provider: "ovn"}
	claims := make([]ipam.Claim, size)
	for i := range claims {
		claims[i] = newClaim(b)
	}
	for _, f := range fillings() {
		s := subnet(b, "s", "", f.cidr)
		blocks := f.blocks(b, s)
		l := newLedger(b, memstore.New(), "a")
		l.Replace(blocks, "1000000")
		c := ipam.NewChooser(l, ipam.Source{Subnet: s})
		for _, batch := range []int{0, 20, 1} {
			name := "choice alone"
			if batch > 0 {
				name = fmt.Sprintf("installed by %d", batch)
			}
			b.Run(name+"/"+f.name, func(b *testing.B) {
				cpu := rounds(b, size, c.Reset, func(n int) {
					for i := range n {
						want.Claim = claims[i]
						if !c.Choose(want) {
							b.Fatal("nothing is free")
						}
						if batch > 0 && (i+1)%batch == 0 {
							c.Install()
						}
					}
				})
				base.report(b, name, "x-empty", f.leases == 0, cpu)
			})
		}
		b.Run("bitmap beside a map/"+f.name, func(b *testing.B) {
			m := newBitmap(s, blocks)
			cpu := rounds(b, size, m.reset, func(n int) {
				for range n {
					m.take(want)
				}
			})
			base.report(b, "bitmap", "x-empty", f.leases == 0, cpu)
		})
	}
}

// bitmap is the allocator that one would write first: it keeps nothing in blocks.
type bitmap struct {
	mu     sync.Mutex
	first  netip.Addr
	words  []uint64
	leases map[netip.Addr]*ipam.Lease
	took   []netip.Addr
}

func newBitmap(s *ipam.Subnet, blocks []*ipam.Block) *bitmap {
	p, _ := s.Prefix(ipam.IPv4)
	m := &bitmap{first: p.Addr(), words: make([]uint64, 1<<(32-p.Bits())/64), leases: map[netip.Addr]*ipam.Lease{}}
	for _, b := range blocks {
		for _, x := range b.Leases {
			m.put(m.index(x.Address), x)
		}
	}
	return m
}

func (m *bitmap) index(a netip.Addr) int {
	x, y := a.As4(), m.first.As4()
	return int(x[1])<<16 + int(x[2])<<8 + int(x[3]) - int(y[1])<<16 - int(y[2])<<8 - int(y[3])
}

func (m *bitmap) put(i int, x *ipam.Lease) {
	m.words[i/64] |= 1 << (i % 64)
	m.leases[x.Address] = x
}

func (m *bitmap) take(x ipam.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for w, word := range m.words {
		if word != ^uint64(0) {
			i := w*64 + bits.TrailingZeros64(^word)
			x.Address = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			x.MAC = ipam.DerivedMAC(x.Address)
			m.put(i, &x)
			m.took = append(m.took, x.Address)
			return
		}
	}
}

func (m *bitmap) reset() {
	for _, a := range m.took {
		i := m.index(a)
		m.words[i/64] &^= 1 << (i % 64)
		delete(m.leases, a)
	}
	m.took = m.took[:0]
}

// BenchmarkTake is a whole Take over a store in memory that answers at once: ns per allocation with so many callers.
func BenchmarkTake(b *testing.B) {
	const size = 600
	base := ratios{}
	for _, callers := range []int{1, 100} {
		for _, f := range fillings() {
			name := fmt.Sprintf("callers=%d", callers)
			b.Run(name+"/"+f.name, func(b *testing.B) {
				s := subnet(b, "s", "", f.cidr)
				l := filledLedger(b, f, s)
				var got []*ipam.Allocation
				writes := int64(0)
				cpu := rounds(b, size, func() { freeAll(b, l, got) }, func(n int) {
					before := l.Stats().Writes
					got = takeMany(b, l, s, callers, n)
					writes += l.Stats().Writes - before
				})
				b.ReportMetric(float64(writes)/float64(b.N), "writes/op")
				base.report(b, name, "x-empty", f.leases == 0, cpu)
			})
		}
	}
}

func filledLedger(b *testing.B, f filling, s *ipam.Subnet) *ipam.Ledger {
	store := memstore.New()
	for _, block := range f.blocks(b, s) {
		block.ResourceVersion, block.UID = "", ""
		if _, err := store.Write(b.Context(), block); err != nil {
			b.Fatal(err)
		}
	}
	l := newLedger(b, store, "a")
	refresh(b, l)
	return l
}

func takeMany(b *testing.B, l *ipam.Ledger, s *ipam.Subnet, callers, n int) []*ipam.Allocation {
	got := make([]*ipam.Allocation, n)
	each(callers, n, func(i int) {
		a, err := take(b, l, s, ask{})
		if err != nil {
			b.Error(err)
			return
		}
		got[i] = a
	})
	return got
}

func freeAll(b *testing.B, l *ipam.Ledger, as []*ipam.Allocation) {
	var all []ipam.Ref
	for _, a := range as {
		all = append(all, refs(l, a)...)
	}
	if err := l.Free(b.Context(), all...); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkWrites takes through a store that needs 2 ms for a call, beside one object per address over the same store.
func BenchmarkWrites(b *testing.B) {
	const latency = 2 * time.Millisecond
	base := ratios{}
	for _, callers := range []int{1, 20, 100} {
		slow := func() *memstore.Store {
			store := memstore.New()
			store.SetFault(func(memstore.Call) memstore.Fault { return memstore.Fault{Delay: latency} })
			return store
		}
		kind := fmt.Sprintf("concurrent=%d", callers)
		run := func(name string, store *memstore.Store, do func(i int) error) {
			b.Run(name+"/"+kind, func(b *testing.B) {
				var waited atomic.Int64
				before := store.Calls()[memstore.Write]
				b.ResetTimer()
				each(callers, b.N, func(i int) {
					start := time.Now()
					if err := do(i); err != nil {
						b.Error(err)
					}
					waited.Add(int64(time.Since(start)))
				})
				b.StopTimer()
				b.ReportMetric(float64(store.Calls()[memstore.Write]-before)/float64(b.N), "writes/op")
				b.ReportMetric(float64(waited.Load())/float64(b.N)/1e6, "ms/caller")
				base.report(b, kind, "x-object-per-address", name == "object per address", b.Elapsed())
			})
		}
		store, next := slow(), atomic.Uint32{}
		run("object per address", store, func(int) error {
			n := next.Add(1)
			a := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
			_, err := store.Write(b.Context(), &ipam.Block{Name: a.String(), Subnet: "s", First: a, Version: ipam.FormatVersion,
				Leases: []*ipam.Lease{{Address: a, MAC: ipam.DerivedMAC(a), Claim: newClaim(b), Generation: 1, Owner: ipam.PodOwner("default"), Provider: "ovn"}}})
			return err
		})
		s := subnet(b, "s", "", "10.0.0.0/8")
		for _, replicas := range []int{1, 3} {
			store := slow()
			var ls []*ipam.Ledger
			for i := range replicas {
				l := newLedger(b, store, fmt.Sprint("r", i))
				go func() { _ = store.Watch(b.Context(), l) }()
				ls = append(ls, l)
			}
			run(fmt.Sprintf("blocks, replicas=%d", replicas), store, func(i int) error { return second(take(b, ls[i%replicas], s, ask{})) })
		}
	}
}
