package ovn

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// RaiseEpoch raises the database's epoch by one and returns it. From then on no writer with an older epoch writes
// anything. It makes the NB_Global row when there is none. When its answer is lost it raises once more, which does no
// harm.
func (c *Client) RaiseEpoch(ctx context.Context) (int64, error) {
	for {
		snap, err := c.await(ctx)
		if err != nil {
			return 0, fmt.Errorf("raise the northbound epoch: %w", err)
		}
		epoch, err := raise(ctx, snap)
		var refused *TransactionError
		switch {
		case err == nil:
			if err := c.awaitEpoch(ctx, epoch); err != nil {
				return 0, fmt.Errorf("raise the northbound epoch: %w", err)
			}
			c.metrics.epoch.Set(float64(epoch))
			return epoch, nil
		case ctx.Err() != nil:
			return 0, fmt.Errorf("raise the northbound epoch: %w", ctx.Err())
		case errors.Is(err, errUnknown), errors.As(err, &refused) && refused.contended():
			// Somebody else wrote in between, or nobody knows: read again.
		default:
			return 0, fmt.Errorf("raise the northbound epoch: %w", err)
		}
	}
}

// contended tells a refusal that the same attempt may not meet again.
func (e *TransactionError) contended() bool {
	return e.Code == codeTimedOut || e.Code == "constraint violation"
}

// raise does one compare-and-swap.
func raise(ctx context.Context, snap snapshot) (int64, error) {
	results, err := snap.transact(ctx, []ovsdb.Operation{{
		Op: ovsdb.OperationSelect, Table: tableGlobal, Columns: []string{colUUID, colExternalIDs},
	}})
	if err != nil {
		return 0, err
	}
	if len(results[0].Rows) == 0 {
		_, err := snap.transact(ctx, []ovsdb.Operation{
			insertRow(tableGlobal, "", map[string]any{colExternalIDs: map[string]string{nb.KeyEpoch: "1"}}),
		})
		return 1, err
	}
	uuid, ids, err := globalFrom(results[0].Rows[0])
	if err != nil {
		return 0, err
	}
	var epoch int64
	if text, ok := ids[nb.KeyEpoch]; ok {
		if epoch, err = strconv.ParseInt(text, 10, 64); err != nil {
			return 0, fmt.Errorf("NB_Global external_ids %s is %q, not a number: remove it", nb.KeyEpoch, text)
		}
	}
	epoch++
	next := map[string]string{nb.KeyEpoch: strconv.FormatInt(epoch, 10)}
	unchanged := waitFor(tableGlobal, byUUID(uuid)[0], ovsdb.WaitConditionEqual, ovsdb.Row{colExternalIDs: strMap(ids)})
	ops := append([]ovsdb.Operation{unchanged}, alter(tableGlobal, uuid, nil, mapDifference(colExternalIDs, ids, next))...)
	_, err = snap.transact(ctx, ops)
	return epoch, err
}

func globalFrom(row ovsdb.Row) (string, map[string]string, error) {
	uuid, ok := row[colUUID].(ovsdb.UUID)
	if !ok {
		return "", nil, fmt.Errorf("NB_Global has an unreadable UUID %v", row[colUUID])
	}
	m, ok := row[colExternalIDs].(ovsdb.OvsMap)
	if !ok {
		return "", nil, fmt.Errorf("NB_Global has unreadable external_ids %v", row[colExternalIDs])
	}
	ids := map[string]string{}
	for k, v := range m.GoMap {
		ids[fmt.Sprint(k)] = fmt.Sprint(v)
	}
	return uuid.GoUUID, ids, nil
}

// awaitEpoch waits until the mirror shows an epoch at least as high, so that the fence finds its row.
func (c *Client) awaitEpoch(ctx context.Context, epoch int64) error {
	for {
		changed := c.changes.wait()
		snap, err := c.await(ctx)
		if err != nil {
			return err
		}
		if epochIn(snap) >= epoch {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Epoch returns the database's epoch as the mirror shows it; 0 when there is none, or no mirror to rely on. A writer under
// a lower one has been taken over from, also when it has nothing to write and so meets no fence.
func (c *Client) Epoch() int64 {
	s, err := c.live()
	if err != nil {
		return 0
	}
	return epochIn(s)
}

func epochIn(s snapshot) int64 {
	g, ok := s.global()
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(g.ExternalIDs[nb.KeyEpoch], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
