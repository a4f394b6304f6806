package blockstore

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"runtime/metrics"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/pkg/ipam"
)

// canned answers like an API server that has these objects, from bytes that it has at hand, so that next to nothing of
// what is measured is the server's.
type canned struct{ objects [][]byte }

// leased is what the API server has when n addresses are leased: full blocks of bound leases, names of real length.
func leased(b *testing.B, n int) canned {
	b.Helper()
	var c canned
	for i := 0; i < n; {
		first := address(uint32(10<<24 + len(c.objects)*ipam.BlockSize))
		block := &ipam.Block{Name: ipam.BlockName("ovn-default", first), Subnet: "ovn-default", SubnetUID: uid(0), First: first, Version: ipam.FormatVersion,
			ResourceVersion: strconv.Itoa(len(c.objects) + 1), UID: uid(len(c.objects))}
		for a := first; len(block.Leases) < ipam.BlockSize && i < n; a, i = a.Next(), i+1 {
			claim, err := ipam.NewClaim(rand.Reader)
			if err != nil {
				b.Fatal(err)
			}
			block.Revision++
			block.Leases = append(block.Leases, &ipam.Lease{Address: a, MAC: ipam.DerivedMAC(a), Claim: claim, Generation: block.Revision,
				Owner: ipam.PodOwner(fmt.Sprintf("team-%d", i%200)), Provider: "ovn", PodUID: uid(i), PodName: fmt.Sprintf("frontend-7d9c5b6f8-%05d", i)})
		}
		raw, err := json.Marshal(encode(block))
		if err != nil {
			b.Fatal(err)
		}
		c.objects = append(c.objects, raw)
	}
	return c
}

func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

func uid(i int) string { return fmt.Sprintf("%08x-3c1f-4d2a-9b77-0242ac120002", i) }

// ServeHTTP answers lists, watches that begin with a list, and writes.
func (c canned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method != http.MethodGet: // what was written comes back, as stored
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _ = w.Write(body)
		}
	case r.URL.Query().Get("watch") == "true":
		buffered := bufio.NewWriterSize(w, 1<<16)
		for _, o := range c.objects {
			_, _ = fmt.Fprintf(buffered, `{"type":"ADDED","object":%s}`+"\n", o)
		}
		_, _ = fmt.Fprintf(buffered, `{"type":"BOOKMARK","object":{"apiVersion":"berth.dev/v1alpha1","kind":"AddressBlock","metadata":{"resourceVersion":"%d",`+
			`"annotations":{"k8s.io/initial-events-end":"true"}},"spec":{}}}`+"\n", len(c.objects))
		_ = buffered.Flush()
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		_, _ = w.Write(c.list())
	}
}

func (c canned) list() []byte {
	all := fmt.Appendf(nil, `{"apiVersion":"berth.dev/v1alpha1","kind":"AddressBlockList","metadata":{"resourceVersion":"%d"},"items":[`, len(c.objects))
	for i, o := range c.objects {
		if i > 0 {
			all = append(all, ',')
		}
		all = append(all, o...)
	}
	return append(all, "]}"...)
}

func serve(b *testing.B, c canned) *Store {
	b.Helper()
	server := httptest.NewServer(c)
	b.Cleanup(server.Close)
	s, err := New(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func newLedger(b *testing.B, s *Store) *ipam.Ledger {
	b.Helper()
	l, err := ipam.New(ipam.Options{Store: s, Replica: "a", Clock: clock.RealClock{}, Random: rand.Reader})
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// BenchmarkStart loads 100,000 leases into a ledger, by the watch that a webhook starts with and by a live read. The
// baseline is what anybody must do: decode the same bytes into plain structs.
func BenchmarkStart(b *testing.B) {
	const leases = 100_000
	c := leased(b, leases)
	var plain time.Duration
	for _, way := range []struct {
		name string
		load func(*testing.B) any
	}{
		{"plain JSON", func(b *testing.B) any { return decodePlain(b, c) }},
		{"watch", func(b *testing.B) any { return loadByWatch(b, serve(b, c)) }},
		{"live read", func(b *testing.B) any {
			l := newLedger(b, serve(b, c))
			if err := l.Refresh(b.Context()); err != nil {
				b.Fatal(err)
			}
			return l
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			var peak, kept uint64
			var cpu time.Duration
			for range b.N {
				b.StopTimer()
				base, stop := watchHeap()
				before := cpuTime(b)
				b.StartTimer()
				got := way.load(b)
				b.StopTimer()
				cpu += cpuTime(b) - before
				peak, kept = max(peak, stop()-base), max(kept, heapNow()-base)
				if l, ok := got.(*ipam.Ledger); ok && len(l.Leases()) != leases {
					b.Fatalf("%d leases were loaded", len(l.Leases()))
				}
				runtime.KeepAlive(got)
			}
			cpu /= time.Duration(b.N)
			if way.name == "plain JSON" {
				plain = cpu
			}
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/op")
			b.ReportMetric(float64(cpu.Milliseconds()), "cpu-ms/op")
			b.ReportMetric(float64(kept)/(1<<20), "MiB-kept")
			b.ReportMetric(float64(peak)/(1<<20), "MiB-peak")
			if plain > 0 {
				b.ReportMetric(float64(cpu)/float64(plain), "x-plain-JSON")
			}
		})
	}
}

// told closes done when a ledger was told all blocks.
type told struct {
	*ipam.Ledger
	done chan struct{}
}

func (t told) Replace(blocks []*ipam.Block, resourceVersion string) {
	t.Ledger.Replace(blocks, resourceVersion)
	close(t.done)
}

func loadByWatch(b *testing.B, s *Store) *ipam.Ledger {
	ctx, cancel := context.WithCancel(b.Context())
	t := told{newLedger(b, s), make(chan struct{})}
	ended := make(chan error)
	go func() { ended <- s.Watch(ctx, t) }()
	<-t.done
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	return t.Ledger
}

func decodePlain(b *testing.B, c canned) any {
	var l struct {
		Items []struct {
			Metadata struct {
				Name, UID, ResourceVersion string
				Labels                     map[string]string
			}
			Spec struct {
				Version           int
				Revision          int64
				Subnet, SubnetUID string
				First             string
				Leases            []string
			}
		}
	}
	if err := json.Unmarshal(c.list(), &l); err != nil {
		b.Fatal(err)
	}
	return l
}

// cpuTime is what the process has used so far: unlike the wall clock's, its figures hold on a busy machine too.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// watchHeap gives what is in use now, and a function that gives the most that was in use since.
func watchHeap() (base uint64, stop func() uint64) {
	base = heapNow()
	var most atomic.Uint64
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			most.Store(max(most.Load(), heapObjects()))
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return base, func() uint64 {
		close(end)
		<-ended
		return max(most.Load(), base)
	}
}

// heapNow is what lives.
func heapNow() uint64 {
	runtime.GC()
	return heapObjects()
}

// heapObjects is what lives or was not collected yet.
func heapObjects() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// BenchmarkWrite is one PUT of a block with so many leases and its answer.
func BenchmarkWrite(b *testing.B) {
	for _, n := range []int{1, 16, ipam.BlockSize} {
		b.Run(fmt.Sprintf("leases=%d", n), func(b *testing.B) {
			c := leased(b, n)
			s := serve(b, c)
			bs, err := s.List(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(c.objects[0])))
			for b.Loop() {
				if _, err := s.Write(b.Context(), bs[0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
