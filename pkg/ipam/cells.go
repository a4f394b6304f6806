package ipam

// key orders the cells of a heap: the smaller goes first, and of equals the one with the lower addresses.
type key struct{ high, low uint64 }

// Bits of key.high. The lower ones are a moment.
const (
	keyLast  = 1 << 63
	keyLater = 1 << 62
)

// freshFirst puts the blocks with addresses that were never used first, this replica's own before others'. Of the own it is
// the one that was not written for longest.
func freshFirst(c *cell) key {
	k := key{low: c.score}
	if c.freshLeft() <= 0 {
		k.high |= keyLast
	}
	if !c.mine {
		k.high |= keyLater
	} else if t := c.e.touched; !t.IsZero() {
		k.high |= uint64(max(t.UnixNano(), 0))
	}
	return k
}

// oldestFirst puts the block with the address that was freed longest ago first.
func oldestFirst(c *cell) key {
	k := key{high: uint64(max(c.oldest, 0))}
	if c.left() <= 0 {
		k.high |= keyLast
	}
	if c.free() <= 0 {
		k.high |= keyLater
	}
	return k
}

// cells is a heap of cells that know their place in it. Every choice of an address moves one through some ten levels, so
// the keys stand in the heap itself: with container/heap, which asks for each comparison where the cells are, that took a
// fifth of an allocation's time.
type cells struct {
	list  []keyed
	slot  int // which of cell.at is this heap's
	keyOf func(*cell) key
}

type keyed struct {
	key
	*cell
}

func (a keyed) before(b keyed) bool {
	if a.high != b.high {
		return a.high < b.high
	}
	if a.low != b.low {
		return a.low < b.low
	}
	return a.first.Less(b.first)
}

func (h *cells) push(c *cell) {
	h.list = append(h.list, keyed{})
	h.up(keyed{h.keyOf(c), c}, len(h.list)-1)
}

func (h *cells) remove(c *cell) {
	n := len(h.list) - 1
	last := h.list[n].cell
	h.list[n] = keyed{}
	h.list = h.list[:n]
	if last != c {
		last.at[h.slot] = c.at[h.slot]
		h.fix(last)
	}
}

// fix finds the place of a cell that changed.
func (h *cells) fix(c *cell) {
	x, i := keyed{h.keyOf(c), c}, c.at[h.slot]
	if !h.up(x, i) {
		h.down(x, i)
	}
}

func (h *cells) put(x keyed, i int) { h.list[i], x.at[h.slot] = x, i }

// up puts x at i or above, and tells whether it is above.
func (h *cells) up(x keyed, i int) bool {
	start := i
	for i > 0 && x.before(h.list[(i-1)/2]) {
		h.put(h.list[(i-1)/2], i)
		i = (i - 1) / 2
	}
	h.put(x, i)
	return i != start
}

// down puts x at i or below.
func (h *cells) down(x keyed, i int) {
	for {
		child := 2*i + 1
		if child >= len(h.list) {
			break
		}
		if child+1 < len(h.list) && h.list[child+1].before(h.list[child]) {
			child++
		}
		if !h.list[child].before(x) {
			break
		}
		h.put(h.list[child], i)
		i = child
	}
	h.put(x, i)
}

// own counts the cells below index i that are this replica's and have never used addresses left, up to enough.
func (h *cells) own(i, enough int) int {
	if enough <= 0 || i >= len(h.list) || !h.list[i].mine || h.list[i].freshLeft() <= 0 {
		return 0 // none of those below comes before it
	}
	n := 1 + h.own(2*i+1, enough-1)
	return n + h.own(2*i+2, enough-n)
}

func (h *cells) top() *cell {
	if len(h.list) == 0 {
		return nil
	}
	return h.list[0].cell
}
