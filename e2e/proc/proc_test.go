package proc

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	state, start, err := parseStat("42 (a) b (c)) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 0 0 0")
	if err != nil || state != 'S' || start != 98765 {
		t.Fatalf("got %c %d %v", state, start, err)
	}
	for _, bad := range []string{"", "42 nothing", "42 (a) S 1 2", "42 (a) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 x 0"} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestLifeOfAProcess(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	// The shell says that its trap is set before the test signals it.
	cmd := exec.Command("sh", "-c", "trap '' TERM; echo set; while :; do read _ || exit; done")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	id, err := Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !id.Alive() {
		t.Fatal("not alive")
	}
	other := ID{PID: id.PID, Start: id.Start + 1}
	if other.Alive() || !errors.Is(other.Signal(syscall.SIGKILL), ErrGone) {
		t.Fatal("a process of another start time was taken for this one")
	}
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	if err := id.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("wait on a running process: %v", err)
	}
	stop()
	if err := id.Stop(ctx, 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if id.Alive() {
		t.Fatal("alive after Stop: an unreaped process counts as ended")
	}
	_ = cmd.Wait()
	if err := id.Stop(ctx, time.Second); err != nil {
		t.Fatalf("stopping twice: %v", err)
	}
	if err := id.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}
