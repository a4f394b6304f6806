//go:build faultpoint

package fault

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]struct {
		point Point
		left  int
		bad   bool
	}{
		"":              {},
		"bind/bound":    {point: Bound, left: 1},
		"bind/bound:3":  {point: Bound, left: 3},
		"bind/nowhere":  {bad: true},
		"bind/bound:0":  {bad: true},
		"bind/bound:":   {bad: true},
		"bind/bound:no": {bad: true},
	} {
		o, err := parse(text)
		if want.bad != (err != nil) || err == nil && (o.point != want.point || o.left != want.left) {
			t.Errorf("%q: %+v, %v", text, o, err)
		}
	}
}

func TestDue(t *testing.T) {
	o := &order{point: Bound, left: 2}
	var got []bool
	for _, p := range []Point{Bound, Wired, Bound, Bound} {
		got = append(got, o.due(p))
	}
	if got[0] || got[1] || !got[2] || got[3] {
		t.Errorf("due %v, want the second hit of the point alone", got)
	}
}

// TestHitKills runs itself as the process that dies.
func TestHitKills(t *testing.T) {
	const child = "BERTH_FAULT_CHILD"
	if os.Getenv(child) != "" {
		Hit(Wired)
		Hit(Bound)
		Hit(Bound)
		os.Exit(3)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHitKills$")
	cmd.Env = append(os.Environ(), child+"=1", Variable+"=bind/bound:2")
	err := cmd.Run()
	var ended *exec.ExitError
	if !errors.As(err, &ended) {
		t.Fatalf("it ended with %v", err)
	}
	if s, ok := ended.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
}
