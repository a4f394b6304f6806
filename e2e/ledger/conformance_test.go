//go:build e2e

package ledger

import (
	"testing"

	"github.com/berth-net/berth/pkg/ipam/storetest"
)

// TestConformance runs the contract of stores, its watch included, on a real API server.
func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Watched {
		h := start(t)
		return h.store(t)
	})
}
