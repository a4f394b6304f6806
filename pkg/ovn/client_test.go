package ovn

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestBackoff(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	never, short, long := time.Duration(0), settledAfter-1, settledAfter
	cases := map[string]struct {
		lasted, want []time.Duration
	}{
		"server is away": {
			lasted: []time.Duration{never, never, never, never, never, never, never, never, never},
			want:   []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5 * s, 5 * s},
		},
		"server dies as soon as it is up": {
			lasted: []time.Duration{short, short, short, short},
			want:   []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms},
		},
		"leader moves every few seconds, elections take two rounds": {
			lasted: []time.Duration{long, never, long, never, long, never},
			want:   []time.Duration{50 * ms, 100 * ms, 50 * ms, 100 * ms, 50 * ms, 100 * ms},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var b backoff
			var got []time.Duration
			for _, d := range tc.lasted {
				b.ended(d)
				got = append(got, b.next())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("pauses (-want +got):\n%s", diff)
			}
		})
	}
}
