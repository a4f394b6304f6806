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

// grace is how much longer than the limit one look may take. Else a client that keeps a rate would, near the limit,
// answer at once that it has no time to ask.
const grace = 5 * time.Second

// Until polls until ok finds nothing wrong, for as long as limit. The error says what was waited for and what was wrong
// last: not what failed only because time was up.
func Until(ctx context.Context, what string, every, limit time.Duration, ok func(context.Context) error) error {
	var last error
	looks, cancel := context.WithTimeout(ctx, limit+grace)
	defer cancel()
	err := wait.PollUntilContextTimeout(ctx, every, limit, true, func(context.Context) (bool, error) {
		wrong := ok(looks)
		if looks.Err() == nil || last == nil {
			last = wrong
		}
		return wrong == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until %s: %w", what, errors.Join(last, err))
	}
	return nil
}
