package await

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestUntil(t *testing.T) {
	wrong, cut := errors.New("one is left"), errors.New("the read was cut off")
	cases := map[string]struct {
		ok   func(ctx context.Context, call int) error
		want []error
		took time.Duration
	}{
		"at once": {func(context.Context, int) error { return nil }, nil, 0},
		"in time": {func(_ context.Context, call int) error {
			if call < 3 {
				return wrong
			}
			return nil
		}, nil, 2 * time.Second},
		"never": {func(context.Context, int) error { return wrong }, []error{wrong, context.DeadlineExceeded}, 5 * time.Second},
		"never, and the last look ends with the time": {func(ctx context.Context, call int) error {
			if call < 3 {
				return wrong
			}
			<-ctx.Done()
			return cut
		}, []error{wrong, context.DeadlineExceeded}, 10 * time.Second},
		"a client that looks ahead": {func(ctx context.Context, _ int) error {
			if end, ok := ctx.Deadline(); ok && time.Until(end) < 2*time.Second {
				return cut
			}
			return wrong
		}, []error{wrong, context.DeadlineExceeded}, 5 * time.Second},
		"the only look ends with the time": {func(ctx context.Context, _ int) error { <-ctx.Done(); return cut },
			[]error{cut, context.DeadlineExceeded}, 10 * time.Second},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls, began := 0, time.Now()
				err := Until(t.Context(), "all are gone", time.Second, 5*time.Second, func(ctx context.Context) error {
					calls++
					return c.ok(ctx, calls)
				})
				for _, want := range c.want {
					if !errors.Is(err, want) {
						t.Errorf("%v, want %v", err, want)
					}
				}
				if (err != nil) != (c.want != nil) || err != nil && (!strings.Contains(err.Error(), "until all are gone") || errors.Is(err, cut) != (calls == 1)) {
					t.Errorf("%v", err)
				}
				if took := time.Since(began); took != c.took {
					t.Errorf("it took %s, want %s", took, c.took)
				}
			})
		})
	}
}
