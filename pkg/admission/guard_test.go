package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/pkg/ipam"
)

func (f *fakeLedger) Pending(_, _ string, _ time.Duration, enough int) []ipam.Claim {
	if len(f.pending) < enough {
		return nil
	}
	return f.pending
}

func (f *fakeLedger) Young(ipam.Held, time.Duration) bool { return !f.old }

// A namespace whose creations keep failing may pin few addresses; one whose pods merely wait for the worker any number.
func TestB39StormGuard(t *testing.T) {
	claims := func(n int) []ipam.Claim {
		out := make([]ipam.Claim, n)
		for i := range out {
			out[i] = ipam.Claim(fmt.Sprintf("%032x", i))
		}
		return out
	}
	limit := 65533 * stormPercent / 100 // of 10.16.0.0/16 without its gateway
	cases := map[string]struct {
		pending, podless int
		fails            bool
		code, status     int
		lists            int
	}{
		"few":                  {pending: limit - 1, podless: limit - 1, code: http.StatusOK, status: 0},
		"many without pods":    {pending: limit, podless: limit, code: http.StatusOK, status: http.StatusTooManyRequests, lists: 1},
		"many, pods are there": {pending: limit + 100, podless: 0, code: http.StatusOK, status: 0, lists: 1},
		"pods can't be listed": {pending: limit, podless: limit, fails: true, code: http.StatusOK, status: 0, lists: 2},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			lists := 0
			e := newEnv(t, func(o *Options) {
				o.Pods = func(context.Context, string) (map[ipam.Claim]bool, error) {
					lists++
					if c.fails {
						return nil, errors.New("no API server")
					}
					have := map[ipam.Claim]bool{}
					for _, x := range claims(c.pending)[c.podless:] {
						have[x] = true
					}
					return have, nil
				}
			})
			e.ledger.pending = claims(c.pending)
			for range 2 { // the second within the memory of the list
				w := e.post(reviewOf(`{"metadata":{"generateName":"web-"}}`, ""))
				if w.Code != c.code {
					t.Fatalf("code %d: %s", w.Code, w.Body)
				}
				if c.code != http.StatusOK {
					return
				}
				var r admissionv1.AdmissionReview
				if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
					t.Fatal(err)
				}
				if got := r.Response.Allowed; got != (c.status == 0) {
					t.Fatalf("allowed %t: %+v", got, r.Response.Result)
				}
				if c.status != 0 && (int(r.Response.Result.Code) != c.status || r.Response.Result.Details.RetryAfterSeconds == 0) {
					t.Errorf("answer %+v", r.Response.Result)
				}
			}
			if lists != c.lists {
				t.Errorf("%d lists of pods, want %d", lists, c.lists)
			}
		})
	}
}

// TestB39SlowListOfPods has pods come faster than their namespace can be listed: they share lists, and none waits in a
// queue of them.
func TestB39SlowListOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 4 * podsMemory
		lists := 0
		g := newGuard(Options{Clock: clock.RealClock{}, Pods: func(ctx context.Context, _ string) (map[ipam.Claim]bool, error) {
			lists++
			select {
			case <-time.After(takes - time.Millisecond):
				return nil, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}})
		began := time.Now()
		var wg sync.WaitGroup
		for range 200 {
			time.Sleep(10 * time.Millisecond)
			wg.Go(func() {
				at := time.Now()
				if _, err := g.carried(t.Context(), "app"); err != nil {
					t.Error(err)
				}
				if waited := time.Since(at); waited > takes {
					t.Errorf("one waited %s", waited)
				}
			})
		}
		wg.Wait()
		if most := int(time.Since(began)/takes) + 1; lists > most {
			t.Errorf("%d lists in %s", lists, time.Since(began))
		}
	})
}
