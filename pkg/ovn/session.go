package ovn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/rpc2"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb/serverdb"
)

// libraryVerbosity is added to the library's own levels: what matters of it is logged here.
const libraryVerbosity = 4

// errUnknown marks a transaction of which nobody knows whether it was committed.
var errUnknown = errors.New("outcome of the northbound transaction is unknown")

var (
	errDisconnected = errors.New("connection lost")
	errNotLeader    = errors.New("this server isn't the leader of the cluster")
)

// session is one connection and the mirror that it fills. The library's own reconnection isn't used: it panics when its
// back-off ends, says that it is connected while it isn't, blocks whoever asks, and keeps a mirror over a lost update.
type session struct {
	ovs    client.Client
	leader client.Client
	tables map[string]*cache.RowCache
	call   time.Duration
	// kill ends the session; done is closed then, and cause tells why.
	kill  context.CancelCauseFunc
	done  <-chan struct{}
	cause func() error
}

// dial opens a session and waits for its snapshot. notify is called after each change of the mirror.
func dial(ctx context.Context, cfg Config, endpoint string, notify func()) (*session, error) {
	opts, err := clientOptions(cfg, endpoint)
	if err != nil {
		return nil, err
	}
	ctx, kill := context.WithCancelCause(ctx)
	s := &session{call: cfg.Timeout, kill: kill, done: ctx.Done(), cause: func() error { return context.Cause(ctx) }}
	if err := s.open(ctx, cfg, opts, notify); err != nil {
		s.close()
		return nil, err
	}
	go s.probe(ctx, cfg.InactivityProbe)
	return s, nil
}

func clientOptions(cfg Config, endpoint string) ([]client.Option, error) {
	logger := cfg.Logger.V(libraryVerbosity)
	opts := []client.Option{client.WithEndpoint(endpoint), client.WithLogger(&logger)}
	if strings.HasPrefix(endpoint, schemeSSL+":") {
		conf, err := cfg.tlsConfig()
		if err != nil {
			return nil, err
		}
		opts = append(opts, client.WithTLSConfig(conf))
	}
	return opts, nil
}

func (s *session) open(ctx context.Context, cfg Config, opts []client.Option, notify func()) error {
	if len(cfg.Endpoints) > 1 {
		if err := s.followLeader(ctx, opts, cfg.InactivityProbe); err != nil {
			return err
		}
	}
	m, err := clientModel()
	if err != nil {
		return fmt.Errorf("build the northbound model: %w", err)
	}
	s.ovs, err = s.connect(ctx, m, opts)
	if err != nil {
		if missing := s.missing(ctx, opts); len(missing) > 0 {
			return &SchemaError{Missing: missing}
		}
		return err
	}
	if missing := missingInSchema(s.ovs.Schema()); len(missing) > 0 {
		return &SchemaError{Missing: missing}
	}
	mirror := s.ovs.Cache()
	if mirror == nil {
		return errDisconnected
	}
	wake := func(string, model.Model) { notify() }
	mirror.AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc: wake, DeleteFunc: wake, UpdateFunc: func(string, model.Model, model.Model) { notify() },
	})
	s.tables = map[string]*cache.RowCache{}
	request := s.ovs.NewMonitor()
	// A plain conditional monitor: of an update that doesn't fit, the library tells only this kind.
	request.Method = ovsdb.ConditionalMonitorRPC
	for table, columns := range monitored() {
		s.tables[table] = mirror.Table(table)
		request.Tables = append(request.Tables, client.TableMonitor{Table: table, Fields: columns})
	}
	ctx, cancel := context.WithTimeout(ctx, s.call)
	defer cancel()
	if _, err := s.ovs.Monitor(ctx, request); err != nil {
		return fmt.Errorf("read the northbound database: %w", err)
	}
	return nil
}

// connect makes one connection, whose loss ends the session.
func (s *session) connect(ctx context.Context, m model.ClientDBModel, opts []client.Option) (client.Client, error) {
	c, err := client.NewOVSDBClient(m, opts...)
	if err != nil {
		return nil, fmt.Errorf("set up the northbound client: %w", err)
	}
	go func() {
		select {
		case <-c.DisconnectNotify():
			s.kill(errDisconnected)
		case <-s.done:
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, s.call)
	defer cancel()
	if err := c.Connect(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// missing asks a server that was refused what its schema lacks.
func (s *session) missing(ctx context.Context, opts []client.Option) []string {
	m, err := model.NewClientDBModel(database, nil)
	if err != nil {
		return nil
	}
	c, err := s.connect(ctx, m, opts)
	if err != nil {
		return nil
	}
	defer c.Close()
	return missingInSchema(c.Schema())
}

// followLeader watches the server's own database and ends the session when the server isn't the leader. One that hangs
// must not keep the others from being asked for longer than the patience.
func (s *session) followLeader(ctx context.Context, opts []client.Option, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, min(patience, s.call))
	defer cancel()
	m, err := serverdb.FullDatabaseModel()
	if err != nil {
		return fmt.Errorf("build the server model: %w", err)
	}
	s.leader, err = s.connect(ctx, m, opts)
	if err != nil {
		return err
	}
	mirror := s.leader.Cache()
	if mirror == nil {
		return errDisconnected
	}
	check := func(row model.Model) error {
		d, ok := row.(*serverdb.Database)
		if ok && d.Name == database && d.Model == serverdb.DatabaseModelClustered && !d.Leader {
			return errNotLeader
		}
		return nil
	}
	mirror.AddEventHandler(&cache.EventHandlerFuncs{UpdateFunc: func(_ string, _, row model.Model) {
		if err := check(row); err != nil {
			s.kill(err)
		}
	}})
	request := s.leader.NewMonitor()
	request.Method = ovsdb.ConditionalMonitorRPC
	request.Tables = []client.TableMonitor{{Table: serverdb.DatabaseTable}}
	if _, err := s.leader.Monitor(ctx, request); err != nil {
		return fmt.Errorf("read which server is the leader: %w", err)
	}
	for _, row := range mirror.Table(serverdb.DatabaseTable).Rows() {
		if err := check(row); err != nil {
			return err
		}
	}
	return nil
}

// probe ends the session when the server doesn't answer any more.
func (s *session) probe(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		echoCtx, cancel := context.WithTimeout(ctx, interval)
		err := s.ovs.Echo(echoCtx)
		cancel()
		if err != nil {
			s.kill(fmt.Errorf("the server doesn't answer: %w", err))
		}
	}
}

func (s *session) alive() bool { return s.cause() == nil }

func (s *session) close() {
	s.kill(errors.New("session closed"))
	for _, c := range []client.Client{s.ovs, s.leader} {
		if c != nil {
			c.Close()
		}
	}
}

// transact runs one transaction. An error is a *TransactionError when the database refused it, and errUnknown when
// nobody knows; in that case the session has ended, so that the next one starts from what really happened.
func (s *session) transact(ctx context.Context, ops []ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	callCtx, cancel := context.WithTimeout(ctx, s.call)
	defer cancel()
	go func() { // the end of the session is the end of its calls
		select {
		case <-s.done:
			cancel()
		case <-callCtx.Done():
		}
	}()
	results, err := s.ovs.Transact(callCtx, ops...)
	var refused rpc2.ServerError
	switch {
	case err == nil:
		return results, checkResults(ops, results)
	case errors.As(err, &refused):
		return nil, &TransactionError{Code: string(refused), index: -1}
	}
	if ctx.Err() == nil {
		s.kill(fmt.Errorf("transaction not answered: %w", err))
	}
	return nil, fmt.Errorf("%w: %w", errUnknown, err)
}

// checkResults looks at every operation's result, and at the one more that a failed commit has.
func checkResults(ops []ovsdb.Operation, results []ovsdb.OperationResult) error {
	for i, r := range results {
		if r.Error == "" {
			continue
		}
		e := &TransactionError{Code: r.Error, Details: r.Details, index: -1}
		if i < len(ops) {
			e.index, e.Operation = i, ops[i].Op+" "+ops[i].Table
		}
		return e
	}
	if len(results) < len(ops) {
		return &TransactionError{
			Code: "incomplete answer", Details: fmt.Sprintf("%d results for %d operations", len(results), len(ops)), index: -1,
		}
	}
	return nil
}
