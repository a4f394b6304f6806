package memkube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
)

// watcher is one running watch.
type watcher struct {
	server    *Server
	table     *table
	match     matcher
	partial   bool
	bookmarks bool
	delay     time.Duration
	epoch     int
	// sent is the version up to which everything has been written.
	sent uint64
	out  http.ResponseWriter
	buf  bytes.Buffer
}

func (s *Server) serveWatch(ctx context.Context, w http.ResponseWriter, req Request, t *table, fault Fault) error {
	q := req.HTTP.URL.Query()
	match, err := selectorOf(t.kind, req)
	if err != nil {
		return err
	}
	from, err := versionParam(q)
	if err != nil {
		return err
	}
	streaming := q.Get("sendInitialEvents") == "true"
	if match := q.Get("resourceVersionMatch"); streaming && match != string(metav1.ResourceVersionMatchNotOlderThan) {
		return apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "", field.ErrorList{
			field.Forbidden(field.NewPath("resourceVersionMatch"), "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")})
	}
	wt := &watcher{server: s, table: t, match: match, partial: metadataOnly(req.HTTP), out: w, sent: from,
		delay: fault.WatchDelay, bookmarks: q.Get("allowWatchBookmarks") == "true"}
	initial := streaming || from == 0 && q.Get("sendInitialEvents") != "false"
	if err := wt.begin(req.Namespace, initial, streaming); err != nil {
		return err
	}
	if seconds, err := strconv.Atoi(q.Get("timeoutSeconds")); err == nil && seconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
		defer cancel()
	}
	wt.run(ctx)
	return nil
}

// begin answers the request, with the present objects when they were asked for.
func (wt *watcher) begin(namespace string, initial, streaming bool) error {
	st := wt.server.store
	st.mu.RLock()
	now, floor := st.rv, wt.table.floor
	wt.epoch = wt.table.epoch
	var records []*record
	if initial {
		records = wt.table.list(namespace)
	}
	st.mu.RUnlock()
	switch {
	case initial:
		wt.sent = now
	case wt.sent == 0:
		wt.sent = now
	case wt.sent < floor || wt.sent > now:
		return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", wt.sent, floor))
	}
	wt.out.Header().Set("Content-Type", "application/json")
	wt.out.WriteHeader(http.StatusOK)
	for _, r := range records {
		if wt.match(r) {
			wt.write(watch.Added, r)
		}
	}
	if streaming {
		wt.bookmark(true)
	}
	wt.flush()
	return nil
}

// run delivers events until the context ends, the server closes, or the watch falls behind the history.
func (wt *watcher) run(ctx context.Context) {
	bookmark := time.NewTicker(wt.server.opts.BookmarkEvery)
	defer bookmark.Stop()
	for {
		events, ok, wake, gate := wt.server.store.since(wt.table, wt.sent)
		if ended, expired := wt.ended(ok); ended {
			if expired {
				wt.expire()
			}
			return
		}
		if gate != nil && len(events) > 0 {
			if !wt.server.hold(ctx, gate) {
				return
			}
			continue
		}
		if len(events) > 0 {
			if !wt.server.pause(ctx, wt.delay) || !wt.deliver(events) {
				return
			}
			continue
		}
		select {
		case <-wake:
		case <-bookmark.C:
			if wt.bookmarks {
				wt.bookmark(false)
				wt.flush()
			}
		case <-ctx.Done():
			return
		case <-wt.server.done:
			return
		}
	}
}

// ended says whether the watch is over, and whether the client has to list again.
func (wt *watcher) ended(inHistory bool) (ended, expired bool) {
	st := wt.server.store
	st.mu.RLock()
	defer st.mu.RUnlock()
	return !inHistory || wt.table.epoch != wt.epoch, !inHistory
}

func (wt *watcher) deliver(events []event) bool {
	for _, e := range events {
		was := e.before != nil && wt.match(e.before)
		is := !e.deleted && wt.match(e.now)
		switch {
		case is && was:
			wt.write(watch.Modified, e.now)
		case is:
			wt.write(watch.Added, e.now)
		case was && e.deleted:
			wt.write(watch.Deleted, e.now)
		case was:
			// The object left the selection: its last selected state, at the version at which it left.
			if gone, err := newRecord(e.before.meta().DeepCopy().Object, e.rv); err == nil {
				wt.write(watch.Deleted, gone)
			}
		}
		wt.sent = e.rv
	}
	return wt.flush()
}

func (wt *watcher) write(typ watch.EventType, r *record) {
	raw, err := render(r, wt.partial)
	if err != nil {
		wt.server.log.Warn("object can't be sent on a watch", "error", err)
		return
	}
	fmt.Fprintf(&wt.buf, `{"type":%q,"object":%s}`+"\n", typ, raw)
}

func (wt *watcher) bookmark(initialEnd bool) {
	version := strconv.FormatUint(wt.sent, 10)
	meta := map[string]any{"resourceVersion": version, "creationTimestamp": nil}
	if initialEnd {
		meta["annotations"] = map[string]any{metav1.InitialEventsAnnotationKey: "true"}
	}
	k := wt.table.kind
	wt.write(watch.Bookmark, mustRecord(map[string]any{"kind": k.Kind, "apiVersion": k.apiVersion(), "metadata": meta}))
}

// mustRecord encodes a bookmark, which always can be.
func mustRecord(obj map[string]any) *record {
	raw, err := json.Marshal(obj)
	if err != nil {
		raw = []byte("{}")
	}
	return &record{obj: obj, raw: raw}
}

func (wt *watcher) expire() {
	status := statusOf(apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d", wt.sent)))
	raw, err := json.Marshal(status)
	if err != nil {
		return
	}
	fmt.Fprintf(&wt.buf, `{"type":"ERROR","object":%s}`+"\n", raw)
	wt.flush()
}

func (wt *watcher) flush() bool {
	_, err := wt.out.Write(wt.buf.Bytes())
	wt.buf.Reset()
	if err != nil {
		return false
	}
	return http.NewResponseController(wt.out).Flush() == nil
}
