package app

import (
	"cmp"
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// workers is how many objects are changed at once: the way to the API server and back counts little then, and it still
// serves others.
const workers = 8

// each takes a step with every object of a list, several at once, and gives what failed in the order of the list.
func each[T any](ctx context.Context, done *progress, list []T, step func(context.Context, T) error) (failed []string) {
	errs := make([]error, len(list))
	var group errgroup.Group
	group.SetLimit(workers)
	for i, o := range list {
		group.Go(func() error {
			errs[i] = step(ctx, o)
			done.add(1)
			return nil
		})
	}
	_ = group.Wait() // what fails is told of each
	for _, err := range errs {
		if err != nil {
			failed = append(failed, err.Error())
		}
	}
	return failed
}

// resumable tells, whatever it was that failed then, that the command was ended before it was done.
func resumable(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("interrupted, run it again and it goes on: %w", cmp.Or(err, ctx.Err()))
}
