package web

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
)

// Path is where the page is, and the nonResourceURL that its viewers must be allowed to get.
const Path = "/berth"

// policy lets the browser load nothing but what is served here, and run no script that is not a file.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// files are what the page is made of.
//
//go:embed static
var files embed.FS

// Handler serves the page: GET and HEAD only. The files hold no data and are anybody's, the data are not.
func (p *Page) Handler() http.Handler { return p.handler }

func (p *Page) routes() (http.Handler, error) {
	mux := http.NewServeMux()
	static, err := staticFiles()
	if err != nil {
		return nil, err
	}
	mux.Handle("GET "+Path+"/{file...}", static)
	mux.Handle("GET /{$}", http.RedirectHandler(Path+"/", http.StatusFound))
	mux.Handle("GET "+Path, http.RedirectHandler(Path+"/", http.StatusFound))
	for name, tell := range map[string]func(look, *http.Request) (any, error){
		"state":   func(x look, _ *http.Request) (any, error) { return x.state, nil },
		"subnets": func(x look, _ *http.Request) (any, error) { return x.subnets, nil },
		"waiting": func(x look, _ *http.Request) (any, error) { return x.waiting, nil },
		"map": func(x look, r *http.Request) (any, error) {
			return mapOf(x.view, r.FormValue("subnet"), r.FormValue("family"), r.FormValue("within"))
		},
		"table": func(x look, r *http.Request) (any, error) {
			from, _ := strconv.Atoi(r.FormValue("from")) // what is no number is the beginning
			return rowsOf(x.view, r.FormValue("subnet"), r.FormValue("family"), r.FormValue("within"), from)
		},
		"usage": func(_ look, r *http.Request) (any, error) {
			return p.history.of(r.FormValue("subnet"), r.FormValue("family")), nil
		},
		"find": func(x look, r *http.Request) (any, error) {
			return find(x.view, p.mirror.ledger, x.waiting, r.FormValue("q")), nil
		},
	} {
		mux.Handle("GET "+Path+"/api/"+name, p.data(tell))
	}
	mux.HandleFunc("GET "+Path+"/api/{rest...}", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there is no such answer", http.StatusNotFound)
	})
	return secured(mux), nil
}

// secured says with every answer what a browser may do with it.
func secured(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for k, v := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
			"Permissions-Policy": "camera=(), geolocation=(), microphone=()", "Cache-Control": "no-store",
		} {
			w.Header().Set(k, v)
		}
		if len(r.URL.RawQuery) > 1024 {
			http.Error(w, "the question is too long", http.StatusRequestURITooLong)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// data answers who may look, in JSON. The browser's cache keeps nothing of it; an answer that the caller has already, by
// If-None-Match, is not sent again.
func (p *Page) data(tell func(look, *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := p.Gate.Admit(r); err != nil {
			p.refuse(w, err)
			return
		}
		if err := p.Synced(); err != nil {
			p.unready(r.Context(), w, err)
			return
		}
		body, err := p.answer(r.Context(), r.URL.Path+"?"+r.URL.Query().Encode(), func(x look) (any, error) { return tell(x, r) })
		switch {
		case errors.Is(err, ErrUnknown):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			p.Log.Error(err, "The page could not be answered")
			http.Error(w, "the answer could not be made now, the worker's log tells why: try again", http.StatusServiceUnavailable)
		default:
			send(w, r, "application/json", body)
		}
	})
}

func (p *Page) refuse(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, ErrStranger):
		w.Header().Set("WWW-Authenticate", `Bearer realm="berth"`)
		http.Error(w, err.Error(), http.StatusUnauthorized)
	case errors.Is(err, ErrDenied):
		http.Error(w, err.Error(), http.StatusForbidden)
	case errors.Is(err, ErrBusy):
		w.Header().Set("Retry-After", "2")
		http.Error(w, err.Error(), http.StatusTooManyRequests)
	default:
		p.Log.Error(err, "A viewer of the page could not be judged")
		http.Error(w, "the API server could not be asked who you are: try again", http.StatusServiceUnavailable)
	}
}

// unready says what is missing, and who leads: that one may know more.
func (p *Page) unready(ctx context.Context, w http.ResponseWriter, missing error) {
	text := missing.Error()
	if l, err := p.Leader(ctx); err == nil && l.Alive && l.Holder != p.Self {
		text += "; the worker that leads is " + l.Holder
	}
	w.Header().Set("Retry-After", "2")
	http.Error(w, text, http.StatusServiceUnavailable)
}

// send sends a body, unless the caller has it.
func send(w http.ResponseWriter, r *http.Request, kind string, body []byte) {
	sum := sha256.Sum256(body)
	tag := `"` + hex.EncodeToString(sum[:12]) + `"`
	w.Header().Set("ETag", tag)
	if strings.Contains(r.Header.Get("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // net/http leaves the body away for HEAD; who has gone hears nothing
}

// staticFiles serves what the page is made of. A new version counts at once: browsers ask each time.
func staticFiles() (http.Handler, error) {
	static := map[string][]byte{}
	entries, err := fs.ReadDir(files, "static")
	if err != nil {
		return nil, fmt.Errorf("read the page's files: %w", err)
	}
	for _, e := range entries {
		if static[e.Name()], err = files.ReadFile("static/" + e.Name()); err != nil {
			return nil, fmt.Errorf("read the page's files: %w", err)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("file")
		if name == "" {
			name = "index.html"
		}
		body, ok := static[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Cache-Control", "no-cache")
		send(w, r, mime.TypeByExtension(path.Ext(name)), body)
	}), nil
}
