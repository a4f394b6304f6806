package protocol

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// errPath says that canonicalise gave one form to two states that behave differently.
var errPath = errors.New("the path to the violation can't be walked again")

// trace gives the texts of the actions from the start to the first state that violates p. No path is shorter. It walks
// the path again with claims that are never used twice, so that a name means one thing from first line to last.
func (x *search) trace(p property) ([]string, error) {
	var path []int32
	for i := x.first[p]; i >= 0; i = x.parents[i] {
		path = append(path, i)
	}
	var last claimID
	replay := *x.model
	replay.draw = func(*state) claimID { return last + 1 }
	now := replay.start()
	var lines []string
	for k := len(path) - 2; k >= 0; k-- {
		want, after, found := x.states[path[k]], state{}, false
		replay.next(now, func(a action, to *state) {
			form := *to
			if form.canonicalise(); !found && form == want {
				found, after = true, *to
				lines = append(lines, a.text(x.scenario))
			}
		})
		if !found {
			return lines, errPath
		}
		now = after
		now.forget()
		now.eachClaim(func(c *claimID) {
			if *c < derived {
				last = max(last, *c)
			}
		})
	}
	return lines, nil
}

// report tells people how p is violated.
func (x *search) report(p property) string {
	lines, err := x.trace(p)
	var b strings.Builder
	fmt.Fprintf(&b, "%v, on %v:\n", p, x.scenario)
	for i, l := range lines {
		fmt.Fprintf(&b, "%4d. %s\n", i+1, l)
	}
	switch {
	case err != nil:
		fmt.Fprintf(&b, "      %v\n", err)
	case p == settles:
		b.WriteString("      from here the system by itself never sets the accounts right\n")
	default:
		b.WriteString("      this state violates it\n")
	}
	return b.String()
}

// reports tells of everything that is violated, shortest trace first.
func (x *search) reports() []string {
	length := map[property]int{}
	var broken []property
	for p := range properties {
		if x.broken.has(p) {
			broken = append(broken, p)
			for i := x.first[p]; i >= 0; i = x.parents[i] {
				length[p]++
			}
		}
	}
	slices.SortStableFunc(broken, func(a, b property) int { return cmp.Compare(length[a], length[b]) })
	var out []string
	for _, p := range broken {
		out = append(out, x.report(p))
	}
	return out
}
