package memnb

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// conn is one client. Its requests are answered one after another.
type conn struct {
	server *Server
	net    net.Conn
	// monitors by identifier; the server's lock guards them.
	monitors map[string]*monitor

	mu  sync.Mutex
	out *json.Encoder
}

// message is a request or notification that the server sends.
type message struct {
	Method string `json:"method"`
	Params any    `json:"params"`
	ID     any    `json:"id"`
}

// request is what a client sends: with a method a request, without one the answer to something that was never asked.
type request struct {
	Method string            `json:"method"`
	Params []json.RawMessage `json:"params"`
	ID     json.RawMessage   `json:"id"`
}

type response struct {
	Result any             `json:"result"`
	Error  any             `json:"error"`
	ID     json.RawMessage `json:"id"`
}

func (c *conn) serve() {
	defer c.server.leave(c)
	in := json.NewDecoder(c.net)
	for {
		var r request
		if err := in.Decode(&r); err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				c.server.opts.Log.Info("In-memory northbound drops a connection", "err", err)
			}
			return
		}
		if r.Method == "" {
			continue
		}
		answer := response{ID: r.ID}
		result, err := c.call(r)
		if answer.Result = result; err != nil {
			answer.Result, answer.Error = nil, err.Error()
		}
		if len(r.ID) > 0 && string(r.ID) != "null" {
			c.send(answer)
		}
	}
}

// send writes one message. A connection that can't be written to ends, and its reader finds that out.
func (c *conn) send(m any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.out.Encode(m); err != nil {
		_ = c.net.Close() // the reason is the other error, and the client's own
	}
}

// call answers one request.
func (c *conn) call(r request) (any, error) {
	least := map[string]int{"get_schema": 1, "transact": 1, "monitor_cond": 3, "monitor_cancel": 1}
	if len(r.Params) < least[r.Method] {
		return nil, fmt.Errorf("%s needs %d parameters", r.Method, least[r.Method])
	}
	switch r.Method {
	case "echo":
		return r.Params, nil
	case "list_dbs":
		return slices.Sorted(maps.Keys(c.server.dbs)), nil
	case "monitor_cancel":
		return map[string]any{}, c.server.unfollow(c, r.Params[0])
	case "get_schema", "transact", "monitor_cond":
	default:
		return nil, fmt.Errorf("unknown method %q", r.Method)
	}
	var name string
	if err := json.Unmarshal(r.Params[0], &name); err != nil {
		return nil, fmt.Errorf("name of the database: %w", err)
	}
	switch r.Method {
	case "get_schema":
		d, err := c.server.database(name)
		if err != nil {
			return nil, err
		}
		return d.schema, nil
	case "monitor_cond":
		return c.server.follow(c, name, r.Params[1], r.Params[2])
	}
	ops := make([]ovsdb.Operation, len(r.Params)-1)
	for i := range ops {
		if err := json.Unmarshal(r.Params[i+1], &ops[i]); err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, err)
		}
	}
	return c.server.transact(name, ops)
}
