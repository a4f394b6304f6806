//go:build e2e

package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// mortal is the program that the cluster runs as its worker: the shipped one, or while there are orders, one that was
// built with fault points and dies at one after the other.
type mortal struct {
	// dir has both programs' script, and its orders; shipped is the program without fault points.
	dir, shipped string
	built        chan error
}

// script starts what is wanted now. The shipped program replaces it. One with fault points is its child, ends with it, and
// is started again at once for the next order: no kubelet's back-off lies between, and no lease of a leader.
const script = `#!/bin/sh
dir=%[1]s
while [ -e $dir/orders ]; do
	order=$(sed -n "$(($(wc -l < $dir/deaths) + 1))p" $dir/orders)
	BERTH_FAULT=$order setpriv --pdeathsig KILL $dir/tagged "$@" --sweep-period=%[3]s --pending-age=10s --leader-elect=false &
	echo $! > $dir/child
	wait $!
	echo "$order $?" >> $dir/deaths
done
exec %[2]s "$@" --sweep-period=%[3]s --pending-age=10s
`

// newMortal writes the script for a shipped program, and begins to build the other one, unless it lies beside the first.
func newMortal(root, shipped string) (*mortal, error) {
	dir, err := os.MkdirTemp("", "mortal")
	if err != nil {
		return nil, err
	}
	m := &mortal{dir: dir, shipped: shipped, built: make(chan error, 1)}
	if err := os.WriteFile(m.path("worker"), fmt.Appendf(nil, script, dir, shipped, sweep), 0o700); err != nil {
		return nil, err
	}
	if beside := shipped + "-faultpoint"; exists(beside) {
		m.built <- os.Symlink(beside, m.path("tagged"))
		return m, nil
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		m.built <- build(ctx, root, m.path("tagged"), "./cmd/finalizer-worker", "faultpoint")
	}()
	return m, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (m *mortal) path(name string) string { return filepath.Join(m.dir, name) }

// order has the worker that is started next die at these points, one after the other. After the last one it lives.
func (m *mortal) order(points []string) error {
	return errors.Join(os.WriteFile(m.path("deaths"), nil, 0o600),
		os.WriteFile(m.path("orders"), []byte(strings.Join(points, "\n")+"\n"), 0o600))
}

// deaths tells the points that workers died at, with the shells' view of how.
func (m *mortal) deaths() ([]string, error) {
	text, err := os.ReadFile(m.path("deaths"))
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), err
}

// pardon takes the orders back and ends the program with fault points: the shipped one follows.
func (m *mortal) pardon() error {
	if err := os.Remove(m.path("orders")); err != nil {
		return err
	}
	text, err := os.ReadFile(m.path("child"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it never came to that
	}
	if err != nil {
		return err
	}
	id, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	if err := syscall.Kill(id, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
