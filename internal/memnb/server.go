package memnb

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"

	library "github.com/ovn-kubernetes/libovsdb/database"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// Options configures a Server.
type Options struct {
	// Socket is the path of the unix socket. It must not exist, and its directory must.
	Socket string
	// Rand is where the UUIDs of rows come from; crypto/rand when nil.
	Rand io.Reader
	// Log gets what connections did wrong; nil discards it.
	Log *slog.Logger
}

// Server is a running OVSDB server with an empty northbound database.
type Server struct {
	opts     Options
	listener net.Listener
	running  sync.WaitGroup

	// mu makes transactions and the start of monitors one sequence.
	mu    sync.Mutex
	dbs   map[string]*database
	conns map[*conn]bool
	// closed: new connections are turned away.
	closed bool
}

// Start serves until Close. ctx bounds the start only.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{opts: o, dbs: map[string]*database{}, conns: map[*conn]bool{}}
	for _, make := range []func() (*database, error){newNorthbound, newOwn} {
		d, err := make()
		if err != nil {
			return nil, err
		}
		s.dbs[d.name] = d
	}
	for name := range s.dbs {
		results, update, err := s.dbs[ownDB].transact([]ovsdb.Operation{describe(name)}, o.Rand)
		if err != nil || update == nil {
			return nil, fmt.Errorf("list database %s: %w (%v)", name, err, results)
		}
	}
	var err error
	if s.listener, err = (&net.ListenConfig{}).Listen(ctx, "unix", o.Socket); err != nil {
		return nil, fmt.Errorf("the in-memory northbound can't listen on %s, choose a free path: %w", o.Socket, err)
	}
	s.running.Go(s.accept)
	return s, nil
}

// Endpoint returns the OVSDB remote that clients connect to.
func (s *Server) Endpoint() string { return "unix:" + s.opts.Socket }

// Close ends all connections and returns when nothing runs any more. What was in the database is gone.
func (s *Server) Close() error {
	s.mu.Lock()
	var err error
	if !s.closed {
		s.closed = true
		err = s.listener.Close()
		for c := range s.conns {
			_ = c.net.Close() // its reader ends either way
		}
	}
	s.mu.Unlock()
	s.running.Wait()
	return err
}

func (s *Server) accept() {
	for {
		n, err := s.listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				s.opts.Log.Error("In-memory northbound takes no more connections", "err", err)
			}
			return
		}
		c := &conn{server: s, net: n, out: json.NewEncoder(n)}
		if !s.enter(c) {
			_ = n.Close() // nobody was served on it
			return
		}
		s.running.Go(c.serve)
	}
}

func (s *Server) enter(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conns[c] = true
	}
	return !s.closed
}

func (s *Server) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns[c] {
		delete(s.conns, c)
		_ = c.net.Close() // it is the other side that has ended it
	}
}

// transact runs a transaction and tells all who follow the database, before it answers.
func (s *Server) transact(name string, ops []ovsdb.Operation) ([]any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.database(name)
	if err != nil {
		return nil, err
	}
	results, update, err := d.transact(ops, s.opts.Rand)
	if update != nil {
		s.notify(d, update)
	}
	return results, err
}

// notify ends a connection that it can't tell: its mirror would be wrong from then on.
func (s *Server) notify(d *database, update library.Update) {
	for c := range s.conns {
		for _, m := range c.monitors {
			if m.db != d {
				continue
			}
			changed, err := m.updates(update)
			if err != nil {
				s.opts.Log.Error("In-memory northbound drops a connection", "err", err)
				_ = c.net.Close() // the reason is the other error
			}
			if len(changed) > 0 {
				c.send(message{Method: "update2", Params: []any{m.id, changed}})
			}
		}
	}
}

// follow starts a monitor of a connection and returns the rows that are there.
func (s *Server) follow(c *conn, name string, id, requests json.RawMessage) (tableUpdates2, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.database(name)
	if err != nil {
		return nil, err
	}
	if _, taken := c.monitors[string(id)]; taken {
		return nil, fmt.Errorf("there is a monitor %s already", id)
	}
	m, err := newMonitor(d, id, requests)
	if err != nil {
		return nil, err
	}
	rows, err := m.initial()
	if err != nil {
		return nil, err
	}
	if c.monitors == nil {
		c.monitors = map[string]*monitor{}
	}
	c.monitors[string(id)] = m
	return rows, nil
}

// unfollow ends a monitor of a connection.
func (s *Server) unfollow(c *conn, id json.RawMessage) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := c.monitors[string(id)]; !ok {
		return fmt.Errorf("there is no monitor %s", id)
	}
	delete(c.monitors, string(id))
	return nil
}

func (s *Server) database(name string) (*database, error) {
	if d, ok := s.dbs[name]; ok {
		return d, nil
	}
	return nil, fmt.Errorf("no database named %s", name)
}
