package app

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"
)

// Steps are taken several at once, never more, and all of them: what failed is told in the order of the list.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &env{IOStreams: genericiooptions.IOStreams{ErrOut: io.Discard}, clock: clock.RealClock{}}
		const n = 5*workers + 3
		list := make([]int, n)
		for i := range list {
			list[i] = i
		}
		var mu sync.Mutex
		now, most, taken := 0, 0, 0
		count := func(by int) {
			mu.Lock()
			defer mu.Unlock()
			now += by
			most, taken = max(most, now), taken+max(by, 0)
		}
		done, began := e.progress("done"), time.Now()
		failed := each(t.Context(), done, list, func(_ context.Context, i int) error {
			count(1)
			defer count(-1)
			time.Sleep(time.Second)
			if i%20 == 0 {
				return fmt.Errorf("%d failed", i)
			}
			return nil
		})
		if d := cmp.Diff([]string{"0 failed", "20 failed", "40 failed"}, failed); d != "" {
			t.Errorf("failed (-want +got):\n%s", d)
		}
		if most != workers || taken != n || done.done != n {
			t.Errorf("%d steps taken and %d counted of %d, %d at once", taken, done.done, n, most)
		}
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
