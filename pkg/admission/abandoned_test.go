package admission

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// Requests whose callers give up are answered in time, leave no lease, and are not worked for any more.
func TestB48AbandonedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		store.SetFault(func(c memstore.Call) memstore.Fault {
			if c.Verb == memstore.Write {
				return memstore.Fault{Delay: 3 * time.Second}
			}
			return memstore.Fault{}
		})
		p := newPlaceOver(t, store, clock.RealClock{})
		began := time.Now()
		var calls sync.WaitGroup
		for i := range 100 {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				body := reviewOf(fmt.Sprintf(`{"metadata":{"name":"p%d"}}`, i), "")
				r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/mutate?timeout=1s", strings.NewReader(body))
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				p.ServeHTTP(w, r)
				if w.Code != http.StatusInternalServerError && w.Code != http.StatusTooManyRequests {
					t.Errorf("HTTP %d: %s", w.Code, w.Body)
				}
				if lasted := time.Since(began); lasted > time.Second {
					t.Errorf("answered after %s", lasted)
				}
			})
		}
		calls.Wait()
		time.Sleep(time.Minute) // what was in flight lands, and is given back
		blocks, err := store.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range blocks {
			if len(b.Leases) > 0 {
				t.Errorf("block %s has %d leases of requests that nobody waits for", b.Name, len(b.Leases))
			}
		}
		if n := store.Calls()[memstore.Write]; n == 0 || n > 10 {
			t.Errorf("%d writes for 100 abandoned requests", n)
		}
	})
}
