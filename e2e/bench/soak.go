package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-net/berth/e2e/proc"
)

// Churn is how pods come and go.
type Churn struct {
	// For is how long, Rate how many pods in a second, Life how long each one stays.
	For  time.Duration
	Rate float64
	Life time.Duration
	// WarmUp is left out of the trends: until then the cluster fills.
	WarmUp time.Duration
	// Every is the time between samples.
	Every time.Duration
	// Part is by which part of where it starts a series may grow.
	Part float64
}

// Check tells what can't be.
func (c Churn) Check() error {
	switch {
	case c.Rate <= 0 || c.Every <= 0 || c.Life <= 0 || c.Part < 0:
		return errors.New("the rate, the time between samples and a pod's life must be above zero, and the part not below")
	case c.For < c.WarmUp+2*c.Every:
		return fmt.Errorf("%s is too short for a trend: take more than %s to warm up and twice %s for samples", c.For, c.WarmUp, c.Every)
	}
	return nil
}

// Soaked is what churn has shown.
type Soaked struct {
	Pods   int     `json:"pods"`
	Trends []Trend `json:"trends"`
	// Connect is from a pod's node to the mark routed.
	Connect Summary `json:"connect"`
	// Left is what is there after all pods are gone and was not there before.
	Left []string `json:"left,omitempty"`
}

// Flat tells whether nothing grows, and nothing is left.
func (s Soaked) Flat() bool {
	return len(s.Left) == 0 && !slices.ContainsFunc(s.Trends, func(t Trend) bool { return t.Grows })
}

// level is one thing that is sampled, and what it may grow by without a word.
type level struct {
	name  string
	value float64
	least float64
}

// Soak lets pods come and go, and looks whether anything grows.
func (w *World) Soak(ctx context.Context, c Churn) (s Soaked, err error) {
	if err := c.Check(); err != nil {
		return s, err
	}
	before, err := w.rows(ctx)
	if err != nil {
		return s, err
	}
	crew, err := newCrew(ctx, w.client, roomyName, w.nodes)
	if err != nil {
		return s, err
	}
	defer crew.Close()
	begun := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		crew.churn(ctx, c, begun)
	}()
	series, err := w.sample(ctx, c, begun)
	<-ended
	if err != nil {
		return s, err
	}
	w.say("the last pods end")
	if err := crew.Await(ctx, "all pods are gone", func(n Counts) bool { return n.Gone == int(crew.made.Load()) }); err != nil {
		return s, err
	}
	s.Pods, s.Connect = int(crew.made.Load()), Summarize(connects(crew.Lives()))
	for _, one := range series {
		t, err := one.Judge(c.Part)
		if err != nil {
			return s, err
		}
		s.Trends = append(s.Trends, t)
	}
	s.Left, err = w.left(ctx, before)
	return s, err
}

// churn creates pods at a rate, each of which is deleted after its life.
func (c *Crew) churn(ctx context.Context, k Churn, begun time.Time) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / k.Rate))
	defer tick.Stop()
	var lives sync.WaitGroup
	defer lives.Wait()
	for n := 0; time.Since(begun) < k.For; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		lives.Go(func() {
			if err := c.live(ctx, pod(fmt.Sprintf("churn-%d", n), nil), k.Life); err != nil && ctx.Err() == nil {
				c.Fail(err)
			}
		})
	}
}

// live is one pod's life.
func (c *Crew) live(ctx context.Context, p *corev1.Pod, life time.Duration) error {
	created, err := c.create(ctx, 1, []*corev1.Pod{p})
	if err != nil {
		return err
	}
	if created.Refused > 0 {
		return fmt.Errorf("pod %s was refused: %s", p.Name, created.Reason)
	}
	if err := pause(ctx, life); err != nil {
		return err
	}
	return c.remove(ctx, 1, []string{p.Name})
}

// sample samples until the churn ends.
func (w *World) sample(ctx context.Context, c Churn, begun time.Time) (series []*Series, err error) {
	if err := pause(ctx, c.WarmUp); err != nil {
		return nil, err
	}
	byName := map[string]*Series{}
	for time.Since(begun) < c.For {
		levels, err := w.levels(ctx)
		if err != nil {
			return nil, err
		}
		at := time.Now()
		for _, l := range levels {
			if byName[l.name] == nil {
				byName[l.name] = &Series{Name: l.name, Least: l.least}
				series = append(series, byName[l.name])
			}
			byName[l.name].add(at, l.value)
		}
		w.say("%s", brief(levels))
		if err := pause(ctx, c.Every); err != nil {
			return nil, err
		}
	}
	return series, nil
}

func brief(levels []level) string {
	texts := make([]string, len(levels))
	for n, l := range levels {
		texts[n] = fmt.Sprintf("%s %.1f", l.name, l.value)
	}
	return strings.Join(texts, ", ")
}

const mib = 1 << 20

// levels reads all that may grow. Of the heap it is the size at which the next collection is due: it follows what lives, and
// not what is garbage.
func (w *World) levels(ctx context.Context) (out []level, err error) {
	for _, p := range []struct {
		name, deployment string
		port             int
	}{{"webhook", webhookName, webhookMetrics}, {"worker", workerName, workerMetrics}} {
		ss, err := w.scrape(ctx, p.deployment, p.port)
		if err != nil {
			return nil, err
		}
		out = append(out, level{p.name + " heap, MiB", ss.Sum("go_memstats_next_gc_bytes", nil) / mib, 6},
			level{p.name + " goroutines", ss.Sum("go_goroutines", nil), 60},
			level{p.name + " open files", ss.Sum("process_open_fds", nil), 20})
	}
	rows, err := w.rows(ctx)
	return append(out, rows...), err
}

// rows counts objects and northbound rows. Some pods more or less are under way at any moment.
func (w *World) rows(ctx context.Context) (out []level, err error) {
	for _, r := range []schema.GroupVersionResource{{Version: "v1", Resource: "pods"}, blocks(), {Group: "kubeovn.io", Version: "v1", Resource: "ips"},
		{Version: "v1", Resource: "events"}} {
		l, err := w.objects.Resource(r).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("count %s: %w", r.Resource, err)
		}
		out = append(out, level{r.Resource, float64(len(l.Items)), 60})
	}
	leases, err := w.leases(ctx, "")
	if err != nil {
		return nil, err
	}
	out = append(out, level{"leases", float64(leases), 60})
	for _, table := range []string{"Logical_Switch_Port", "Logical_Router_Static_Route", "Logical_Router_Policy", "Port_Group", "Address_Set", "ACL", "DHCP_Options", "NAT"} {
		text, err := proc.Run(ctx, "", "ovn-nbctl", "--db="+w.NBSocket(), "--timeout=10", "--bare", "--columns=_uuid", "list", table)
		if err != nil {
			return nil, err
		}
		out = append(out, level{table, float64(len(strings.Fields(text))), 60})
	}
	return out, nil
}

// left tells what is there and was not there before. Blocks are kept while their addresses rest, and events for an hour.
func (w *World) left(ctx context.Context, before []level) ([]string, error) {
	after, err := w.rows(ctx)
	return surplus(before, after, "addressblocks", "events"), err
}

// surplus names what there is more of than before, but for some things.
func surplus(before, after []level, but ...string) (out []string) {
	was := map[string]float64{}
	for _, l := range before {
		was[l.name] = l.value
	}
	for _, l := range after {
		if l.value > was[l.name] && !slices.Contains(but, l.name) {
			out = append(out, fmt.Sprintf("%s: %.0f, and %.0f before", l.name, l.value, was[l.name]))
		}
	}
	return out
}
