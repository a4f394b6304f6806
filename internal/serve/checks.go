package serve

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Check says whether one thing works: nil, or an error whose text says what to do.
type Check func() error

// ErrDraining is what a draining server's readiness reports.
var ErrDraining = errors.New("draining: this replica is shutting down, send requests to another one")

// Checks is a set of named checks behind a health endpoint. The zero value is an empty, healthy set. Safe for
// concurrent use.
type Checks struct {
	mu     sync.RWMutex
	checks map[string]Check
}

// Add registers a check under a name; a later one of that name replaces it.
func (c *Checks) Add(name string, check Check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.checks == nil {
		c.checks = map[string]Check{}
	}
	c.checks[name] = check
}

// Remove takes a check out of the set.
func (c *Checks) Remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.checks, name)
}

// Failing runs all checks and returns the errors of those that fail, by name.
func (c *Checks) Failing() map[string]error {
	failing := map[string]error{}
	for name, check := range c.snapshot() {
		if err := check(); err != nil {
			failing[name] = err
		}
	}
	return failing
}

// Err joins what Failing returns, in the order of the names; nil when all checks pass.
func (c *Checks) Err() error {
	failing := c.Failing()
	var errs []error
	for _, name := range sortedKeys(failing) {
		errs = append(errs, fmt.Errorf("%s: %w", name, failing[name]))
	}
	return errors.Join(errs...)
}

// ServeHTTP answers 200 "ok" when all checks pass, else 503 and the list of checks with the text of the failing ones.
// ?verbose lists them always; ?exclude=NAME leaves checks out.
func (c *Checks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body strings.Builder
	failed := 0
	checks := c.snapshot()
	excluded := r.URL.Query()["exclude"]
	for _, name := range sortedKeys(checks) {
		if slices.Contains(excluded, name) {
			fmt.Fprintf(&body, "[+]%s excluded\n", name)
			continue
		}
		if err := checks[name](); err != nil {
			failed++
			fmt.Fprintf(&body, "[-]%s failed: %s\n", name, oneLine(err))
			continue
		}
		fmt.Fprintf(&body, "[+]%s ok\n", name)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case failed > 0:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "%s%d check(s) failed\n", body.String(), failed)
	case r.URL.Query().Has("verbose"):
		fmt.Fprintf(w, "%sok\n", body.String())
	default:
		fmt.Fprint(w, "ok")
	}
}

func (c *Checks) snapshot() map[string]Check {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make(map[string]Check, len(c.checks))
	for name, check := range c.checks {
		out[name] = check
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
