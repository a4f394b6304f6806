//go:build faultpoint

package fault

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Variable is the environment variable that names the point to die at: <point>, or <point>:<n> for the nth time.
const Variable = "BERTH_FAULT"

// order is what the environment asks for.
type order struct {
	mu    sync.Mutex
	point Point
	left  int
}

// asked reads it once: a program has one environment, and dies once.
var asked = sync.OnceValue(func() *order {
	o, err := parse(os.Getenv(Variable))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return o
})

// parse reads the variable's value. An empty one asks for nothing.
func parse(text string) (*order, error) {
	if text == "" {
		return &order{}, nil
	}
	name, count, counted := strings.Cut(text, ":")
	o := &order{point: Point(name), left: 1}
	if !slices.Contains(Points(), o.point) {
		return nil, fmt.Errorf("%s=%s: no such point, take one of %q", Variable, text, Points())
	}
	if counted {
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s=%s: write <point>:<n> with n from 1", Variable, text)
		}
		o.left = n
	}
	return o, nil
}

// due tells that the point is hit as often as was asked for.
func (o *order) due(p Point) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p != o.point || o.left == 0 {
		return false
	}
	o.left--
	return o.left == 0
}

// Hit kills this process where the environment asks for it, as a machine that loses its power would: nothing is flushed,
// closed or given back.
func Hit(p Point) {
	if !asked().due(p) {
		return
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	select {} // the signal is on its way
}
