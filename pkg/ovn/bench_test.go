package ovn

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
)

// callers are how many pods are worked on at once.
const callers = 128

// applyPods applies changes as the worker does, many at a time.
func applyPods(ctx context.Context, b *testing.B, w *Writer, changes []Change) {
	b.Helper()
	next := make(chan Change)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ch := range next {
				if err := w.Apply(ctx, ch); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for _, ch := range changes {
		next <- ch
	}
	close(next)
	wg.Wait()
}

// podChanges are those of n pods on a switch, each with a port in the groups of its node.
func podChanges(sw, prefix string, n int) []Change {
	out := make([]Change, n)
	for i := range out {
		node := fmt.Sprintf("n%d", i%50)
		out[i] = podChange(fmt.Sprintf("%s%d", prefix, i), sw, NodeGroup(node), SubnetNodeGroup(sw, node))
		out[i].Ensure.Ports[0].Row.Addresses = []string{fmt.Sprintf("0a:58:0a:10:%02x:%02x 10.16.%d.%d", i/256, i%256, i/256, i%256)}
	}
	return out
}

func removals(changes []Change) Change {
	out := Change{Key: "removals"}
	for _, ch := range changes {
		out.RemovePorts = append(out.RemovePorts, ch.Ensure.Ports[0].Row.Name)
	}
	return out
}

// benchServer is a database with a switch of that many ports, and a batching writer.
func benchServer(b *testing.B, ports int) (*Client, *Writer, []Change) {
	b.Helper()
	s := startServer(b, installedSchema)
	c := s.connect()
	w := s.writer(c)
	apply(b, w, switchChange("s1"))
	there := podChanges("s1", "there", ports)
	applyPods(b.Context(), b, w, there)
	return c, w, there
}

// BenchmarkPorts wires pods through the batching writer, and beside it each in a transaction of its own.
func BenchmarkPorts(b *testing.B) {
	const batched, alone = 2000, 400
	for _, there := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("there=%d", there), func(b *testing.B) {
			c, w, _ := benchServer(b, there)
			single := NewWriter(c, WriterOptions{Epoch: w.opts.Epoch, MaxBatch: 1})
			runWriter(b, single)
			var perSecond [2]float64
			var transactions int64
			rounds := 0
			for b.Loop() {
				rounds++
				for i, x := range []struct {
					*Writer
					pods int
				}{{w, batched}, {single, alone}} {
					changes := podChanges("s1", "new", x.pods)
					before, began := x.Transactions(), time.Now()
					applyPods(b.Context(), b, x.Writer, changes)
					perSecond[i] += float64(x.pods) / time.Since(began).Seconds()
					if x.Writer == w {
						transactions += x.Transactions() - before
					}
					apply(b, w, removals(changes))
				}
			}
			b.ReportMetric(perSecond[0]/float64(rounds), "ports/s")
			b.ReportMetric(perSecond[1]/float64(rounds), "alone-ports/s")
			b.ReportMetric(perSecond[0]/perSecond[1], "×alone")
			b.ReportMetric(float64(transactions)/float64(rounds)/batched, "txn/pod")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkResync looks at pods of which nothing has changed: no transaction is sent.
func BenchmarkResync(b *testing.B) {
	const pods = 10_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c, w, changes := benchServer(b, pods)
	sent := w.Transactions()
	for b.Loop() {
		applyPods(b.Context(), b, w, changes)
	}
	if sent = w.Transactions() - sent; sent != 0 {
		b.Errorf("%d transactions without a change", sent)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "heap-MiB")
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/10k-pods")
	b.ReportMetric(float64(sent), "transactions")
	if n := len(c.Ports()); n != pods {
		b.Errorf("%d ports, want %d", n, pods)
	}
}
