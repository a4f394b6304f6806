// Package proc names running processes so that a later run of another program can find, signal and await them.
//
// Invariant: an ID never refers to another process than the one it was taken from, even when the kernel has given the
// number away again.
package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrGone says that the process has ended; there is nothing left to signal.
var ErrGone = errors.New("the process has ended")

// ID is a process: its number and when it started, in clock ticks since boot.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// Of takes the ID of a running process.
func Of(pid int) (ID, error) {
	state, start, err := stat(pid)
	if err != nil {
		return ID{}, err
	}
	if state == 'Z' || state == 'X' {
		return ID{}, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	return ID{PID: pid, Start: start}, nil
}

// Alive tells whether the process still runs; one that only waits to be reaped doesn't.
func (id ID) Alive() bool {
	if id.PID <= 0 {
		return false
	}
	state, start, err := stat(id.PID)
	return err == nil && start == id.Start && state != 'Z' && state != 'X'
}

// Signal sends a signal, or returns ErrGone.
func (id ID) Signal(sig syscall.Signal) error {
	fd, err := id.open()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return ErrGone
		}
		return fmt.Errorf("signal %v to process %d, are you its user or root: %w", sig, id.PID, err)
	}
	return nil
}

// Wait returns nil when the process has ended, or the context's error.
func (id ID) Wait(ctx context.Context) error {
	fd, err := id.open()
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process %d: %w", id.PID, err)
		}
		if n > 0 {
			return nil
		}
	}
	return ctx.Err()
}

// Stop asks the process to end, and kills it when it has not ended within the grace or the context's life.
func (id ID) Stop(ctx context.Context, grace time.Duration) error {
	if err := id.Signal(unix.SIGTERM); err != nil {
		return ignoreGone(err)
	}
	patience, cancel := context.WithTimeout(ctx, grace)
	err := id.Wait(patience)
	cancel()
	if err == nil {
		return nil
	}
	if err := id.Signal(unix.SIGKILL); err != nil {
		return ignoreGone(err)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := id.Wait(last); err != nil {
		return fmt.Errorf("process %d is still there after SIGKILL, look at its state in /proc/%d/stack: %w", id.PID, id.PID, err)
	}
	return nil
}

// open returns a descriptor of exactly this process.
func (id ID) open() (int, error) {
	if id.PID <= 0 {
		return -1, ErrGone
	}
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d, the kernel must be 5.3 or later: %w", id.PID, err)
	}
	if !id.Alive() {
		_ = unix.Close(fd)
		return -1, ErrGone
	}
	return fd, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, ErrGone) {
		return nil
	}
	return err
}

// stat reads a process's state letter and start time.
func stat(pid int) (state byte, start uint64, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("process %d: %w", pid, errors.Join(ErrGone, err))
	}
	return parseStat(string(text))
}

// parseStat picks the state (third field) and the start time (22nd) out of a stat line. The second field, the program's
// name in parentheses, may itself hold spaces and parentheses.
func parseStat(line string) (state byte, start uint64, err error) {
	end := strings.LastIndexByte(line, ')')
	if end < 0 {
		return 0, 0, fmt.Errorf("process status %q has no program name", line)
	}
	fields := strings.Fields(line[end+1:])
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("process status %q is too short", line)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("process status %q has no start time: %w", line, err)
	}
	return fields[0][0], start, nil
}
