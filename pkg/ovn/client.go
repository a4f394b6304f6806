package ovn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	defaultTimeout         = 60 * time.Second
	defaultInactivityProbe = 10 * time.Second
	firstBackoff           = 50 * time.Millisecond
	lastBackoff            = 5 * time.Second
	// settledAfter is how long a session must have lasted for its loss to be the first one: a leader may move every few
	// seconds, and a server that only just comes up may die again and again.
	settledAfter = time.Second
)

// Config says how to reach the northbound database.
type Config struct {
	// Endpoints are OVSDB remotes. With several, only the leader of the cluster is used.
	Endpoints []string
	// CACert, Cert and Key are files, needed for ssl endpoints and read anew for every connection.
	CACert, Cert, Key string
	// Timeout bounds one call to the database; 60 s when zero.
	Timeout time.Duration
	// InactivityProbe is the interval of the echo that finds dead connections, and how long a server may take to say that
	// it leads; 10 s when zero.
	InactivityProbe time.Duration
	// Logger gets connections, losses and their reasons.
	Logger logr.Logger
	// Registerer gets the metrics; nil registers none.
	Registerer prometheus.Registerer
}

// Client mirrors the northbound database. It reconnects by itself, without end, and every connection starts from a new
// full snapshot: a mirror is never patched up.
type Client struct {
	cfg     Config
	log     logr.Logger
	metrics *metrics
	changes *broadcast
	cancel  context.CancelFunc
	done    chan struct{}

	mu sync.Mutex
	// last is the latest session whose snapshot was complete. It may have ended.
	last *session
	// reason tells why there is no session.
	reason error
}

// Connect connects to the database and returns when the first snapshot is complete. ctx bounds that wait only; Close
// ends the client. A server that lacks a table or column that is needed is reported at once, as a *SchemaError.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("no northbound endpoint given")
	}
	for _, e := range cfg.Endpoints {
		if _, err := parseEndpoint(e); err != nil {
			return nil, fmt.Errorf("northbound endpoint %q: %w", e, err)
		}
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.InactivityProbe <= 0 {
		cfg.InactivityProbe = defaultInactivityProbe
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register northbound metrics: %w", err)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &Client{
		cfg: cfg, log: cfg.Logger.WithName("northbound"), metrics: m, changes: newBroadcast(),
		cancel: cancel, done: make(chan struct{}), reason: errors.New("not connected yet"),
	}
	go c.run(life)
	if err := c.waitFirst(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Client) waitFirst(ctx context.Context) error {
	for {
		changed := c.changes.wait()
		err := c.Ready()
		if err == nil {
			return nil
		}
		if schema := (*SchemaError)(nil); errors.As(err, &schema) {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("connect to the northbound database: %w (%w)", ctx.Err(), err)
		}
	}
}

// Close ends the client and waits until it has ended.
func (c *Client) Close() {
	c.cancel()
	<-c.done
}

// Ready tells why the mirror can't be relied on, or nil when it can.
func (c *Client) Ready() error {
	_, err := c.live()
	return err
}

// live returns the session that follows the database right now.
func (c *Client) live() (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotReady, c.reason)
	}
	if !c.last.alive() {
		return nil, fmt.Errorf("%w: %w", ErrNotReady, c.last.cause())
	}
	return c.last, nil
}

// current is the session that follows the database.
func (c *Client) current() (snapshot, error) {
	s, err := c.live()
	if err != nil {
		return nil, err
	}
	return s, nil
}

// await waits for a session that follows the database.
func (c *Client) await(ctx context.Context) (snapshot, error) {
	for {
		changed := c.changes.wait()
		s, err := c.live()
		if err == nil {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%w)", ctx.Err(), err)
		}
	}
}

// changed returns a channel that is closed at the next change of the mirror or of its readiness.
func (c *Client) changed() <-chan struct{} { return c.changes.wait() }

func (c *Client) meter() *metrics { return c.metrics }

func (c *Client) run(ctx context.Context) {
	defer close(c.done)
	var pause backoff
	for next := 0; ctx.Err() == nil; next++ {
		endpoint := c.cfg.Endpoints[next%len(c.cfg.Endpoints)]
		lasted, err := c.follow(ctx, endpoint)
		c.setReason(fmt.Errorf("%s: %w", endpoint, err))
		if ctx.Err() != nil {
			return
		}
		c.log.Info("Northbound database unavailable, trying again", "endpoint", endpoint, "reason", err.Error())
		pause.ended(lasted)
		if (next+1)%len(c.cfg.Endpoints) != 0 {
			continue
		}
		select {
		case <-time.After(pause.next()):
		case <-ctx.Done():
		}
	}
}

// backoff is how long to wait after each round of all servers: longer and longer, until one was followed for a while.
type backoff struct{ last time.Duration }

// ended tells of a session that lasted so long; one that never began lasted no time.
func (b *backoff) ended(lasted time.Duration) {
	if lasted >= settledAfter {
		b.last = 0
	}
}

func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, firstBackoff), lastBackoff)
	return b.last
}

// follow runs one session to its end, and tells how long the database was followed and why it ended.
func (c *Client) follow(ctx context.Context, endpoint string) (time.Duration, error) {
	s, err := dial(ctx, c.cfg, endpoint, c.changes.notify)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	defer s.close()
	c.mu.Lock()
	c.last, c.reason = s, nil
	c.mu.Unlock()
	c.metrics.connected.Set(1)
	defer c.metrics.connected.Set(0)
	c.changes.notify()
	c.log.Info("Northbound database followed", "endpoint", endpoint)
	<-s.done
	return time.Since(began), s.cause()
}

func (c *Client) setReason(err error) {
	c.mu.Lock()
	c.reason = err
	c.mu.Unlock()
	c.changes.notify()
}

// broadcast wakes whoever waits.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{} }

// wait returns a channel that the next notify closes.
func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *broadcast) notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
