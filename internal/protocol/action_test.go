package protocol

import (
	"fmt"
	"strings"
)

// verb names what happens in a step.
type verb uint8

// Steps that begin something: users, clients and faults.
const (
	webhookTakes verb = iota
	webhookMisses
	webhookReuses
	webhookUndoes
	webhookStocks
	webhookServes
	webhookForgets
	webhookAssumes
	apiLeaves
	apiSuspended
	clientRetries
	userSaves
	userCreatesCopy
	userCreatesPast
	userDeletes
	userScales
	userStrips
	podSucceeds
	leaderChanges
	leaderDies
)

// Steps that the system takes by itself, sooner or later.
const (
	webhookConfirms verb = iota + leaderDies + 1
	webhookGivesUp
	webhookReturns
	webhookAnswers
	webhookResumes
	apiStores
	apiRefuses
	apiEnds
	podStops
	podGoes
	workerSees
	workerUnwires
	workerCleans
	workerUnfinalizes
	workerFinalizes
	workerClaims
	handToBind
	handToFree
	handToSweep
	handToWire
	handToPatch
	handBinds
	handFrees
	handWires
	handPatches
	handVoid
	handGivesUp
	verbs
)

// own tells that no user and no fault is needed for it.
func (v verb) own() bool { return v >= webhookConfirms }

// text is for people.
func (v verb) text() string {
	return [verbs]string{
		webhookTakes:      "webhook: CREATE of {pod} takes {addr} under {claim}",
		webhookMisses:     "webhook: CREATE of {pod} finds no lease of its owner in the cache",
		webhookReuses:     "webhook: CREATE of {pod} reuses its owner's {addr} under {claim}",
		webhookUndoes:     "webhook: CREATE of {pod} fails on another interface and undoes {addr}",
		webhookStocks:     "webhook: takes {addr} under {claim} ahead of the CREATE of {pod}",
		webhookServes:     "webhook: CREATE of {pod} gets {addr} under {claim}, which was taken ahead",
		webhookForgets:    "fault: the webhook that has {addr} under {claim} for {pod} dies",
		webhookReturns:    "webhook: gives {addr} back, which was taken ahead of the CREATE of {pod}",
		webhookAssumes:    "webhook: CREATE of {pod} loses the answer of its CAS and assumes that it has {addr} under {claim}",
		apiLeaves:         "fault: the API server gives CREATE of {pod} up while its webhook sleeps",
		apiSuspended:      "fault: the API server sleeps with CREATE of {pod} in hand",
		clientRetries:     "fault: CREATE of {pod} is tried again (client's retry, or lost answer of the CAS)",
		userSaves:         "user: saves the manifest of a pod with {addr} under {claim}, for {pod}",
		userCreatesCopy:   "user: creates {pod} with {addr} under {claim}",
		userCreatesPast:   "user: creates {pod}, and no webhook sees it",
		userDeletes:       "user: deletes {pod}",
		userScales:        "user: scales the owner down, or up again",
		userStrips:        "fault: the finalizer of {pod} is stripped",
		podSucceeds:       "kubelet: {pod} has succeeded",
		leaderChanges:     "fault: a new leader raises the epoch, the old one has not noticed",
		leaderDies:        "fault: the leader dies with what it has decided, a new one raises the epoch",
		webhookConfirms:   "webhook: CREATE of {pod} reads again and finds no other lease of its owner",
		webhookGivesUp:    "webhook: CREATE of {pod} finds another lease of its owner, gives {addr} up and begins anew",
		webhookAnswers:    "webhook: CREATE of {pod} is answered with {addr} under {claim}",
		webhookResumes:    "webhook: wakes up and undoes {addr} of {pod}",
		apiStores:         "api server: stores {pod} with {addr} under {claim}",
		apiRefuses:        "api server: 409, the name of {pod} exists",
		apiEnds:           "api server: CREATE of {pod} ends without a pod",
		podStops:          "kubelet: containers of {pod} have stopped",
		podGoes:           "api server: {pod} is gone",
		workerSees:        "worker: sees {pod}",
		workerUnwires:     "worker: removes the port of {pod}",
		workerCleans:      "worker: removes the port of {pod}, which is gone",
		workerUnfinalizes: "worker: drops the finalizer of {pod}",
		workerFinalizes:   "worker: puts the finalizer of {pod} back",
		workerClaims:      "worker: writes {claim} on {pod}, without addresses",
		handToBind:        "hand: decides to bind {addr} ({claim}) to {pod}",
		handToFree:        "hand: decides to free {addr} ({claim}) of {pod}, which has ended",
		handToSweep:       "hand: decides to free {addr} ({claim}), which is pending",
		handToWire:        "hand: decides to wire {pod} on {addr}",
		handToPatch:       "hand: takes {addr} under {claim} for {pod}, patch to follow",
		handBinds:         "hand: binds {addr} ({claim}) to {pod}",
		handFrees:         "hand: frees {addr} ({claim})",
		handWires:         "hand: OVN wires {pod} on {addr}",
		handPatches:       "hand: patches {pod} with {addr} under {claim}",
		handVoid:          "hand: what was decided about {addr} ({claim}) is void",
		handGivesUp:       "hand: finds another lease of the owner of {pod} and gives {addr} up",
	}[v]
}

// action is one step's name.
type action struct {
	verb  verb
	pod   podID
	addr  addrID
	claim claimID
}

// text names the action for people.
func (a action) text(c scenario) string {
	name := "none"
	if a.pod != 0 {
		name = fmt.Sprintf("%v%d", c.kind(a.pod), a.pod)
	}
	claim := fmt.Sprintf("c%d", a.claim)
	if a.claim >= derived {
		claim = "the owner's claim"
	}
	return strings.NewReplacer("{pod}", name, "{addr}", fmt.Sprintf("a%d", a.addr), "{claim}", claim).Replace(a.verb.text())
}
