package protocol

import "hash/maphash"

// search visits all states of a model, nearest first.
type search struct {
	*model
	seed    maphash.Seed
	states  []state
	parents []int32
	slots   []int32 // hash table of indexes into states, plus one
	edges   []edge  // steps that the system takes by itself
	first   [properties]int32
	broken  set
	capped  bool
}

type edge struct{ from, to int32 }

// explore visits all states. It ends early at the first one that violates a property of until, and gives up at the
// limit: then it has proved nothing.
func explore(m *model, limit int, until set) *search {
	x := &search{model: m, seed: maphash.MakeSeed(), slots: make([]int32, 1<<12)}
	first := m.start()
	x.add(&first, -1)
	for i := 0; i < len(x.states) && x.broken&until == 0; i++ {
		if len(x.states) > limit {
			x.capped = true
			return x
		}
		m.next(x.states[i], func(a action, to *state) {
			to.canonicalise()
			j := x.add(to, int32(i))
			if a.verb.own() && j != int32(i) {
				x.edges = append(x.edges, edge{int32(i), j})
			}
		})
	}
	if x.broken&until == 0 {
		x.settle()
	}
	return x
}

// add gives the state's index. A new one is judged.
func (x *search) add(s *state, parent int32) int32 {
	if 2*len(x.states) >= len(x.slots) {
		x.grow()
	}
	at := x.slot(s)
	if x.slots[at] != 0 {
		return x.slots[at] - 1
	}
	i := int32(len(x.states))
	x.slots[at] = i + 1
	x.states, x.parents = append(x.states, *s), append(x.parents, parent)
	bad := x.violated(s)
	for p := range properties {
		if bad.has(p) {
			x.breaks(p, i)
		}
	}
	return i
}

// slot finds where the state is, or belongs, in the table.
func (x *search) slot(s *state) uint64 {
	mask := uint64(len(x.slots) - 1)
	at := maphash.Comparable(x.seed, *s) & mask
	for x.slots[at] != 0 && x.states[x.slots[at]-1] != *s {
		at = (at + 1) & mask
	}
	return at
}

func (x *search) grow() {
	x.slots = make([]int32, 2*len(x.slots))
	for i := range x.states {
		x.slots[x.slot(&x.states[i])] = int32(i + 1)
	}
}

func (x *search) breaks(p property, i int32) {
	if !x.broken.has(p) {
		x.broken |= setOf(p)
		x.first[p] = i
	}
}

// settle looks for the nearest state from which the system can't come to rest with its accounts right: it walks the
// system's own steps backwards from all states of rest.
func (x *search) settle() {
	back, start := x.reverse()
	moves := make([]bool, len(x.states))
	for _, e := range x.edges {
		moves[e.from] = true
	}
	good := make([]bool, len(x.states))
	var todo []int32
	for i := range x.states {
		if !moves[i] && x.settled(&x.states[i]) {
			good[i] = true
			todo = append(todo, int32(i))
		}
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, from := range back[start[i]:start[i+1]] {
			if !good[from] {
				good[from] = true
				todo = append(todo, from)
			}
		}
	}
	for i, ok := range good {
		if !ok {
			x.breaks(settles, int32(i))
			return
		}
	}
}

// reverse gives all predecessors: those of state i are back[start[i]:start[i+1]].
func (x *search) reverse() (back, start []int32) {
	back, start = make([]int32, len(x.edges)), make([]int32, len(x.states)+1)
	for _, e := range x.edges {
		start[e.to]++
	}
	var sum int32
	for i, n := range start {
		sum += n
		start[i] = sum
	}
	for _, e := range x.edges {
		start[e.to]--
		back[start[e.to]] = e.from
	}
	return back, start
}
