//go:build e2e

package ship

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-net/berth/pkg/network"
)

// monitor is what is read of the shipped ServiceMonitor. A field that is not here would be a setting that the test does
// without: it is refused.
type monitor struct {
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	APIVersion string `json:"apiVersion"`
	Kind       string
	Spec       struct {
		JobLabel string `json:"jobLabel"`
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		}
		Endpoints []endpoint
	}
}

type endpoint struct {
	Port, Path, Interval, Scheme string
	ScrapeTimeout                string `json:"scrapeTimeout"`
	Authorization                *struct {
		Type        string
		Credentials map[string]any
	}
	BearerTokenSecret map[string]any `json:"bearerTokenSecret"`
	BearerTokenFile   string         `json:"bearerTokenFile"`
	TLSConfig         map[string]any `json:"tlsConfig"`
}

// quietMetrics are documented ones without a sample while nothing goes wrong, or nothing of theirs happens.
var quietMetrics = []string{"berth_pods_not_wired_total", "berth_sweep_repairs_total", "berth_bind_hook_requests_total"}

// TestPrometheus scrapes the programs by the shipped ServiceMonitor: all are up, every documented metric has samples, and
// none of the shipped alerts is active on a healthy cluster.
func TestPrometheus(t *testing.T) {
	h := start(t)
	ctx := t.Context()
	parts := documents(t, filepath.Join(h.Repo, "manifests", "components", "monitoring", "services.yaml"))
	var m monitor
	for _, text := range parts {
		if strings.Contains(text, "kind: ServiceMonitor") {
			if err := yaml.UnmarshalStrict([]byte(text), &m); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var s corev1.Service
		if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		h.make(ctx, t, &s)
		t.Cleanup(func() { h.remove(context.WithoutCancel(ctx), t, &s) })
	}
	h.exercise(ctx, t)
	p := h.startPrometheus(ctx, t, &m)
	p.await(ctx, t, "webhooks and worker are up", `sum by (job) (up)`, map[string]float64{webhook: 2, worker: 1}, "job")
	p.await(ctx, t, "nothing is down", `count(up == 0)`, map[string]float64{}, "")
	p.sampled(ctx, t, documentedMetrics(t, h.Repo))
	p.healthy(ctx, t, h.Repo)
	h.remove(ctx, t, pod("demo", "seen"), pod("late", "seen"))
	h.empty(ctx, t)
}

// exercise does what metrics count: an admission, a refusal, a late address, a checked change, and an end of a pod.
func (h *harness) exercise(ctx context.Context, t *testing.T) {
	t.Helper()
	h.make(ctx, t, pod("demo", "seen"), pod("late", "seen"), pod("demo", "ends"))
	refused := pod("demo", "refused")
	refused.Annotations = map[string]string{"ovn.kubernetes.io/ip_address": "garbage"}
	if err := h.api.Create(ctx, refused); err == nil {
		t.Error("an address that is none was let through")
	}
	var ns corev1.Namespace
	if err := h.api.Get(ctx, client.ObjectKey{Name: "demo"}, &ns); err != nil {
		t.Fatal(err)
	}
	ns.Labels[network.LabelInject] = "nonsense"
	if err := h.api.Update(ctx, &ns, client.DryRunAll); err != nil {
		t.Logf("a namespace that is labelled with nonsense: %v", err)
	}
	for _, p := range []*corev1.Pod{pod("demo", "seen"), pod("late", "seen"), pod("demo", "ends")} {
		h.ready(ctx, t, p.Namespace, p.Name, 1)
	}
	h.remove(ctx, t, pod("demo", "ends"))
	h.ready(ctx, t, "demo", "ends", 0)
}

// documents are the parts of a YAML file.
func documents(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n---\n")
}

// documentedMetrics are the names in the tables of docs/metrics.md.
func documentedMetrics(t *testing.T, repo string) (out []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repo, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(berth_[a-z_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		out = append(out, m[1])
	}
	if len(out) < 20 {
		t.Fatalf("docs/metrics.md names %d metrics", len(out))
	}
	return out
}

// prometheus is one that runs.
type prometheus struct{ url string }

// startPrometheus starts one that scrapes what the ServiceMonitor says, as the operator would have it, but every second.
func (h *harness) startPrometheus(ctx context.Context, t *testing.T, m *monitor) *prometheus {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("no prometheus: hack/tools.sh prometheus installs it")
	}
	dir := t.TempDir()
	rules := map[string]any{}
	text, err := os.ReadFile(filepath.Join(h.Repo, "manifests", "components", "monitoring", "rules.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, v any) string {
		b, err := yaml.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	config := map[string]any{
		"global":         map[string]any{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{write("rules.yaml", rules["spec"])},
		"scrape_configs": []any{h.scrapes(ctx, t, m)},
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	process := h.run(ctx, t, "prometheus", program, "--config.file="+write("prometheus.yaml", config), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address)
	p := &prometheus{"http://" + address}
	until(ctx, t, "Prometheus answers", func(ctx context.Context) error {
		if !process.Alive() {
			t.Fatal("Prometheus has ended")
		}
		return p.ask(ctx, "/api/v1/status/buildinfo", &struct{}{})
	})
	return p
}

// scrapes finds what the ServiceMonitor selects, as the operator has Prometheus do: Debian's knows no Kubernetes.
func (h *harness) scrapes(ctx context.Context, t *testing.T, m *monitor) map[string]any {
	t.Helper()
	if len(m.Spec.Endpoints) != 1 {
		t.Fatalf("the ServiceMonitor has %d endpoints", len(m.Spec.Endpoints))
	}
	e := m.Spec.Endpoints[0]
	if e.Authorization != nil || e.BearerTokenFile != "" || e.BearerTokenSecret != nil || e.TLSConfig != nil {
		t.Fatalf("the ServiceMonitor wants credentials: translate %+v here", e)
	}
	var targets []any
	until(ctx, t, "the ServiceMonitor selects two webhooks and a worker", func(ctx context.Context) error {
		targets = nil
		var services corev1.ServiceList
		if err := h.api.List(ctx, &services, client.InNamespace(m.Metadata.Namespace), client.MatchingLabels(m.Spec.Selector.MatchLabels)); err != nil {
			return err
		}
		for _, s := range services.Items {
			var behind discovery.EndpointSliceList
			if err := h.api.List(ctx, &behind, client.InNamespace(s.Namespace), client.MatchingLabels{discovery.LabelServiceName: s.Name}); err != nil {
				return err
			}
			for _, slice := range behind.Items {
				targets = append(targets, targetsOf(slice, e.Port, s.Labels[m.Spec.JobLabel])...)
			}
		}
		if len(targets) != 3 {
			return fmt.Errorf("it selects %v", targets)
		}
		return nil
	})
	return map[string]any{"job_name": m.Metadata.Name, "metrics_path": e.Path, "scheme": cmp.Or(e.Scheme, "http"), "static_configs": targets}
}

// targetsOf are the addresses behind the port of a name.
func targetsOf(s discovery.EndpointSlice, port, job string) (out []any) {
	for _, p := range s.Ports {
		if p.Name == nil || *p.Name != port || p.Port == nil {
			continue
		}
		for _, e := range s.Endpoints {
			labels := map[string]string{"job": job, "namespace": s.Namespace}
			if e.TargetRef != nil {
				labels["pod"] = e.TargetRef.Name
			}
			out = append(out, map[string]any{"targets": []string{net.JoinHostPort(e.Addresses[0], fmt.Sprint(*p.Port))}, "labels": labels})
		}
	}
	return out
}

// ask asks Prometheus' API.
func (p *prometheus) ask(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// await waits until a query gives these values, by one label.
func (p *prometheus) await(ctx context.Context, t *testing.T, what, query string, want map[string]float64, by string) {
	t.Helper()
	until(ctx, t, what, func(ctx context.Context) error {
		var got struct {
			Data struct {
				Result []struct {
					Metric map[string]string
					Value  [2]any
				}
			}
		}
		if err := p.ask(ctx, "/api/v1/query?query="+url.QueryEscape(query), &got); err != nil {
			return err
		}
		have := map[string]string{}
		for _, r := range got.Data.Result {
			have[r.Metric[by]] = fmt.Sprint(r.Value[1])
		}
		for k, v := range want {
			if have[k] != fmt.Sprint(v) {
				return fmt.Errorf("%s is %v, want %v", query, have, want)
			}
		}
		if len(have) != len(want) {
			return fmt.Errorf("%s is %v, want %v", query, have, want)
		}
		return nil
	})
}

// sampled waits until all these metrics have samples, but for the quiet ones.
func (p *prometheus) sampled(ctx context.Context, t *testing.T, names []string) {
	t.Helper()
	until(ctx, t, "all documented metrics have samples", func(ctx context.Context) error {
		var got struct{ Data []string }
		if err := p.ask(ctx, "/api/v1/label/__name__/values", &got); err != nil {
			return err
		}
		missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			return slices.Contains(quietMetrics, name) || slices.Contains(got.Data, name) || slices.Contains(got.Data, name+"_count")
		})
		if len(missing) > 0 {
			return fmt.Errorf("these have none: %v", missing)
		}
		return nil
	})
}

// healthy waits until all shipped rules have been evaluated, and none of their alerts is active, not even pending.
func (p *prometheus) healthy(ctx context.Context, t *testing.T, repo string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repo, "manifests", "components", "monitoring", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	shipped := strings.Count(string(text), "- alert: ")
	until(ctx, t, "all alerts are evaluated and none is active", func(ctx context.Context) error {
		var got struct {
			Data struct {
				Groups []struct {
					Rules []struct{ Name, State, Health, LastError string }
				}
			}
		}
		if err := p.ask(ctx, "/api/v1/rules?type=alert", &got); err != nil {
			return err
		}
		n := 0
		var active []string
		for _, g := range got.Data.Groups {
			for _, r := range g.Rules {
				n++
				if r.Health != "ok" || r.State != "inactive" {
					active = append(active, fmt.Sprintf("%s is %s (%s%s)", r.Name, r.State, r.Health, r.LastError))
				}
			}
		}
		if n != shipped || shipped == 0 || len(active) > 0 {
			return fmt.Errorf("%d of %d rules are loaded, active are %v", n, shipped, active)
		}
		return nil
	})
}
