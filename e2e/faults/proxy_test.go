package faults

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// apiServer plays the API server behind the proxy: it counts what it stores, and tells one event for each line that is
// sent.
type apiServer struct {
	stored atomic.Int32
	events chan string
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case isWatch(r):
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case e := <-a.events:
				_, _ = io.WriteString(w, e+"\n")
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	case isWrite(r) && r.URL.Path == "/conflict":
		w.WriteHeader(http.StatusConflict)
	case isWrite(r):
		a.stored.Add(1)
		w.WriteHeader(http.StatusCreated)
	}
	_, _ = io.WriteString(w, "said")
}

// between starts an API server with a proxy in front of it.
func between(t *testing.T) (*apiServer, *Proxy, string) {
	t.Helper()
	a := &apiServer{events: make(chan string)}
	back := httptest.NewServer(a)
	t.Cleanup(back.Close)
	target, err := url.Parse(back.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(1)
	p.where = func() (*upstream, error) { return &upstream{handler: passOn(target, http.DefaultTransport)}, nil }
	front := httptest.NewServer(p)
	t.Cleanup(front.Close)
	return a, p, front.URL
}

// call sends a request; code 0: the connection broke.
func call(t *testing.T, method, at string) (code int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func TestProxyPassesOn(t *testing.T) {
	a, p, at := between(t)
	if code, body := call(t, http.MethodGet, at+"/x"); code != http.StatusOK || body != "said" {
		t.Errorf("a read gives %d %q", code, body)
	}
	if code, body := call(t, http.MethodPost, at+"/x"); code != http.StatusCreated || body != "said" || a.stored.Load() != 1 {
		t.Errorf("a write gives %d %q, and %d are stored", code, body, a.stored.Load())
	}
	for _, k := range Kinds() {
		if p.Hits(k) != 0 {
			t.Errorf("%s was met", k)
		}
	}
}

func TestAnswersAreLostAfterTheyAreStored(t *testing.T) {
	a, p, at := between(t)
	end := p.Begin(AnswerLost)
	lost := 0
	for range 50 {
		if code, _ := call(t, http.MethodPut, at+"/x"); code == 0 {
			lost++
		}
		if code, _ := call(t, http.MethodPut, at+"/conflict"); code != http.StatusConflict {
			t.Fatalf("a refused write gives %d", code)
		}
		if code, _ := call(t, http.MethodGet, at+"/x"); code != http.StatusOK {
			t.Fatalf("a read gives %d", code)
		}
	}
	if lost == 0 || lost == 50 || p.Hits(AnswerLost) != lost || a.stored.Load() != 50 {
		t.Errorf("of 50 writes %d answers were lost, %d counted, %d stored", lost, p.Hits(AnswerLost), a.stored.Load())
	}
	end()
	end()
	for range 20 {
		if code, _ := call(t, http.MethodPut, at+"/x"); code != http.StatusCreated {
			t.Fatalf("after the end a write gives %d", code)
		}
	}
}

func TestAPIRefuses(t *testing.T) {
	a, p, at := between(t)
	defer p.Begin(APIRefuses)()
	for range 50 {
		if code, body := call(t, http.MethodPost, at+"/x"); code == http.StatusServiceUnavailable && !strings.Contains(body, `"kind":"Status"`) {
			t.Fatalf("a refusal says %q", body)
		}
	}
	if hit := p.Hits(APIRefuses); hit == 0 || hit == 50 || int(a.stored.Load()) != 50-hit {
		t.Errorf("%d of 50 were refused, %d stored", hit, a.stored.Load())
	}
}

// watchOf opens a watch, and gives its lines; closed when it has ended.
func watchOf(t *testing.T, at string) (int, <-chan string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/x?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req) //nolint:bodyclose // it is closed when its last line is read
	if err != nil {
		return 0, nil
	}
	lines := make(chan string)
	go func() {
		defer func() { _ = resp.Body.Close() }()
		defer close(lines)
		for s := bufio.NewScanner(resp.Body); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return resp.StatusCode, lines
}

func TestWatchesAreStalled(t *testing.T) {
	a, p, at := between(t)
	_, lines := watchOf(t, at)
	a.events <- "one"
	if got := <-lines; got != "one" {
		t.Fatalf("the first event is %q", got)
	}
	end := p.Begin(WatchStalled)
	a.events <- "two"
	for deadline := time.Now().Add(5 * time.Second); p.Hits(WatchStalled) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the event did not get to the proxy")
		}
	}
	select {
	case got := <-lines:
		t.Errorf("%q came through", got)
	default:
	}
	end()
	if got := <-lines; got != "two" {
		t.Errorf("after the end comes %q", got)
	}
}

func TestWatchesAreCut(t *testing.T) {
	_, p, at := between(t)
	_, lines := watchOf(t, at)
	end := p.Begin(WatchCut)
	if got, open := <-lines; open {
		t.Errorf("the watch goes on with %q", got)
	}
	if code, _ := watchOf(t, at); code != 0 {
		t.Errorf("a new watch gives %d", code)
	}
	if code, _ := call(t, http.MethodGet, at+"/x"); code != http.StatusOK {
		t.Errorf("a read gives %d", code)
	}
	end()
	if code, _ := watchOf(t, at); code != http.StatusOK {
		t.Errorf("after the end a watch gives %d", code)
	}
	if p.Hits(WatchCut) != 2 {
		t.Errorf("%d were met", p.Hits(WatchCut))
	}
}

func TestWatchesExpire(t *testing.T) {
	_, p, at := between(t)
	defer p.Begin(WatchExpired)()
	codes := map[int]int{}
	for range 30 {
		code, _ := watchOf(t, at)
		codes[code]++
	}
	if codes[http.StatusGone] == 0 || codes[http.StatusOK] == 0 || len(codes) != 2 {
		t.Errorf("watches give %v", codes)
	}
}

func TestSlowEndsWithTheFaultOrTheCaller(t *testing.T) {
	over := make(chan struct{})
	close(over)
	if !hold(t.Context(), over) {
		t.Error("a request was dropped though its fault is over")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("left"))
	if hold(ctx, nil) {
		t.Error("a request goes on though its caller has left")
	}
}
