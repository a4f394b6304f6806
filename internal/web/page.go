package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

const (
	// freshFor is how long what was looked at is shown, whoever asks; longer, up to staleAfter, where counting would take
	// more than a tenth of the time.
	freshFor   = 500 * time.Millisecond
	staleAfter = 900 * time.Millisecond
	// plansFor is how long the list of waiting pods is shown.
	plansFor = 2 * time.Second
	// leaderFor is how long the leader that was read is believed.
	leaderFor = 5 * time.Second
	// maxAnswers are kept of one look.
	maxAnswers = 64
)

// Options of a Page. All fields are needed unless said otherwise.
type Options struct {
	// Self names this replica.
	Self string
	// Ledger is the worker's. Only its blocks are read.
	Ledger *ipam.Ledger
	// Synced says what is not read yet; nil: all is.
	Synced func() error
	// Topology gives all that is no single pod's, View what one pod's plan needs.
	Topology func(context.Context) (network.Catalog, error)
	View     func(context.Context, network.Pod) (catalog.View, error)
	// Waiting gives the pods that may wait for an address. They are not changed.
	Waiting func(context.Context) ([]*corev1.Pod, error)
	// Leader tells which worker leads.
	Leader func(context.Context) (report.Leader, error)
	// Network is the contract's configuration.
	Network network.Config
	// Gate lets in who may look.
	Gate Gate
	// Clock paces.
	Clock clock.WithTicker
	// Log may be the zero value.
	Log logr.Logger
}

// State is what a browser asks for all the time: when Revision is another one, there is something new.
type State struct {
	Revision string        `json:"revision"`
	Self     string        `json:"self"`
	Leader   report.Leader `json:"leader"`
	Waiting  int           `json:"waiting"`
}

// Page makes the answers. It is safe for concurrent use.
type Page struct {
	Options
	handler http.Handler

	mu      sync.Mutex
	mirror  mirror
	history history
	seen    look
	due     time.Time
	answers map[string][]byte
}

// look is what was seen at one moment.
type look struct {
	view
	subnets   *report.Subnets
	waiting   *Waiting
	leader    report.Leader
	state     State
	topology  string
	plannedAt time.Time
	leaderAt  time.Time
}

// New makes a page. Run keeps its memory of the last hour.
func New(o Options) (*Page, error) {
	switch {
	case o.Ledger == nil || o.Synced == nil || o.Topology == nil || o.View == nil || o.Waiting == nil || o.Leader == nil:
		return nil, errors.New("a page needs a ledger, and what tells of topology, pods and leader")
	case o.Gate == nil || o.Clock == nil:
		return nil, errors.New("a page needs a gate and a clock")
	}
	p := &Page{Options: o, mirror: mirror{of: o.Ledger}, history: history{}, answers: map[string][]byte{}}
	var err error
	p.handler, err = p.routes()
	return p, err
}

// Run samples usage until the context ends.
func (p *Page) Run(ctx context.Context) error {
	ticker := p.Clock.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		if err := p.sample(ctx); err != nil && ctx.Err() == nil {
			p.Log.V(1).Info("No sample for the page", "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

func (p *Page) sample(ctx context.Context) error {
	if err := p.Synced(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refresh(ctx); err != nil {
		return err
	}
	p.history.add(p.Clock.Now(), p.seen.subnets)
	clear(p.answers)
	return nil
}

// answer gives the JSON of what tell tells, the same for all who ask for it within one look.
func (p *Page) answer(ctx context.Context, key string, tell func(look) (any, error)) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refresh(ctx); err != nil {
		return nil, err
	}
	if body, ok := p.answers[key]; ok {
		return body, nil
	}
	v, err := tell(p.seen)
	if err != nil {
		return nil, err
	}
	var body []byte
	if r, ok := v.(report.View); ok { // as kubectl berth writes it
		var b bytes.Buffer
		err = report.Write(&b, report.JSON, p.seen.now, r)
		body = b.Bytes()
	} else {
		body, err = json.Marshal(v)
	}
	if err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	if len(p.answers) >= maxAnswers {
		clear(p.answers)
	}
	p.answers[key] = body
	return body, nil
}

// refresh looks again, when what was seen is no longer fresh. p.mu is held.
func (p *Page) refresh(ctx context.Context) error {
	begin := p.Clock.Now()
	if begin.Before(p.due) {
		return nil
	}
	next, changed, err := p.look(ctx, begin)
	if err != nil {
		return err
	}
	p.seen = next
	if changed {
		clear(p.answers)
	}
	now := p.Clock.Now()
	p.due = now.Add(min(max(freshFor, 9*now.Sub(begin)), staleAfter))
	return nil
}

// look looks at everything. It counts again only when something may have changed.
func (p *Page) look(ctx context.Context, now time.Time) (next look, changed bool, err error) {
	next = p.seen
	next.now, next.rest = now, p.Ledger.Rest
	if next.catalog, err = p.Topology(ctx); err != nil {
		return next, false, err
	}
	moved, err := p.mirror.follow()
	if err != nil {
		return next, false, err
	}
	next.blocks = p.mirror.blocks
	// A catalog's maps are the same ones until something changed; resting addresses become free by time alone.
	next.topology = fmt.Sprintf("%p", next.catalog.Subnets)
	if moved || next.topology != p.seen.topology || resting(p.seen.subnets) {
		next.subnets = report.SubnetsOf(next.catalog, p.mirror.ledger)
	}
	if next.leaderAt.IsZero() || now.Sub(next.leaderAt) >= leaderFor {
		if next.leader, err = p.Leader(ctx); err != nil {
			return next, false, err
		}
		next.leader.Renewed, next.leaderAt = nil, now // or it would be new all the time
	}
	if next.waiting == nil || now.Sub(next.plannedAt) >= plansFor {
		if next.waiting, err = p.waiting(ctx, next.leader); err != nil {
			return next, false, err
		}
		next.plannedAt = now
	}
	next.state, err = p.stateOf(next)
	return next, next.state != p.seen.state, err
}

// stateOf names what was seen by its content.
func (p *Page) stateOf(x look) (State, error) {
	h := sha256.New()
	for _, b := range x.blocks {
		h.Write([]byte(b.Name + "@" + b.UID + "@" + b.ResourceVersion + "\n"))
	}
	if err := json.NewEncoder(h).Encode([]any{x.topology, x.subnets, x.waiting, x.leader}); err != nil {
		return State{}, fmt.Errorf("name what was seen: %w", err)
	}
	return State{Revision: hex.EncodeToString(h.Sum(nil)[:12]), Self: p.Self, Leader: x.leader, Waiting: x.waiting.Total}, nil
}

// resting tells whether something will change by time alone.
func resting(s *report.Subnets) bool {
	return s != nil && slices.ContainsFunc(s.Items, func(x report.Subnet) bool { return x.Figures != nil && x.Resting > 0 })
}
