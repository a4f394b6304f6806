package worker

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/memkube"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
	"github.com/berth-net/berth/pkg/network"
)

const foreignFinalizer = "example.com/other"

// happening is a kind of event: whether it can happen now, nil for always, and what it does.
type happening struct {
	name string
	can  func() bool
	do   func()
}

func (s *sim) events() []happening {
	return slices.Concat(s.births(), s.kubelets(), s.ends(), s.owners(), s.places(), s.workers())
}

// some are the pods that are there and fit.
func (s *sim) some(fits ...func(*fate) bool) []*fate {
	var out []*fate
	for _, f := range s.fates {
		if f.there && !slices.ContainsFunc(fits, func(fit func(*fate) bool) bool { return !fit(f) }) {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b *fate) int { return cmp.Compare(a.key.Name, b.key.Name) })
	return out
}

// to is an event that befalls one of the pods that fit.
func (s *sim) to(name string, do func(*fate), fits ...func(*fate) bool) happening {
	return happening{name, func() bool { return len(s.some(fits...)) > 0 }, func() {
		all := s.some(fits...)
		f := all[rapid.IntRange(0, len(all)-1).Draw(s.rt, "pod")]
		s.rt.Log("  ", f.key.Name, f.uid)
		do(f)
	}}
}

func living(f *fate) bool    { return f.pod.DeletionTimestamp == nil }
func dying(f *fate) bool     { return f.pod.DeletionTimestamp != nil }
func unbound(f *fate) bool   { return f.pod.Spec.NodeName == "" && len(f.pod.Spec.SchedulingGates) == 0 }
func unended(f *fate) bool   { return !f.final() }
func ofTheSet(f *fate) bool  { return strings.HasPrefix(f.key.Name, "web-") }
func ownerless(f *fate) bool { return len(f.pod.OwnerReferences) == 0 }
func foreign(f *fate) bool   { return slices.Contains(f.pod.Finalizers, foreignFinalizer) }

// onUpNode tells that a kubelet is there for the pod.
func (s *sim) onUpNode(f *fate) bool {
	return f.pod.Spec.NodeName != "" && s.nodes[f.pod.Spec.NodeName] == ""
}

// edit changes a pod that may be gone by now.
func (s *sim) edit(p *corev1.Pod, change func(*corev1.Pod)) {
	s.rt.Helper()
	now, err := s.get(p.Name)
	if apierrors.IsNotFound(err) {
		return
	}
	s.ok(err)
	old := now.DeepCopy()
	change(now)
	s.ok(client.IgnoreNotFound(s.client.Patch(s.ctx, now, client.MergeFrom(old))))
}

// editStatus does the same to its status.
func (s *sim) editStatus(p *corev1.Pod, change func(*corev1.PodStatus)) {
	s.rt.Helper()
	now, err := s.get(p.Name)
	if apierrors.IsNotFound(err) {
		return
	}
	s.ok(err)
	old := now.DeepCopy()
	change(&now.Status)
	s.ok(client.IgnoreNotFound(s.client.Status().Patch(s.ctx, now, client.MergeFrom(old))))
}

// births are the ways in which pods come.
func (s *sim) births() []happening {
	room := func(more func() bool) func() bool {
		return func() bool { return len(s.some()) < 7 && s.labelled && (more == nil || more()) }
	}
	absent := func(names ...string) string {
		for _, n := range names {
			if !slices.ContainsFunc(s.some(), func(f *fate) bool { return f.key.Name == n }) {
				return n
			}
		}
		return ""
	}
	fresh := func(prefix string) string { s.next++; return fmt.Sprintf("%s-%d", prefix, s.next) }
	web := func() string {
		var names []string
		for i := range s.replicas() {
			names = append(names, fmt.Sprintf("web-%d", i))
		}
		return absent(names...)
	}
	bare := func() string { return absent("a", "b") }
	twin := func() string { return absent("mv-a", "mv-b") }
	gate := func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: network.AddressGate}} }
	return []happening{
		{"create a bare pod", room(func() bool { return bare() != "" }), func() { s.admits(podNamed(bare(), inTiny)) }},
		{"create a pod of the set", room(func() bool { return web() != "" }), func() {
			s.admits(podNamed(web(), inTiny, controlledBy("apps/v1", "StatefulSet", "web", s.set.uid)))
		}},
		{"create a pod of a ReplicaSet", room(nil), func() {
			s.admits(podNamed(fresh("rs"), inTiny, controlledBy("apps/v1", "ReplicaSet", "rs", "rs")))
		}},
		{"create a pod of a Job", room(nil), func() { s.admits(podNamed(fresh("job"), inTiny, controlledBy("batch/v1", "Job", "job", "job"))) }},
		{"create a launcher", room(func() bool { return s.machine && len(s.some((*fate).machine)) < 2 }), func() {
			name := fresh("virt-launcher-vm")
			s.admits(podNamed(name, inTiny, controlledBy("kubevirt.io/v1", "VirtualMachineInstance", "vm", types.UID(name))))
		}},
		{"create a pod on another CNI's network", room(func() bool { return twin() != "" }), func() { s.admits(podNamed(twin(), inTiny, attachedTo("mv"))) }},
		{"create a pod past the webhook", func() bool { return len(s.some()) < 7 }, func() { s.ok(s.client.Create(s.ctx, podNamed(fresh("late"), inTiny))) }},
		{"create a pod that waits", func() bool { return len(s.some()) < 7 }, func() { s.ok(s.client.Create(s.ctx, podNamed(fresh("gated"), inTiny, gate))) }},
		{"lose a create", room(nil), func() { s.take(podNamed(fresh("lost"), inTiny)) }},
		s.to("create a copy", func(f *fate) {
			c := podNamed(fresh("copy"))
			c.Annotations, c.Finalizers = maps.Clone(f.pod.Annotations), []string{network.Finalizer}
			maps.DeleteFunc(c.Annotations, func(k, _ string) bool { return network.Progress(k) })
			f.doubt() // either may be taken for the copy
			s.ok(s.client.Create(s.ctx, c))
		}, func(f *fate) bool { return len(s.some()) < 7 && f.pod.Annotations[network.ClaimKey] != "" }),
	}
}

func inTiny(p *corev1.Pod) { annotated("ovn.kubernetes.io/logical_switch", "tiny")(p) }

// take leases addresses for a pod, as admission does. It gives nil when it is refused.
func (s *sim) take(p *corev1.Pod) map[string]string {
	s.rt.Helper()
	var out map[string]string
	s.calmly(func() {
		view, err := s.worker.topology.For(s.ctx, network.PodOf(p))
		s.ok(err)
		plan, bad := network.Plan(view.Pod, view.Namespace, view.Catalog, s.worker.Network)
		s.ok(bad.ToAggregate())
		claim, err := ipam.NewClaim(s.worker.Random)
		s.ok(err)
		a, err := s.ledger.Take(s.ctx, plan.Request(claim, false))
		if _, refused := ipam.AsRefusal(err); refused {
			used := 0
			for _, l := range s.podLeases() {
				if l.Subnet == "tiny" {
					used++
				}
			}
			if used < tinySize {
				s.rt.Fatalf("pod %s is refused, and %d of %d addresses are leased: %v", p.Name, used, tinySize, err)
			}
			return
		}
		s.ok(err)
		out = network.Annotations(plan, a, view.Catalog, s.worker.Network)
	})
	return out
}

// admits creates a pod as admission would have it. One that is refused and has a controller waits.
func (s *sim) admits(p *corev1.Pod) {
	s.rt.Helper()
	given := s.take(p)
	switch {
	case given == nil && len(p.OwnerReferences) == 0:
		return
	case given == nil:
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: network.AddressGate}}
	default:
		maps.Copy(p.Annotations, given)
		p.Finalizers = []string{network.Finalizer}
		if s.nodes["n1"] == "" && rapid.Bool().Draw(s.rt, "bound") {
			onNode(p)
		}
	}
	s.ok(s.client.Create(s.ctx, p))
	s.note()
	f := s.fates[p.UID]
	f.admitted = given != nil
	for _, l := range s.ledger.ByClaim(ipam.Claim(given[network.ClaimKey])) {
		if l.Address.IsValid() && slices.ContainsFunc(network.Carried(p.Annotations), func(c network.CarriedInterface) bool { return slices.Contains(c.Addresses, l.Address) }) {
			f.rights[l.Address] = l.Claim
		}
	}
}

// report has kubelet say how a pod's containers are.
func (s *sim) report(p *corev1.Pod, how string) {
	s.rt.Helper()
	one := func(state corev1.ContainerState) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: "c", State: state}}
	}
	idle := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	s.editStatus(p, func(st *corev1.PodStatus) {
		switch how {
		case "running":
			st.Phase, st.ContainerStatuses = corev1.PodRunning, one(runningState())
		case "init running":
			st.InitContainerStatuses, st.ContainerStatuses = one(runningState()), one(idle)
		case "sidecar running":
			st.InitContainerStatuses, st.ContainerStatuses = one(runningState()), one(stoppedState())
		case "ephemeral running":
			st.EphemeralContainerStatuses, st.ContainerStatuses = one(runningState()), one(stoppedState())
		case "waiting":
			st.ContainerStatuses = one(idle)
		case "unknown":
			st.Phase = corev1.PodUnknown
		case "none":
			st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses = nil, nil, nil
		case "stopped":
			st.ContainerStatuses = one(stoppedState())
			for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.EphemeralContainerStatuses} {
				for i := range list {
					list[i].State = stoppedState()
				}
			}
		}
	})
}

// kubelets are what becomes of pods on nodes.
func (s *sim) kubelets() []happening {
	out := []happening{s.to("bind", func(f *fate) {
		node := rapid.SampledFrom([]string{"n1", "n2"}).Draw(s.rt, "node")
		s.ok(s.client.SubResource("binding").Create(s.ctx, f.pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}))
	}, living, unbound, unended)}
	for _, how := range []string{"running", "init running", "sidecar running", "ephemeral running", "waiting", "unknown", "none", "stopped"} {
		out = append(out, s.to("containers: "+how, func(f *fate) { s.report(f.pod, how) }, s.onUpNode, unended,
			func(f *fate) bool { // what ran is told of until it has stopped, and no pod begins before its network is there
				_, started, _ := f.containers()
				return (f.routed() || f.pod.Annotations[network.ClaimKey] == "") && !(started && (how == "none" || how == "waiting" || how == "init running"))
			}))
	}
	return out
}

// ends are the ways in which pods go.
func (s *sim) ends() []happening {
	phase := func(to corev1.PodPhase, reason string) func(*fate) {
		return func(f *fate) {
			if reason == "" {
				s.report(f.pod, "stopped")
			}
			s.editStatus(f.pod, func(st *corev1.PodStatus) { st.Phase, st.Reason = to, reason })
		}
	}
	remove := func(grace int64) func(*fate) {
		return func(f *fate) {
			s.ok(client.IgnoreNotFound(s.client.Delete(s.ctx, f.pod, client.GracePeriodSeconds(grace), client.Preconditions{UID: &f.uid})))
		}
	}
	return []happening{
		s.to("succeed", phase(corev1.PodSucceeded, ""), s.onUpNode, unended),
		s.to("fail", phase(corev1.PodFailed, ""), s.onUpNode, unended),
		s.to("evicted", phase(corev1.PodFailed, "Evicted"), unended),
		s.to("delete", remove(30), living),
		s.to("delete by force", remove(0)),
		s.to("kubelet confirms", func(f *fate) {
			s.report(f.pod, "stopped")
			s.note() // it may be gone with the next call
			remove(0)(f)
		}, dying, s.onUpNode),
		s.to("strip the finalizer", func(f *fate) { s.edit(f.pod, func(p *corev1.Pod) { p.Finalizers = nil }) }),
		s.to("strip the finalizer and delete by force", func(f *fate) {
			s.edit(f.pod, func(p *corev1.Pod) { p.Finalizers = nil })
			remove(0)(f)
		}),
		s.to("a foreign finalizer", func(f *fate) {
			s.edit(f.pod, func(p *corev1.Pod) { p.Finalizers = append(p.Finalizers, foreignFinalizer) })
		}, living, func(f *fate) bool { return !foreign(f) }),
		s.to("the foreign finalizer goes", func(f *fate) {
			s.edit(f.pod, func(p *corev1.Pod) {
				p.Finalizers = slices.DeleteFunc(p.Finalizers, func(x string) bool { return x == foreignFinalizer })
			})
		}, foreign),
	}
}

// makeOwner makes the set anew.
func (s *sim) makeOwner() {
	n := int32(2)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "web"}, Spec: appsv1.StatefulSetSpec{Replicas: &n}}
	s.ok(s.client.Create(s.ctx, set))
	s.set = &setOwner{uid: set.UID, replicas: n}
}

// rescale sets how many pods the set wants.
func (s *sim) rescale(n int32) {
	var set appsv1.StatefulSet
	s.ok(s.client.Get(s.ctx, client.ObjectKey{Namespace: "app", Name: "web"}, &set))
	set.Spec.Replicas = &n
	s.ok(s.client.Update(s.ctx, &set))
	s.set.replicas = n
}

// disown deletes the set, with its pods or without them.
func (s *sim) disown(cascade bool) {
	if s.set == nil {
		return
	}
	s.ok(s.client.Delete(s.ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "web"}}))
	s.set = nil
	for _, f := range s.some(ofTheSet) {
		if cascade {
			s.ok(client.IgnoreNotFound(s.client.Delete(s.ctx, f.pod, client.GracePeriodSeconds(30))))
			continue
		}
		f.doubt() // its leases would be the set's
		s.edit(f.pod, func(p *corev1.Pod) { p.OwnerReferences = nil })
	}
}

func (s *sim) make() {
	s.ok(s.client.Create(s.ctx, object("kubevirt.io/v1", "VirtualMachine", "vm", map[string]any{"template": map[string]any{"spec": map[string]any{}}})))
	s.machine = true
}

func (s *sim) demolish() {
	if s.machine {
		s.ok(s.client.Delete(s.ctx, object("kubevirt.io/v1", "VirtualMachine", "vm", nil)))
		s.machine = false
	}
}

// owners are what becomes of owners.
func (s *sim) owners() []happening {
	has := func() bool { return s.set != nil }
	lacks := func() bool { return s.set == nil }
	return []happening{
		{"make the set", lacks, s.makeOwner},
		{"scale down", func() bool { return s.replicas() > 0 }, func() { s.rescale(s.replicas() - 1) }},
		{"scale up", func() bool { return has() && s.set.replicas < 3 }, func() { s.rescale(s.set.replicas + 1) }},
		{"delete the set with its pods", has, func() { s.disown(true) }},
		{"delete the set without its pods", has, func() { s.disown(false) }},
		s.to("the set adopts a pod", func(f *fate) {
			f.doubt()
			s.edit(f.pod, controlledBy("apps/v1", "StatefulSet", "web", s.set.uid))
		}, func(f *fate) bool { return has() && ofTheSet(f) && ownerless(f) && living(f) }),
		{"make the machine", func() bool { return !s.machine }, s.make},
		{"delete the machine", func() bool { return s.machine }, s.demolish},
	}
}

// raise makes a node, or has it be well again.
func (s *sim) raise(name string) {
	s.rt.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"ovn.kubernetes.io/ip_address": "100.64.0.2"}}}
	if s.nodes[name] = ""; s.client.Create(s.ctx, n) != nil {
		n = s.node(name)
		n.Spec.Taints = nil
		s.ok(s.client.Update(s.ctx, n))
	}
	s.ready(name, corev1.ConditionTrue)
}

func (s *sim) ready(name string, status corev1.ConditionStatus) {
	n := s.node(name)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	s.ok(s.client.Status().Update(s.ctx, n))
}

// fell deletes a node.
func (s *sim) fell(name string) {
	if s.nodes[name] != goneNode {
		s.ok(s.client.Delete(s.ctx, s.node(name)))
		s.nodes[name] = goneNode
	}
}

func (s *sim) opt(label string) {
	ns := &corev1.Namespace{}
	s.ok(s.client.Get(s.ctx, client.ObjectKey{Name: "app"}, ns))
	old := ns.DeepCopy()
	ns.Labels = map[string]string{network.LabelInject: label}
	s.ok(s.client.Patch(s.ctx, ns, client.MergeFrom(old)))
	s.labelled = label == network.InjectEnabled
	s.follow()
	for _, r := range s.hand.podsOf(s.ctx, ns) {
		s.hand.due[r.NamespacedName] = s.time.Now()
	}
}

// places are what becomes of nodes, of the namespace and of the time.
func (s *sim) places() []happening {
	at := func(name string, in []string, do func(string)) happening {
		fit := func() (out []string) {
			for _, n := range []string{"n1", "n2"} {
				if slices.Contains(in, s.nodes[n]) {
					out = append(out, n)
				}
			}
			return out
		}
		return happening{name, func() bool { return len(fit()) > 0 }, func() { do(rapid.SampledFrom(fit()).Draw(s.rt, "node")) }}
	}
	return []happening{
		at("a node is not ready", []string{""}, func(n string) {
			s.nodes[n] = notReadyNode
			s.ready(n, corev1.ConditionUnknown)
		}),
		at("a node is out of service", []string{notReadyNode}, func(name string) {
			s.nodes[name] = outNode
			n := s.node(name)
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
			s.ok(s.client.Update(s.ctx, n))
		}),
		at("a node is deleted", []string{notReadyNode, outNode}, s.fell),
		at("a node is well again", []string{notReadyNode, outNode, goneNode}, s.raise),
		{"the namespace opts out", func() bool { return s.labelled }, func() { s.opt("") }},
		{"the namespace opts in", func() bool { return !s.labelled }, func() { s.opt(network.InjectEnabled) }},
		{"five seconds pass", nil, func() { s.time.Step(5 * time.Second) }},
		{"a minute passes", nil, func() { s.time.Step(61 * time.Second) }},
	}
}

// workers are what workers do, and what becomes of them.
func (s *sim) workers() []happening {
	look := func(h func() *hand) func() {
		return func() {
			keys := s.dirty(s.time.Now())
			if len(keys) == 0 {
				return
			}
			s.looks(h(), keys[rapid.IntRange(0, len(keys)-1).Draw(s.rt, "key")])
		}
	}
	some := func() bool { return len(s.some()) > 0 }
	return []happening{
		{"look at one pod", some, look(func() *hand { return s.hand })},
		{"the former leader looks at one pod", func() bool { return len(s.former) > 0 && some() }, look(func() *hand { return s.former[len(s.former)-1] })},
		{"look at all", nil, s.settle},
		{"sweep", nil, s.sweep},
		{"rest", nil, s.rest},
		{"rest for a minute", nil, func() {
			s.rest()
			s.time.Step(61 * time.Second)
			s.rest()
		}},
		{"restart", nil, func() {
			s.hand.end()
			s.employAnother()
		}},
		{"another worker takes the lead", func() bool { return len(s.former) == 0 }, func() {
			s.former = append(s.former, s.hand)
			s.employAnother()
		}},
		{"calls fail", nil, s.bother},
		{"the watch is held up", func() bool { return s.resume == nil }, func() { s.resume = s.kube.PauseWatch("pods") }},
	}
}

// bother has some of the worker's next calls fail.
func (s *sim) bother() {
	resource := schema.GroupResource{Resource: "x"}
	kinds := []trouble{{}, {kube: memkube.Fault{Err: errors.New("out of order")}, store: memstore.Fault{Err: errors.New("out of order")}},
		{kube: memkube.Fault{Err: apierrors.NewConflict(resource, "x", errors.New("the store is busy"))}, store: memstore.Fault{Err: ipam.ErrConflict}},
		{kube: memkube.Fault{DropAnswer: true}, store: memstore.Fault{LoseAnswer: true}}, {kube: memkube.Fault{Err: memkube.ErrAbort}}}
	s.mu.Lock()
	defer s.mu.Unlock()
	for range rapid.IntRange(1, 12).Draw(s.rt, "calls") {
		s.troubles = append(s.troubles, kinds[rapid.IntRange(0, len(kinds)-1).Draw(s.rt, "trouble")])
	}
}
