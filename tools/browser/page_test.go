package browser

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const (
	repo  = "../.."
	token = "a-token-for-tests"
)

var screenshots = flag.String("screenshots", "", "directory to write pictures of the page to")

// served is the page's server, and a way to have it lease addresses.
type served struct {
	t   *testing.T
	url string
	in  io.Writer
	out *bufio.Reader
}

// serve builds and starts it.
func serve(t *testing.T) *served {
	t.Helper()
	program := filepath.Join(t.TempDir(), "serve")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./internal/web/webtest/serve")
	build.Dir = repo
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close() // it ends with its input
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	s := &served{t: t, in: in, out: bufio.NewReader(out)}
	s.url = s.line()
	return s
}

func (s *served) line() string {
	s.t.Helper()
	line, err := s.out.ReadString('\n')
	must(s.t, err)
	return strings.TrimSpace(line)
}

// take leases an address.
func (s *served) take(subnet, namespace, pod string) string {
	s.t.Helper()
	_, err := fmt.Fprintln(s.in, subnet, namespace, pod)
	must(s.t, err)
	return s.line()
}

// get asks the server as a program does.
func (s *served) get(path string) []byte {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+path, nil)
	must(s.t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	must(s.t, err)
	defer func() { _ = answer.Body.Close() }()
	raw, err := io.ReadAll(answer.Body)
	must(s.t, err)
	return raw
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// browser is one tab.
type browser struct {
	t   *testing.T
	ctx context.Context
}

// start starts the browser. Everything that is waited for has a greatest time.
func start(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium: hack/tools.sh browser installs it")
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.WindowSize(1280, 1000), chromedp.WSURLReadTimeout(2*time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	must(t, chromedp.Run(ctx)) // starts it
	ctx, cancel = context.WithTimeout(ctx, 4*time.Minute)
	t.Cleanup(cancel)
	return &browser{t, ctx}
}

func (b *browser) run(actions ...chromedp.Action) {
	b.t.Helper()
	must(b.t, chromedp.Run(b.ctx, actions...))
}

// eval gives the value of an expression.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	var out T
	b.run(chromedp.Evaluate(expression, &out))
	return out
}

// until asks until an expression is true. While the tab goes elsewhere there is nobody to ask.
func (b *browser) until(expression string) {
	b.t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	enough := time.After(time.Minute)
	for {
		var is bool
		err := chromedp.Run(b.ctx, chromedp.Evaluate("Boolean("+expression+")", &is))
		if err == nil && is {
			return
		}
		select {
		case <-ticker.C:
		case <-enough:
			b.t.Fatalf("%s: %v\n%s", expression, err, eval[string](b, "document.body.innerText.slice(0, 2000)"))
		case <-b.ctx.Done():
			b.t.Fatalf("%s: %v", expression, b.ctx.Err())
		}
	}
}

// signIn opens the page and gives the token.
func (b *browser) signIn(url string) {
	b.t.Helper()
	b.run(chromedp.Navigate(url), chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", token+kb.Enter))
	b.until(drawn)
}

// drawn is true when the map is.
const drawn = `performance.getEntriesByName("berth-map").length > 0 && !document.getElementById("main").hidden`

// The whole of what a person does, in one tab: sign in, look, search, walk by keys, and see a new lease.
func TestPage(t *testing.T) {
	s := serve(t)
	b := start(t)
	var complaints []string
	chromedp.ListenTarget(b.ctx, listener(&complaints))
	b.signIn(s.url)
	for _, part := range []struct {
		name string
		do   func(*testing.T, *served, *browser)
	}{
		{"the token stays in the tab", tokenStays}, {"figures", figures}, {"keys", keys}, {"search", search}, {"a new lease", newLease},
		{"parts", parts}, {"table", table}, {"roles", roles}, {"themes", themes}, {"a wrong token", wrongToken},
	} {
		t.Run(part.name, func(t *testing.T) { part.do(t, &served{t, s.url, s.in, s.out}, &browser{t, b.ctx}) })
	}
	if len(complaints) > 0 {
		t.Errorf("the browser complains: %s", strings.Join(complaints, "\n"))
	}
}

func tokenStays(t *testing.T, _ *served, b *browser) {
	got := eval[string](b, `JSON.stringify([Object.keys(localStorage), document.cookie, document.getElementById("token").value, sessionStorage.getItem("berth-token")])`)
	if got != `[[],"","","`+token+`"]` {
		t.Error(got)
	}
}

func wrongToken(_ *testing.T, _ *served, b *browser) {
	b.run(chromedp.Click("#leave"), chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", "wrong"+kb.Enter))
	b.until(`document.getElementById("login-why").textContent.includes("does not know this token") && document.getElementById("main").hidden`)
}

// figures: each number of the table is what the server's list says, which is kubectl-berth's.
func figures(t *testing.T, s *served, b *browser) {
	var list struct{ Items []map[string]any }
	decoder := json.NewDecoder(strings.NewReader(string(s.get("api/subnets"))))
	decoder.UseNumber()
	must(t, decoder.Decode(&list))
	counted := 0
	for _, x := range list.Items {
		if x["size"] == nil {
			continue
		}
		for _, f := range []string{"size", "leased", "bound", "pending", "reserved", "excluded"} { // what rests changes by time
			want := fmt.Sprint(x[f])
			key := fmt.Sprintf("%v %v", x["name"], x["family"])
			if got := eval[string](b, fmt.Sprintf(`document.querySelector("[data-row='%s'] [data-figure=%s]").textContent`, key, f)); got != want {
				t.Errorf("%s of %s is shown as %q, want %s", f, key, got, want)
			}
			counted++
		}
	}
	if counted < 30 {
		t.Errorf("%d figures", counted)
	}
}

const (
	label   = `document.activeElement.getAttribute("aria-label")`
	subnets = `#subnets tbody button`
)

// choose shows a subnet.
func (b *browser) choose(name string) {
	b.t.Helper()
	b.run(chromedp.Evaluate(fmt.Sprintf(`[...document.querySelectorAll(%q)].find((x) => x.dataset.key === %q).click()`, subnets, name), nil))
	b.until(fmt.Sprintf(`document.querySelector("tr[aria-current]")?.dataset.row === %q && document.getElementById("map-title").textContent === "Map of " + %q`,
		name, strings.Replace(name, " ", ", ", 1)))
}

// keys: the map is one stop of the Tab key, and arrows walk in it.
func keys(t *testing.T, _ *served, b *browser) {
	b.choose("shop IPv4")
	if n := eval[int](b, `document.querySelectorAll("#grid [tabindex='0']").length`); n != 1 {
		t.Fatalf("%d cells are reached by Tab", n)
	}
	b.run(chromedp.Focus("#as-table"), chromedp.KeyEvent(kb.Tab))
	for _, step := range []struct{ key, want string }{
		{"", "10.16.0.0: unusable"}, {kb.ArrowRight, "10.16.0.1: gateway"}, {kb.ArrowDown, "10.16.0.129: "}, {kb.ArrowLeft, "10.16.0.128: "},
		{kb.End, "10.16.0.255: "}, {kb.Home, "10.16.0.128: "}, {kb.ArrowUp, "10.16.0.0: "}, {kb.PageDown, "10.16.5.0: "}, {kb.PageUp, "10.16.0.0: "},
	} {
		if step.key != "" {
			b.run(chromedp.KeyEvent(step.key))
		}
		if got := eval[string](b, label); !strings.HasPrefix(got, step.want) {
			t.Errorf("after %q the focus is on %q, want %q", step.key, got, step.want)
		}
	}
	if got := eval[string](b, `getComputedStyle(document.activeElement).outlineStyle + " " + getComputedStyle(document.activeElement).outlineWidth`); got != "solid 3px" {
		t.Errorf("the focus is seen as %q", got)
	}
	b.run(chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.Enter))
	b.until(`document.getElementById("detail").textContent.includes("gateway of subnet shop")`)
	b.run(chromedp.KeyEvent("/"))
	if got := eval[string](b, `document.activeElement.id`); got != "query" {
		t.Errorf("/ takes the focus to %q", got)
	}
}

// ask types a question in the place of the one before.
func (b *browser) ask(keys string) {
	b.t.Helper()
	b.run(chromedp.Evaluate(`(() => { const q = document.getElementById("query"); q.value = ""; q.focus(); })()`, nil), chromedp.KeyEvent(keys))
}

// search: an address, and a pod that leads to its place on the map.
func search(_ *testing.T, _ *served, b *browser) {
	b.ask("10.16.0.1")
	b.until(`document.getElementById("found-list").textContent.includes("10.16.0.1 of shop: gateway")`)
	b.ask("waiting-1")
	b.until(`document.getElementById("found-list").textContent.includes("tiny has no free IPv4 address")`)
	b.ask("vip-web-" + kb.Enter)
	b.until(`document.querySelectorAll("#found-list button").length > 1`)
	address := eval[string](b, `document.querySelector("#found-list button").textContent.match(/: ([0-9a-f.:]+) of/)[1]`)
	b.run(chromedp.Click("#found-list button"))
	b.until(fmt.Sprintf(`(%s ?? "").startsWith(%q)`, label, address))
	b.ask("x" + kb.Escape)
	b.until(`document.getElementById("found").hidden`)
}

// newLease: two seconds after it was taken it is on the map and in the figures; on a machine that is busy with something
// else, later by a few times what it takes there to show another subnet.
func newLease(t *testing.T, s *served, b *browser) {
	var base []float64
	for _, name := range []string{"tiny IPv4", "shop IPv4", "dual IPv4"} {
		began := time.Now()
		b.choose(name)
		base = append(base, time.Since(began).Seconds())
	}
	limit := 2*time.Second + time.Duration(5*median(base)*float64(time.Second))
	before := eval[string](b, `document.querySelector("[data-row='dual IPv4'] [data-figure=bound]").textContent`)
	address := s.take("dual", "shop", "just-now")
	began := time.Now()
	b.until(fmt.Sprintf(`document.querySelector("[data-row='dual IPv4'] [data-figure=bound]").textContent !== %q`, before))
	took := time.Since(began)
	b.ask(address)
	b.until(`document.querySelector("#found-list button")?.textContent.includes("shop/just-now")`)
	b.run(chromedp.Click("#found-list button"))
	b.until(fmt.Sprintf(`(%s ?? "") === %q`, label, address+": leased"))
	t.Logf("a new lease was shown after %s; to show another subnet takes %.0f ms", took.Round(time.Millisecond), 1000*median(base))
	if took > limit {
		t.Errorf("a new lease was shown after %s, later than %s", took, limit)
	}
}

// parts: a large network is shown by its parts, which open.
func parts(t *testing.T, _ *served, b *browser) {
	b.choose("campus IPv4")
	b.run(chromedp.Focus("#grid [role=gridcell]"), chromedp.KeyEvent(kb.ArrowRight))
	if got := eval[string](b, label); !strings.HasPrefix(got, "10.64.0.64/26: ") || !strings.Contains(got, "leased to pods") {
		t.Errorf("the focus is on %q", got)
	}
	b.run(chromedp.KeyEvent(kb.Enter))
	b.until(`document.getElementById("crumbs").textContent.includes("10.64.0.64/26")`)
	b.run(chromedp.Focus("#grid [role=gridcell]"), chromedp.KeyEvent(kb.Backspace))
	b.until(`!document.getElementById("crumbs").textContent.includes("10.64.0.64/26")`)
	b.choose("dual IPv6")
	if n := eval[int](b, `Number(document.getElementById("grid").getAttribute("aria-rowcount"))`); n != 1 {
		t.Errorf("an IPv6 subnet of three blocks has %d rows", n)
	}
}

// table: the same as a table, by pages.
func table(t *testing.T, _ *served, b *browser) {
	b.choose("shop IPv4")
	b.run(chromedp.Click("#as-table"))
	b.until(`document.querySelectorAll("#table tbody tr").length === 200 && document.getElementById("grid").hidden`)
	if got := eval[string](b, `document.querySelector("#table tbody tr:nth-child(2)").textContent`); !strings.HasPrefix(got, "10.16.0.11gateway") {
		t.Errorf("the second row is %q", got)
	}
	b.run(chromedp.Click("#after"))
	b.until(`document.getElementById("where").textContent.startsWith("201 to 400 of ")`)
	b.run(chromedp.Click("#as-table"))
	b.until(`!document.getElementById("grid").hidden`)
}

// roles: everything that has a meaning has a name.
func roles(t *testing.T, _ *served, b *browser) {
	unnamed := eval[[]string](b, `[...document.querySelectorAll("button, input, [role=grid], [role=gridcell], [role=region], meter, nav, section")].filter((e) => e.checkVisibility() &&
		!(e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)`)
	if len(unnamed) > 0 {
		t.Errorf("without a name: %q", unnamed)
	}
	for role, want := range map[string]string{"lang": "en", "main": "1", "h1": "1", "alert": "1"} {
		got := eval[string](b, map[string]string{"lang": `document.documentElement.lang`, "main": `String(document.querySelectorAll("main").length)`,
			"h1": `String(document.querySelectorAll("h1").length)`, "alert": `String(document.querySelectorAll("[role=alert]").length)`}[role])
		if got != want {
			t.Errorf("%s is %q, want %q", role, got, want)
		}
	}
}

// contrast is the ratio of the luminance of two CSS colours.
const contrast = `((a, b) => {
	const light = (c) => c.match(/[\d.]+/g).slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((n, v, i) => n + v * [0.2126, 0.7152, 0.0722][i], 0);
	const [x, y] = [light(a), light(b)].sort((m, n) => n - m);
	return (x + 0.05) / (y + 0.05);
})`

// themes: the system's, and the other one by the button; both can be read.
func themes(t *testing.T, _ *served, b *browser) {
	back := `getComputedStyle(document.body).backgroundColor`
	scheme := func(value string) chromedp.Action {
		return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}})
	}
	colours := map[string]string{}
	for _, value := range []string{"light", "dark"} {
		b.run(scheme(value))
		colours[value] = eval[string](b, back)
		for _, selector := range []string{"body", ".quiet", "button"} {
			got := eval[float64](b, fmt.Sprintf(`%s(getComputedStyle(document.querySelector(%q)).color, %s)`, contrast, selector, back))
			if got < 4.5 {
				t.Errorf("%s: %s has a contrast of %.1f", value, selector, got)
			}
		}
		if *screenshots != "" {
			picture(t, b, value)
		}
	}
	if colours["light"] == colours["dark"] {
		t.Errorf("both themes have the background %s", colours["dark"])
	}
	b.run(scheme("light"), chromedp.Click("#theme")) // dark
	if got := eval[string](b, back); got != colours["dark"] {
		t.Errorf("by the button the background is %s", got)
	}
	b.run(chromedp.Reload())
	b.until(drawn)
	if got := eval[string](b, back); got != colours["dark"] {
		t.Errorf("after a reload the background is %s", got)
	}
	b.run(chromedp.Click("#theme"), scheme("dark")) // light
	if got := eval[string](b, back); got != colours["light"] {
		t.Errorf("by the button the background is %s", got)
	}
	b.run(chromedp.Click("#theme")) // the system's
	if got := eval[string](b, back); got != colours["dark"] {
		t.Errorf("of the system the background is %s", got)
	}
}

func picture(t *testing.T, b *browser, theme string) {
	t.Helper()
	b.ask("x" + kb.Escape)
	b.until(`document.getElementById("found").hidden`)
	b.choose("shop IPv4")
	b.run(chromedp.Evaluate(`document.activeElement.blur(); scrollTo(0, 0)`, nil), chromedp.ActionFunc(func(ctx context.Context) error {
		raw, err := page.CaptureScreenshot().WithFormat(page.CaptureScreenshotFormatPng).WithOptimizeForSpeed(false).Do(ctx)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(*screenshots, "page-"+theme+".png"), raw, 0o644)
	}))
}

// Somebody who is signed in sees the map of 10,000 leases soon: within a second where nothing else runs, and on a machine
// that is busy later by a few times what an almost empty page takes there.
func TestFirstPaint(t *testing.T) {
	s := serve(t)
	b := start(t)
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, body := "text/html", `<!doctype html><title>Empty</title><p>Nothing.<script type="module" src="empty.js"></script>`
		switch r.URL.Path {
		case "/empty.js":
			kind, body = "text/javascript", `await (await fetch("empty.json")).json(); requestAnimationFrame(() => performance.mark("empty"));`
		case "/empty.json":
			kind, body = "application/json", "{}"
		}
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
	}))
	defer empty.Close()
	b.signIn(s.url)
	paint := `(performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0)`
	mark := func(name string) string {
		return fmt.Sprintf(`(performance.getEntriesByName(%q)[0]?.startTime ?? 0)`, name)
	}
	var base, basePaint, shell, mapped []float64
	for range 5 {
		b.run(chromedp.Navigate(empty.URL))
		b.until(paint + " > 0 && " + mark("empty") + " > 0")
		base, basePaint = append(base, eval[float64](b, mark("empty"))), append(basePaint, eval[float64](b, paint))
		b.run(chromedp.Navigate(s.url)) // the tab still has the token
		b.until(drawn)
		b.until(paint + " > 0")
		shell = append(shell, eval[float64](b, paint))
		mapped = append(mapped, eval[float64](b, mark("berth-map")))
	}
	t.Logf("middle of 5: first paint of an empty page %.0f ms, of this page %.0f ms; an empty page has an answer after %.0f ms, this page its map of 10,000 leases after %.0f ms",
		median(basePaint), median(shell), median(base), median(mapped))
	if limit := 1000 + 3*median(basePaint); median(shell) > limit {
		t.Errorf("the first paint takes %.0f ms, over %.0f ms", median(shell), limit)
	}
	if limit := 1000 + 5*median(base); median(mapped) > limit {
		t.Errorf("the map takes %.0f ms, over %.0f ms", median(mapped), limit)
	}
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.SortFunc(v, cmp.Compare[float64])
	return v[len(v)/2]
}
