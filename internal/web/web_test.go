package web_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/internal/web"
	"github.com/berth-net/berth/internal/web/webtest"
)

// page is a page over a world, inside a bubble of time.
type page struct {
	*webtest.World
	t    testing.TB
	page *web.Page
}

func newPage(t testing.TB, change ...func(*web.Options)) *page {
	t.Helper()
	w, err := webtest.New(t.Context(), clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	o := w.Options()
	for _, f := range change {
		f(&o)
	}
	p, err := web.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return &page{w, t, p}
}

func (p *page) do(method, path string, header ...string) *httptest.ResponseRecorder {
	p.t.Helper()
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	out := httptest.NewRecorder()
	p.page.Handler().ServeHTTP(out, r)
	return out
}

func (p *page) get(path string) *httptest.ResponseRecorder {
	p.t.Helper()
	out := p.do(http.MethodGet, web.Path+"/api/"+path, "Authorization", "Bearer "+webtest.Token)
	if out.Code != http.StatusOK {
		p.t.Fatalf("%s: %d %s", path, out.Code, out.Body)
	}
	return out
}

func read[T any](p *page, path string) T {
	p.t.Helper()
	var out T
	if err := json.Unmarshal(p.get(path).Body.Bytes(), &out); err != nil {
		p.t.Fatalf("%s: %v", path, err)
	}
	return out
}

func place(subnet, family, within string) string {
	return "subnet=" + subnet + "&family=" + family + "&within=" + url.QueryEscape(within)
}

// The figures are byte for byte what `kubectl berth subnets -o json` writes, before and after a change.
func TestFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t)
		for range 2 {
			var want bytes.Buffer
			if err := report.Write(&want, report.JSON, time.Now(), report.SubnetsOf(p.Catalog, p.Ledger)); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want.String(), p.get("subnets").Body.String()); d != "" {
				t.Error(d)
			}
			if _, err := p.Take(t.Context(), "dual", "shop", "new"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
	})
}

// Each map adds up to the figures of its subnet, whether it tells addresses or parts, and so does what a part opens into.
func TestMaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t)
		for _, s := range read[report.Subnets](p, "subnets").Items {
			if s.Figures == nil {
				continue
			}
			m := read[web.Map](p, "map?"+place(s.Name, s.Family, ""))
			got := tally(t, p, m)
			want := sums{Bound: s.Bound, Pending: s.Pending, Reserved: s.Reserved, Resting: s.Resting}
			if !m.Sparse {
				want.Size, want.Excluded, want.Free = s.Size.Uint64(), s.Excluded.Uint64(), s.Free.Uint64()
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s %s: %s", s.Name, s.Family, d)
			}
			if len(m.Parts) > 4096 || len(m.Cells) > 16384 {
				t.Errorf("%s: %d parts, %d cells", s.Name, len(m.Parts), len(m.Cells))
			}
		}
	})
}

// sums are what a map comes to.
type sums struct {
	Size, Excluded, Free              uint64
	Bound, Pending, Reserved, Resting int
}

func tally(t *testing.T, p *page, m web.Map) sums {
	t.Helper()
	var out sums
	for _, c := range m.Cells {
		switch c {
		case 'l', 'a':
			out.Bound++
		case 'p':
			out.Pending++
		case 'v':
			out.Reserved++
		case 'x', 'k':
			out.Excluded++
		case 'r':
			out.Resting++
			out.Free++
		case '.':
			out.Free++
		}
	}
	if m.Cells != "" {
		out.Size = out.Free + out.Excluded + uint64(out.Bound+out.Pending+out.Reserved)
		return out
	}
	for i, part := range m.Parts {
		x := sums{part.Size, part.Excluded, part.Free, part.Bound, part.Pending, part.Reserved, part.Resting}
		if i%97 == 0 && strings.HasSuffix(part.Prefix, map[string]string{"IPv4": "/26", "IPv6": "/122"}[m.Family]) { // the ledger's blocks
			inner := tally(t, p, read[web.Map](p, "map?"+place(m.Subnet, m.Family, part.Prefix)))
			if m.Sparse {
				inner.Size, inner.Excluded, inner.Free = 0, 0, 0
			}
			if d := cmp.Diff(x, inner); d != "" {
				t.Errorf("%s opens into something else: %s", part.Prefix, d)
			}
		}
		out.Size, out.Excluded, out.Free = out.Size+x.Size, out.Excluded+x.Excluded, out.Free+x.Free
		out.Bound, out.Pending, out.Reserved, out.Resting = out.Bound+x.Bound, out.Pending+x.Pending, out.Reserved+x.Reserved, out.Resting+x.Resting
	}
	return out
}

// Single cells say what `kubectl berth who` says.
func TestCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t)
		m := read[web.Map](p, "map?"+place(webtest.Shop, "IPv4", ""))
		at := map[string]byte{"0": m.Cells[0], "gateway": m.Cells[1], "broadcast": m.Cells[16383], "excluded": m.Cells[60*256+7], "kept": m.Cells[40*256+9], "beyond": m.Cells[62*256]}
		want := map[string]byte{"0": '-', "gateway": 'g', "broadcast": '-', "excluded": 'x', "kept": 'k', "beyond": '.'}
		if d := cmp.Diff(want, at); d != "" {
			t.Error(d)
		}
		h, err := p.Take(t.Context(), webtest.Shop, "shop", "new")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		raw := h.Address.As4()
		if c := read[web.Map](p, "map?"+place(webtest.Shop, "IPv4", "")).Cells[int(raw[2])*256+int(raw[3])]; c != 'l' {
			t.Errorf("the new lease is shown as %q", c)
		}
		if w := read[web.Map](p, "map?"+place("campus", "IPv4", "10.64.3.7")).Within; w != "10.64.0.0/22" {
			t.Errorf("around an address there is %s", w)
		}
	})
}

// The table tells every address of the map once, a page at a time.
func TestTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t)
		count, leased, from := 0, 0, 0
		for {
			rows := read[web.Rows](p, fmt.Sprintf("table?%s&from=%d", place(webtest.Shop, "IPv4", ""), from))
			if len(rows.Items) > 200 {
				t.Fatalf("%d rows at once", len(rows.Items))
			}
			for _, r := range rows.Items {
				count += r.Count
				if r.Lease != nil {
					leased++
					if r.Lease.Address != r.First || r.Count != 1 {
						t.Errorf("row %+v has the lease %+v", r, *r.Lease)
					}
				}
			}
			if from += len(rows.Items); from >= rows.Total {
				break
			}
		}
		if s := read[report.Subnets](p, "subnets").Items; count != 16384 || leased < 9000 || leased != named(s, webtest.Shop).Leased {
			t.Errorf("%d addresses, %d leases", count, leased)
		}
	})
}

func named(items []report.Subnet, name string) report.Subnet {
	for _, s := range items {
		if s.Name == name {
			return s
		}
	}
	return report.Subnet{Figures: &report.Figures{Size: new(big.Int)}}
}

// Oldest first, with what each lacks.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t)
		got := read[web.Waiting](p, "waiting")
		var names []string
		for _, w := range got.Items {
			names = append(names, w.Namespace+"/"+w.Name)
		}
		if d := cmp.Diff([]string{"shop/waiting-0", "shop/waiting-1", "shop/waiting-2"}, names); d != "" || got.Total != 3 {
			t.Fatalf("%d: %s", got.Total, d)
		}
		first, second := got.Items[0], got.Items[1]
		if d := cmp.Diff([]string{"10.17.0.5"}, first.Asks); d != "" || len(first.Why) != 1 || !strings.Contains(first.Why[0], "10.17.0.5 is leased to") {
			t.Errorf("%s %q", d, first.Why)
		}
		if d := cmp.Diff([]string{"tiny"}, second.From); d != "" || len(second.Why) != 1 || !strings.Contains(second.Why[0], "tiny has no free IPv4 address of 5") {
			t.Errorf("%s %q", d, second.Why)
		}
		p.Lead = report.Leader{}
		for range 60 {
			p.Pods = append(p.Pods, p.Pods[2].DeepCopy())
		}
		time.Sleep(6 * time.Second)
		if got = read[web.Waiting](p, "waiting"); len(got.Items) != 50 || got.Total != 63 {
			t.Errorf("%d of %d are told", len(got.Items), got.Total)
		}
		if s := read[web.State](p, "state"); s.Leader.Alive || s.Waiting != 63 || s.Self != "berth-worker-1" {
			t.Errorf("%+v", s)
		}
	})
}

// A sample every half minute, and none that is older than an hour.
func TestUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t)
		go func() {
			if err := p.page.Run(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		ask := "usage?subnet=dual&family=IPv4"
		before := read[web.Usage](p, ask).Samples
		if len(before) != 1 {
			t.Fatalf("%v at the beginning", before)
		}
		if _, err := p.Take(t.Context(), "dual", "shop", "new"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(31 * time.Second)
		if s := read[web.Usage](p, ask).Samples; len(s) != 2 || s[1].Bound != s[0].Bound+1 || s[1].At-s[0].At != 30 {
			t.Errorf("%v after a take", s)
		}
		time.Sleep(2 * time.Hour)
		for range 2 {
			s := read[web.Usage](p, ask).Samples
			if len(s) != 120 || s[len(s)-1].At-s[0].At != 119*30 || time.Now().Unix()-s[len(s)-1].At > 30 {
				t.Errorf("%d samples over %d s", len(s), s[len(s)-1].At-s[0].At)
			}
			time.Sleep(30 * time.Second)
		}
		p.Keep("tiny")
		time.Sleep(time.Minute)
		if s := read[web.Usage](p, ask).Samples; len(s) != 0 {
			t.Errorf("a subnet that is gone is remembered: %d", len(s))
		}
	})
}

// What a search finds.
func TestFind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t)
		h, err := p.Take(t.Context(), webtest.Shop, "books", "very-special-pod")
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			q    string
			good func(web.Found) bool
		}{
			"a pod":           {"Very-Special", func(f web.Found) bool { return f.Total == 1 && f.Leases[0].Address == h.Address.String() }},
			"with namespace":  {"books/very-special-pod", func(f web.Found) bool { return f.Total == 1 }},
			"an address":      {" " + h.Address.String() + " ", func(f web.Found) bool { return f.Who.Items[0].Who == "pod books/very-special-pod" }},
			"a MAC":           {h.MAC.String(), func(f web.Found) bool { return f.Who.Items[0].Lease.Address == h.Address.String() }},
			"many":            {"web-", func(f web.Found) bool { return len(f.Leases) == 50 && f.Total > 5000 }},
			"one that waits":  {"waiting-1", func(f web.Found) bool { return f.Total == 0 && len(f.Waiting) == 1 }},
			"nothing":         {"", func(f web.Found) bool { return f.Total == 0 && f.Who == nil && len(f.Waiting) == 0 }},
			"nobody":          {"no-such-pod", func(f web.Found) bool { return f.Total == 0 && f.Who == nil }},
			"of no subnet":    {"203.0.113.9", func(f web.Found) bool { return len(f.Who.Items) == 0 }},
			"too long for it": {strings.Repeat("a", 254), func(f web.Found) bool { return f.Total == 0 }},
		} {
			if f := read[web.Found](p, "find?q="+url.QueryEscape(c.q)); !c.good(f) {
				t.Errorf("%s: %+v", name, f)
			}
		}
	})
}

// A new lease is there when the answers of a moment ago are no longer fresh: well below two seconds.
func TestRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t)
		time.Sleep(3 * time.Minute) // nothing rests any more
		first := read[web.State](p, "state")
		time.Sleep(10 * time.Second)
		if again := read[web.State](p, "state"); again != first {
			t.Errorf("nothing happened, and %+v became %+v", first, again)
		}
		if _, err := p.Take(t.Context(), webtest.Shop, "shop", "new"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if again := read[web.State](p, "state"); again.Revision == first.Revision {
			t.Error("a second after a take the revision is the same")
		}
	})
}

// Without a good token there are no data, whatever is asked; the files hold none.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t)
		for _, what := range []string{"state", "subnets", "waiting", "map?" + place(webtest.Shop, "IPv4", ""), "table?" + place(webtest.Shop, "IPv4", ""), "usage", "find?q=web"} {
			for header, code := range map[string]int{"": 401, "Basic " + webtest.Token: 401, "Bearer x": 401, "Bearer denied": 403} {
				out := p.do(http.MethodGet, web.Path+"/api/"+what, "Authorization", header)
				if out.Code != code || strings.Contains(out.Body.String(), "{") || strings.Contains(out.Body.String(), "10.") {
					t.Errorf("%s with %q: %d %s", what, header, out.Code, out.Body)
				}
				if challenge := out.Header().Get("WWW-Authenticate"); (code == 401) != (challenge != "") {
					t.Errorf("%s with %q: WWW-Authenticate is %q", what, header, challenge)
				}
			}
			if out := p.do(http.MethodPost, web.Path+"/api/"+what, "Authorization", "Bearer "+webtest.Token); out.Code != http.StatusMethodNotAllowed {
				t.Errorf("POST of %s: %d", what, out.Code)
			}
		}
		for _, file := range []string{"/", "/app.js", "/map.js", "/style.css", "/theme.js", "/icon.svg"} {
			if out := p.do(http.MethodGet, web.Path+file); out.Code != 200 || out.Header().Get("Cache-Control") != "no-cache" {
				t.Errorf("%s: %d %v", file, out.Code, out.Header())
			}
		}
		for path, code := range map[string]int{"/": 302, web.Path: 302, web.Path + "/none.js": 404, web.Path + "/api/none": 404, web.Path + "/api/state?q=" + strings.Repeat("a", 1100): 414} {
			if out := p.do(http.MethodGet, path); out.Code != code {
				t.Errorf("%s: %d, want %d", path, out.Code, code)
			}
		}
	})
}

// Every answer says what a browser may do with it, and what was answered before is not sent again.
func TestHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t)
		for path, cache := range map[string]string{web.Path + "/": "no-cache", web.Path + "/api/subnets": "no-store", web.Path + "/api/none": "no-store"} {
			h := p.do(http.MethodGet, path, "Authorization", "Bearer "+webtest.Token).Header()
			csp := h.Get("Content-Security-Policy")
			for _, part := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'"} {
				if !strings.Contains(csp, part) {
					t.Errorf("%s: the policy %q lacks %s", path, csp, part)
				}
			}
			if strings.Contains(csp, "unsafe") || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != cache || h.Get("Referrer-Policy") != "no-referrer" {
				t.Errorf("%s: %v", path, h)
			}
		}
		first := p.get("subnets")
		tag := first.Header().Get("ETag")
		again := p.do(http.MethodGet, web.Path+"/api/subnets", "Authorization", "Bearer "+webtest.Token, "If-None-Match", tag)
		if again.Code != http.StatusNotModified || again.Body.Len() != 0 || first.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%d with %d bytes; %v", again.Code, again.Body.Len(), first.Header())
		}
		if out := p.do(http.MethodGet, web.Path+"/api/subnets", "If-None-Match", tag); out.Code != http.StatusUnauthorized {
			t.Errorf("who only knows the tag is answered %d", out.Code)
		}
	})
}

// Until everything is read there are no figures that would be wrong, but a word who leads.
func TestUnready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t, func(o *web.Options) { o.Synced = func() error { return fmt.Errorf("the caches are not filled yet") } })
		out := p.do(http.MethodGet, web.Path+"/api/subnets", "Authorization", "Bearer "+webtest.Token)
		if want := "the caches are not filled yet; the worker that leads is berth-worker-0\n"; out.Code != 503 || out.Body.String() != want {
			t.Errorf("%d %q", out.Code, out.Body)
		}
	})
}

// What is not there is said so.
func TestUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t)
		for _, q := range []string{place("none", "IPv4", ""), place("broken", "IPv4", ""), place("dual", "IPv5", ""), place(webtest.Shop, "IPv6", ""),
			place(webtest.Shop, "IPv4", "10.99.0.0/24"), place(webtest.Shop, "IPv4", "10.0.0.0/8"), place(webtest.Shop, "IPv4", "10.16.0.7/24"), place(webtest.Shop, "IPv4", "x")} {
			if out := p.do(http.MethodGet, web.Path+"/api/map?"+q, "Authorization", "Bearer "+webtest.Token); out.Code != http.StatusNotFound {
				t.Errorf("%s: %d %s", q, out.Code, out.Body)
			}
		}
	})
}

// BenchmarkMap is one answer for 10,000 leases in 16,384 addresses, looked at and counted anew.
func BenchmarkMap(b *testing.B) {
	p := newPage(b)
	path := "map?" + place(webtest.Shop, "IPv4", "")
	for i := 0; b.Loop(); i++ {
		size := len(p.get(fmt.Sprintf("%s&i=%d", path, i)).Body.Bytes())
		b.ReportMetric(float64(size), "bytes")
	}
}
