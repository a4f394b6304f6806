package worker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-net/berth/internal/memkube"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// steps are where the worker can end in an edit, as faults of what comes next.
func steps() map[string]func(*atomic.Int32) (func(memkube.Request) memkube.Fault, func(memstore.Call) memstore.Fault) {
	none := func(memstore.Call) memstore.Fault { return memstore.Fault{} }
	request := func(verb, resource string, f memkube.Fault) func(*atomic.Int32) (func(memkube.Request) memkube.Fault, func(memstore.Call) memstore.Fault) {
		return func(hits *atomic.Int32) (func(memkube.Request) memkube.Fault, func(memstore.Call) memstore.Fault) {
			return func(r memkube.Request) memkube.Fault {
				if hits.Load() < 0 || r.Verb != verb || r.Resource != resource || r.HTTP.UserAgent() == testAgent || r.HTTP.Method == http.MethodGet {
					return memkube.Fault{}
				}
				hits.Add(1)
				return f
			}, none
		}
	}
	broken := memkube.Fault{Err: errors.New("out of order")}
	return map[string]func(*atomic.Int32) (func(memkube.Request) memkube.Fault, func(memstore.Call) memstore.Fault){
		"before the record":       request("delete", "ips", broken),
		"before the patch":        request("patch", "pods", broken),
		"patched, without answer": request("patch", "pods", memkube.Fault{DropAnswer: true}),
		"before the new record":   request("create", "ips", broken),
		"before any lease": func(hits *atomic.Int32) (func(memkube.Request) memkube.Fault, func(memstore.Call) memstore.Fault) {
			f, _ := request("none", "none", broken)(hits)
			return f, func(c memstore.Call) memstore.Fault {
				if hits.Load() < 0 || c.Verb != memstore.Write {
					return memstore.Fault{}
				}
				hits.Add(1)
				return memstore.Fault{Err: errors.New("out of order")}
			}
		},
	}
}

// Whatever step of an edit the worker ends at, the next one brings it to its end: also when the edit was taken back, or
// became another, in between.
func TestEditIsBrokenOff(t *testing.T) {
	for name, step := range steps() {
		for what, last := range map[string]string{"then the same": n2Static, "then taken back": n1Static, "then another": n1Static[:len(n1Static)-1] + "," + n2Static[1:]} {
			t.Run(name+", "+what, func(t *testing.T) {
				var hits atomic.Int32
				hits.Store(-1)
				requests, writes := step(&hits)
				w := plugging(t, worldOptions{intercept: requests})
				want := w.fresh("a", last)
				w.admitWhole(podNamed("a", onNode, attachedTo(n1Static)))
				before := w.settled("a")
				w.store.SetFault(writes)
				hits.Store(0)
				w.names("a", n2Static)
				w.until("it is broken off", func() error {
					if hits.Load() < 1 {
						return errors.New("not yet")
					}
					return nil
				})
				w.stop()
				hits.Store(-1)
				w.names("a", last)
				w.start(worldOptions{})
				w.settled("a")
				w.looks("a", want)
				w.kept(before)
				w.finish("a")
			})
		}
	}
}

const (
	n1Static = `[{"name":"n1","ips":["10.30.0.9"]}]`
	n2Static = `[{"name":"n2","ips":["10.31.0.9"]}]`
)

// Any edits, valid or not and in any haste, end in what a new pod has that names the last list.
func TestEditsInHaste(t *testing.T) {
	all := []string{`{"name":"n1","ips":["10.30.0.9"]}`, `{"name":"n2","ips":["10.31.0.9"]}`, `{"name":"mv","ips":["10.32.0.9"]}`, `{"name":"alone","ips":["10.33.0.9"]}`}
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			list := func() string {
				var parts []string
				for _, i := range r.Perm(len(all))[:r.IntN(len(all)+1)] {
					parts = append(parts, all[i])
				}
				if len(parts) == 0 {
					return ""
				}
				return "[" + strings.Join(parts, ",") + "]"
			}
			w := plugging(t, worldOptions{})
			last := list()
			want := w.fresh("a", last, unpluggedStatus())
			w.admitWhole(podNamed("a", onNode, unpluggedStatus()))
			before := w.settled("a")
			for range 8 {
				switch names := list(); r.IntN(4) {
				case 0:
					w.names("a", "[{")
				case 1:
					w.names("a", names)
					w.settled("a")
				default:
					w.names("a", names)
				}
			}
			w.names("a", last)
			w.settled("a")
			w.looks("a", want)
			w.kept(before)
			w.finish("a")
		})
	}
}
