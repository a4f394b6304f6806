//go:build e2e

package ledger

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
)

// careless replaces blocks whatever their version is: the last writer wins.
type careless struct{ *blockstore.Store }

func (c careless) Write(ctx context.Context, b *ipam.Block) (*ipam.Block, error) {
	for {
		stored, err := c.Store.Write(ctx, b)
		if !errors.Is(err, ipam.ErrConflict) {
			return stored, err
		}
		now, err := c.Get(ctx, b.Name)
		if err != nil {
			return nil, err
		}
		again := *b
		again.ResourceVersion, again.UID = now.ResourceVersion, now.UID
		b = &again
	}
}

// TestProcessesDetects plays what TestProcesses plays in one process, over a store that is sound and over one that loses
// writes: only the latter may be found faulty.
func TestProcessesDetects(t *testing.T) {
	for name, c := range map[string]struct {
		wrap   func(*blockstore.Store) ipam.Store
		faults []string // one of these; none: no fault at all
	}{
		"sound": {wrap: func(s *blockstore.Store) ipam.Store { return s }},
		// Leases get lost, or the ledgers themselves notice first that blocks go back, and close the subnet.
		"writes without a version": {wrap: func(s *blockstore.Store) ipam.Store { return careless{s} }, faults: []string{" lost (", "is closed until its leases are restored"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := start(t)
			base := job{Dir: t.TempDir(), Seed: 1, Takers: takers, Small: smallSubnet(), Big: bigSubnet()}
			s := check(playHere(t, h, base, c.wrap, 3*time.Second), h.stored(t), base.Small, base.Big)
			all := strings.Join(s.faults, "\n")
			if len(c.faults) == 0 && all != "" {
				t.Errorf("found faults:\n%s", all)
			}
			if len(c.faults) > 0 && !slices.ContainsFunc(c.faults, func(want string) bool { return strings.Contains(all, want) }) {
				t.Errorf("no fault with any of %q among %d", c.faults, len(s.faults))
			}
			t.Logf("%d takes answered, %d faults, such as %q", s.counts[taken], len(s.faults), s.faults[:min(1, len(s.faults))])
		})
	}
}

// playHere plays the processes as parts of this one.
func playHere(t *testing.T, h *harness, base job, wrap func(*blockstore.Store) ipam.Store, lasts time.Duration) []chapter {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var group errgroup.Group
	for p := range processes {
		store, err := blockstore.New(config(h.Config()))
		if err != nil {
			t.Fatal(err)
		}
		j := base
		j.Process = p
		d, err := openDiary(chapterFile(j.Dir, p, 0))
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() error { return play(ctx, j, wrap(store), store, d.say) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	var chapters []chapter
	for p := range processes {
		cs, err := readLives(base.Dir, p, 1)
		if err != nil {
			t.Fatal(err)
		}
		chapters = append(chapters, cs...)
	}
	return chapters
}

// TestCheck shows the checker one fault at a time.
func TestCheck(t *testing.T) {
	spec := smallSubnet()
	const a, b = "small/10.90.0.4", "small/10.90.0.5"
	ask := func(at int64, claim string) event {
		return event{At: at, Kind: takes, Claim: claim, Leases: []string{"small"}}
	}
	got := func(at int64, claim string, leases ...string) event {
		return event{At: at, Kind: taken, Claim: claim, Asked: claim, Leases: leases}
	}
	give := func(at int64, claim string, leases ...string) event {
		return event{At: at, Kind: frees, Claim: claim, Leases: leases}
	}
	gave := func(at int64, claim string) event { return event{At: at, Kind: freed, Claim: claim} }
	full := func(at int64, claim string) event {
		return event{At: at, Kind: refused, Claim: claim, Text: "Exhausted", Full: "small/IPv4"}
	}
	owned := func(e event) event { e.Owner = "StatefulSet/app/web-0"; return e }
	life := func(killed bool, es ...event) chapter { return chapter{Killed: killed, Events: es} }
	for name, c := range map[string]struct {
		chapters []chapter
		have     stored
		want     string // empty: no fault
	}{
		"held":           {[]chapter{life(false, ask(1, "x"), got(2, "x", a))}, stored{a: "x"}, ""},
		"one by one":     {[]chapter{life(false, ask(1, "x"), got(2, "x", a), give(3, "x", a), gave(5, "x")), life(false, ask(1, "y"), got(4, "y", a))}, stored{a: "y"}, ""},
		"two at once":    {[]chapter{life(false, ask(1, "x"), got(2, "x", a), give(5, "x", a), gave(6, "x")), life(false, ask(1, "y"), got(4, "y", a))}, stored{a: "y"}, "at once"},
		"not stored":     {[]chapter{life(false, ask(1, "x"), got(2, "x", a, b))}, stored{a: "x"}, `stored under ""`},
		"another's":      {[]chapter{life(false, ask(1, "x"), got(2, "x", a), ask(3, "y"))}, stored{a: "y"}, `stored under "y"`},
		"not freed":      {[]chapter{life(false, ask(1, "x"), got(2, "x", a), give(3, "x", a), gave(4, "x"))}, stored{a: "x"}, "given back"},
		"free cut short": {[]chapter{life(true, ask(1, "x"), got(2, "x", a), give(3, "x", a))}, stored{a: "x"}, ""},
		"nobody's":       {nil, stored{a: "x"}, "no diary explains"},
		"in flight":      {[]chapter{life(true, ask(1, "x"))}, stored{a: "x"}, ""},
		"unanswered":     {[]chapter{life(false, ask(1, "x"))}, stored{a: "x"}, "never answered"},
		"drawn in flight": {[]chapter{life(true, event{At: 1, Kind: drew, Claim: "x"}, ask(2, "x"), event{At: 3, Kind: drew, Claim: "z"})},
			stored{a: "z"}, ""},
		"drawn long before": {[]chapter{life(true, event{At: 1, Kind: drew, Claim: "z"}, ask(2, "x"))}, stored{a: "z"}, "no diary explains"},
		"refused and kept":  {[]chapter{life(false, ask(1, "x"), event{At: 2, Kind: refused, Claim: "x", Text: "AddressHeld"})}, stored{a: "x"}, "refused"},
		"failed":            {[]chapter{life(false, ask(1, "x"), event{At: 2, Kind: failed, Claim: "x", Text: "timeout"})}, nil, "timeout"},
		"lost":              {[]chapter{life(false, event{At: 2, Kind: lost, Claim: "x"})}, nil, "lost"},
		"not exhausted":     {[]chapter{life(false, ask(1, "x"), full(2, "x"))}, nil, "exhausted"},
		"owner's":           {[]chapter{life(false, owned(ask(1, "x")), owned(got(2, "x", a))), life(false, owned(ask(3, "y")), owned(event{At: 4, Kind: taken, Claim: "x", Asked: "y", Leases: []string{a}}))}, stored{a: "x"}, ""},
		"owner's twice":     {[]chapter{life(false, owned(ask(1, "x")), owned(got(2, "x", a))), life(false, owned(ask(3, "y")), owned(got(4, "y", b)))}, stored{a: "x", b: "y"}, "2 claims"},
	} {
		t.Run(name, func(t *testing.T) {
			all := strings.Join(check(c.chapters, c.have, spec).faults, "\n")
			if (c.want == "") != (all == "") || !strings.Contains(all, c.want) {
				t.Errorf("got faults %q, want %q", all, c.want)
			}
		})
	}
}

// TestTornLine sees the last line of a killed process ignored, and no other.
func TestTornLine(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		text string
		want int
		bad  bool
	}{
		"whole": {"{\"k\":\"take\"}\n{\"k\":\"taken\"}\n", 2, false},
		"torn":  {"{\"k\":\"take\"}\n{\"k\":\"ta", 1, false},
		"empty": {"", 0, false},
		"bad":   {"{\"k\":\"ta\n{\"k\":\"take\"}\n", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(dir, "0-0.log"), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := readChapter(dir, 0, 0)
			if (err != nil) != c.bad || err == nil && len(got.Events) != c.want {
				t.Errorf("got %d events (%v), want %d", len(got.Events), err, c.want)
			}
		})
	}
}
