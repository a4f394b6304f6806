// Package await waits for what others do.
//
// Invariant: who waited in vain learns what was wrong last, and not that time was up.
package await

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Until polls until ok finds nothing wrong, for as long as limit. The error says what was waited for and what was wrong
// last: not what failed only because time was up.
func Until(ctx context.Context, what string, every, limit time.Duration, ok func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, every, limit, true, func(ctx context.Context) (bool, error) {
		wrong := ok(ctx)
		if ctx.Err() == nil || last == nil {
			last = wrong
		}
		return wrong == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until %s: %w", what, errors.Join(last, err))
	}
	return nil
}
