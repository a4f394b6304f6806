package web

import (
	"fmt"
	"slices"

	"github.com/berth-net/berth/pkg/ipam"
)

// mirror is a ledger of the page's own, so that counting never holds the worker's lock for longer than a list of blocks
// takes. It is only observed and counted: nothing is written through it.
type mirror struct {
	of     *ipam.Ledger
	ledger *ipam.Ledger
	blocks []*ipam.Block
}

// follow brings the copy up to date, and tells whether anything was new.
func (m *mirror) follow() (bool, error) {
	blocks := m.of.Blocks()
	if m.ledger != nil && slices.Equal(blocks, m.blocks) {
		return false, nil
	}
	if m.ledger != nil {
		m.ledger.Replace(blocks, "")
	}
	if m.ledger == nil || !slices.Equal(m.ledger.Blocks(), blocks) { // a block went back: a copy that was told so begins anew
		o := m.of.Options
		o.Metrics, o.Freed, o.Lost = nil, nil, nil
		o.Replica += "-page"
		l, err := ipam.New(o)
		if err != nil {
			return false, fmt.Errorf("copy the ledger: %w", err)
		}
		l.Replace(blocks, "")
		m.ledger = l
	}
	m.blocks = blocks
	return true, nil
}
