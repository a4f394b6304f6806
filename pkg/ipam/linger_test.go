package ipam_test

import (
	"crypto/rand"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// Changes of a block that come one by one wait a moment for each other; when there is a crowd of them they wait longer, and
// when it is gone they don't any more.
func TestLinger(t *testing.T) {
	const ms = time.Millisecond
	cases := map[string]struct {
		linger time.Duration
		step   time.Duration // between one change and the next
		pause  time.Duration // before a last one
		writes int64
		last   time.Duration // that the last one takes
	}{
		"one by one":              {linger: 4 * ms, step: 50 * ms, writes: 41, last: 4 * ms},
		"few":                     {linger: 4 * ms, step: 3 * ms, writes: 21, last: 4 * ms},
		"a crowd":                 {linger: 4 * ms, step: ms + ms/10, pause: 200 * ms, writes: 3, last: 100 * ms},
		"a crowd that is gone":    {linger: 4 * ms, step: ms + ms/10, pause: 1200 * ms, writes: 3, last: 4 * ms},
		"who doesn't wait at all": {step: 2 * ms, writes: 41},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // all sleeps are of the bubble's time
				l, err := ipam.New(ipam.Options{Store: memstore.New(), Replica: "a", Clock: clock.RealClock{}, Random: rand.Reader, Linger: tc.linger})
				if err != nil {
					t.Fatal(err)
				}
				s := subnet(t, "s", "", "10.0.0.0/26") // one block
				var refs []ipam.Ref
				for range 41 {
					refs = append(refs, l.ByClaim(mustTake(t, l, s, ask{}).Claim)[0].Ref())
				}
				time.Sleep(time.Minute)
				before := l.Stats().Writes
				took := make([]time.Duration, len(refs))
				bind := func(i int) {
					began := time.Now()
					if _, err := l.Bind(t.Context(), "uid", "pod", refs[i]); err != nil {
						t.Error(err)
					}
					took[i] = time.Since(began)
				}
				for i := range 40 {
					go bind(i)
					time.Sleep(tc.step)
				}
				time.Sleep(tc.pause)
				bind(40)
				synctest.Wait()
				if slices.Contains(took[:40], 0) != (tc.linger == 0) {
					t.Error("some were not bound", took)
				}
				if diff := cmp.Diff(tc.writes, l.Stats().Writes-before); diff != "" {
					t.Errorf("writes (-want +got):\n%s", diff)
				}
				if took[40] != tc.last {
					t.Errorf("the last one took %s, want %s", took[40], tc.last)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}
