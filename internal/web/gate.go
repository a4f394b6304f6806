package web

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authentication "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// Why somebody may not look. Every other error of a Gate means that nobody could tell.
var (
	ErrStranger = errors.New("a token that the API server knows is needed")
	ErrDenied   = errors.New("not allowed: the ClusterRole berth-page-viewer gives the right to get " + Path)
	ErrBusy     = errors.New("too many unknown tokens at once: try again")
)

// Gate lets in who may look.
type Gate interface {
	Admit(r *http.Request) error
}

const (
	// allowedFor and deniedFor are how long an answer of the API server is believed.
	allowedFor = time.Minute
	deniedFor  = 10 * time.Second
	// reviewWithin bounds the questions about one token.
	reviewWithin = 10 * time.Second
	maxReviews   = 8
	maxTokens    = 1024
	maxToken     = 16 << 10
)

// Reviewer asks the API server who a bearer token is, and whether that one may get Path. What is remembered of a token is
// its hash.
type Reviewer struct {
	tokens authentication.TokenReviewInterface
	access authorization.SubjectAccessReviewInterface
	clock  clock.PassiveClock

	asking singleflight.Group
	turns  chan struct{}
	mu     sync.Mutex
	known  map[[sha256.Size]byte]verdict
}

type verdict struct {
	err   error
	until time.Time
}

// NewReviewer makes one.
func NewReviewer(cfg *rest.Config, c clock.PassiveClock) (*Reviewer, error) {
	who, err := authentication.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make the client of token reviews: %w", err)
	}
	may, err := authorization.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make the client of access reviews: %w", err)
	}
	return &Reviewer{tokens: who.TokenReviews(), access: may.SubjectAccessReviews(), clock: c,
		turns: make(chan struct{}, maxReviews), known: map[[sha256.Size]byte]verdict{}}, nil
}

// Admit lets in whose token the API server vouches for.
func (g *Reviewer) Admit(r *http.Request) error {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken {
		return ErrStranger
	}
	key := sha256.Sum256([]byte(token))
	if ok, err := g.remembered(key); ok {
		return err
	}
	_, err, _ := g.asking.Do(string(key[:]), func() (any, error) {
		if ok, err := g.remembered(key); ok { // somebody asked meanwhile
			return nil, err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), reviewWithin) // others wait for it as well
		defer cancel()
		return nil, g.judge(ctx, key, token)
	})
	return err
}

// judge asks, and remembers the answer.
func (g *Reviewer) judge(ctx context.Context, key [sha256.Size]byte, token string) error {
	select {
	case g.turns <- struct{}{}:
		defer func() { <-g.turns }()
	default:
		return ErrBusy
	}
	err := g.review(ctx, token)
	switch {
	case err == nil:
		g.remember(key, verdict{until: g.clock.Now().Add(allowedFor)})
	case errors.Is(err, ErrStranger), errors.Is(err, ErrDenied):
		g.remember(key, verdict{err: err, until: g.clock.Now().Add(deniedFor)})
	}
	return err
}

func (g *Reviewer) review(ctx context.Context, token string) error {
	t, err := g.tokens.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask the API server for the owner of a token: %w", err)
	}
	if !t.Status.Authenticated {
		return ErrStranger
	}
	u := t.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(u.Extra))
	for k, v := range u.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	a, err := g.access.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: u.Username, UID: u.UID, Groups: u.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: Path, Verb: "get"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ask the API server whether %s may get %s: %w", u.Username, Path, err)
	}
	if !a.Status.Allowed || a.Status.Denied {
		return fmt.Errorf("%s is %w", u.Username, ErrDenied)
	}
	return nil
}

func (g *Reviewer) remembered(key [sha256.Size]byte) (ok bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v, ok := g.known[key]
	return ok && g.clock.Now().Before(v.until), v.err
}

func (g *Reviewer) remember(key [sha256.Size]byte, v verdict) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.known) >= maxTokens {
		clear(g.known)
	}
	g.known[key] = v
}
