package protocol

// model is the protocol in one scenario, with the rules that hold.
type model struct {
	scenario
	without rule
	// draw gives a claim that nobody has had.
	draw func(*state) claimID
}

func newModel(c scenario, without rule) *model {
	return &model{scenario: c, without: without, draw: (*state).fresh}
}

func (m *model) holds(r rule) bool { return m.without&r == 0 }

func (m *model) start() state { return state{wanted: m.sticky()} }

// step is all that can happen next in one state.
type step struct {
	*model
	from, to state
	leader   uint8 // epoch of the leader that decides
	emit     func(action, *state)
}

// next emits every action that is possible in s, with the state after it.
func (m *model) next(s state, emit func(action, *state)) {
	x := &step{model: m, from: s, emit: emit}
	for p := range m.podIDs {
		x.webhook(p)
		x.apiServer(p)
		if s.exists(p) {
			x.kubelet(p)
			x.user(p)
			x.watch(p)
		}
	}
	x.owners()
	x.leaders()
	x.worker()
}

// do emits one action.
func (x *step) do(a action, change func(*state)) {
	x.to = x.from
	change(&x.to)
	x.emit(a, &x.to)
}

// about gives the action of the verb on what the pod carries.
func (x *step) about(v verb, p podID) action {
	q := x.from.pod(p)
	return action{v, p, q.addr, q.claim}
}
