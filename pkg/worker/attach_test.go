package worker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

const (
	another = "mv.app"
	// firstAlone is a prefix of firstNIC.
	firstAlone = "n1.app"
)

// plugging is a world with four networks beside the default one: two of OVN, and two of another CNI.
func plugging(t *testing.T, o worldOptions) *world {
	t.Helper()
	w := newWorld(t, o)
	w.serving("s1", "10.30.0.0/24", firstNIC)
	w.serving("s2", "10.31.0.0/24", secondNIC)
	w.serving("mv", "10.32.0.0/24", another)
	w.serving("alone", "10.33.0.0/24", firstAlone)
	w.ovnAttachment("n1")
	w.ovnAttachment("n2")
	for name, provider := range map[string]string{"mv": another, "alone": firstAlone} {
		w.attachment(name, fmt.Sprintf(`{"type":"macvlan","master":"eth0","ipam":{"type":"kube-ovn","provider":%q}}`, provider))
	}
	return w
}

// names edits which attachments the pod names; an empty text names none.
func (w *world) names(pod, text string) {
	w.t.Helper()
	w.change(pod, func(p *corev1.Pod) {
		if attachedTo(text)(p); text == "" {
			delete(p.Annotations, network.NetworksKey)
		}
	})
}

// picture is all that there is of a pod, but for what tells it from another of its name: its claim, its UID, and the
// address of its default network.
type picture struct {
	Annotations map[string]string
	Leases      []string
	Ports       map[string]nb.LogicalSwitchPort
	Records     map[string]kubeovnv1.IPSpec
}

func (w *world) picture(name string) (picture, error) {
	p, err := w.get(name)
	if err != nil {
		return picture{}, err
	}
	out := picture{Annotations: maps.Clone(p.Annotations), Ports: map[string]nb.LogicalSwitchPort{}, Records: map[string]kubeovnv1.IPSpec{}}
	own := strings.NewReplacer(p.Annotations[addressKey], "ADDRESS", p.Annotations[network.Key(network.DefaultProvider, network.SuffixMAC)], "MAC",
		p.Annotations[network.ClaimKey], "CLAIM", string(p.UID), "UID")
	for k, v := range out.Annotations {
		out.Annotations[k] = own.Replace(v)
	}
	for _, l := range w.podLeases() {
		out.Leases = append(out.Leases, own.Replace(fmt.Sprintf("%s in %s: %v %v %s %s", l.Provider, l.Subnet, l.Address, l.MAC, l.Claim, l.PodUID)))
	}
	slices.Sort(out.Leases)
	for _, port := range w.nb.Ports() {
		if port.Type != "" {
			continue
		}
		port.UUID = ""
		port.ExternalIDs, port.Addresses = maps.Clone(port.ExternalIDs), slices.Clone(port.Addresses)
		for k, v := range port.ExternalIDs {
			port.ExternalIDs[k] = own.Replace(v)
		}
		for i, a := range port.Addresses {
			port.Addresses[i] = own.Replace(a)
		}
		out.Ports[port.Name] = port
	}
	var list kubeovnv1.IPList
	if err := w.client.List(w.ctx, &list); err != nil {
		return picture{}, err
	}
	for _, ip := range list.Items {
		spec := ip.Spec
		spec.IPAddress, spec.V4IPAddress, spec.MacAddress = own.Replace(spec.IPAddress), own.Replace(spec.V4IPAddress), own.Replace(spec.MacAddress)
		out.Records[ip.Name] = spec
	}
	return out, nil
}

// looks waits until the pod looks like that.
func (w *world) looks(pod string, want picture) {
	w.t.Helper()
	w.until("the pod is as a new one would be", func() error {
		got, err := w.picture(pod)
		if err != nil {
			return err
		}
		if d := cmp.Diff(want, got); d != "" {
			return errors.New("(-want +got):\n" + d)
		}
		return nil
	})
}

// fresh is what a new pod of that name looks like that names these attachments. It leaves nothing behind.
func (w *world) fresh(pod, names string, change ...func(*corev1.Pod)) picture {
	w.t.Helper()
	p := podNamed(pod, append(change, onNode)...)
	if names != "" {
		attachedTo(names)(p)
	}
	w.admitWhole(p)
	w.settled(pod)
	out, err := w.picture(pod)
	w.must(err)
	w.finish(pod)
	return out
}

// finish ends the pod, whose containers have stopped, and waits until nothing is left of any.
func (w *world) finish(pod string) {
	w.t.Helper()
	w.reports(pod, stoppedState())
	w.end(pod)
	w.clean()
}

// settled waits until all networks of the pod are there.
func (w *world) settled(pod string) *corev1.Pod {
	w.t.Helper()
	var p *corev1.Pod
	w.until("the networks of "+pod, func() (err error) {
		if p, err = w.get(pod); err != nil {
			return err
		}
		if !network.Settled(p.Annotations) {
			return fmt.Errorf("not settled: %v", p.Annotations)
		}
		for _, c := range network.Carried(p.Annotations) {
			if p.Annotations[network.Key(c.Provider, network.SuffixAllocated)] != "true" {
				return fmt.Errorf("%s is not allocated", c.Provider)
			}
		}
		return w.allBound()
	})
	return p
}

// unpluggedStatus is that of a pod into which no other CNI has plugged anything.
func unpluggedStatus() func(*corev1.Pod) { return annotated(network.StatusKey, "[]") }

// kept wants the pod's default network as it was.
func (w *world) kept(before *corev1.Pod) {
	w.t.Helper()
	p, err := w.get(before.Name)
	w.must(err)
	for k, v := range before.Annotations {
		if provider, _, ok := network.SplitKey(k); ok && provider == network.DefaultProvider && p.Annotations[k] != v {
			w.t.Errorf("%s was %q and is %q", k, v, p.Annotations[k])
		}
	}
	w.must(w.whole(before))
}

// A pod that runs gets each network that it names, loses each that it no longer names, and keeps the others.
func TestPlugIntoARunningPod(t *testing.T) {
	const n1At, n2At, mvAt, aloneAt = `{"name":"n1","ips":["10.30.0.9"]}`, `{"name":"n2","ips":["10.31.0.9"],"mac":"02:00:00:00:00:02"}`,
		`{"name":"mv","ips":["10.32.0.9"]}`, `{"name":"alone","ips":["10.33.0.9"]}`
	list := func(parts ...string) string { return "[" + strings.Join(parts, ",") + "]" }
	for name, lists := range map[string][]string{
		"plugged":             {"", list(n1At)},
		"unplugged":           {list(n1At), ""},
		"swapped":             {list(n1At), list(n2At)},
		"one more":            {list(n1At), list(n1At, n2At)},
		"another CNI's":       {"", list(mvAt, n1At), list(mvAt)},
		"prefix of a name":    {list(aloneAt, n1At), list(n1At)},
		"name with a prefix":  {list(n1At, aloneAt), list(aloneAt)},
		"there and back":      {list(n1At), "", list(n1At), list(n2At), list(n1At, n2At)},
		"and all of it again": {list(n1At, n2At, mvAt, aloneAt), "", list(n1At, n2At, mvAt, aloneAt)},
	} {
		t.Run(name, func(t *testing.T) {
			w := plugging(t, worldOptions{})
			want := w.fresh("a", lists[len(lists)-1], unpluggedStatus())
			p := podNamed("a", onNode, unpluggedStatus())
			if lists[0] != "" {
				attachedTo(lists[0])(p)
			}
			w.admitWhole(p)
			before := w.settled("a")
			w.runsOn("a", before.Annotations[addressKey])
			for _, names := range lists[1:] {
				w.names("a", names)
				w.settled("a")
				w.kept(before)
			}
			w.looks("a", want)
			w.quiet()
			w.finish("a")
		})
	}
}

// An edit that can't be had changes nothing, and the pod is told why; it is made when it can be.
func TestEditThatIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		names string
		mend  func(*world)
	}{
		"unreadable": {"[{", func(w *world) { w.names("a", "n2") }},
		"missing": {"n1,gone", func(w *world) {
			w.ovnAttachment("gone")
			w.serving("sg", "10.34.0.0/24", "gone.app.ovn")
			w.names("a", "n2")
		}},
		"outside":         {`[{"name":"n2","ips":["10.99.0.9"]}]`, func(w *world) { w.names("a", "n2") }},
		"the gateway's":   {`[{"name":"n2","ips":["10.31.0.1"]}]`, func(w *world) { w.names("a", "n2") }},
		"a MAC's form":    {`[{"name":"n2","mac":"0a:58:00:00:00:01"}]`, func(w *world) { w.names("a", "n2") }},
		"taken back":      {"gone", func(w *world) { w.names("a", "n1"); w.settled("a"); w.names("a", "n2") }},
		"its subnet gone": {"n1,void", func(w *world) { w.names("a", "n2") }},
	} {
		t.Run(name, func(t *testing.T) {
			w := plugging(t, worldOptions{})
			w.ovnAttachment("void")
			w.admitWhole(podNamed("a", onNode, attachedTo("n1")))
			before := w.settled("a")
			as, err := w.picture("a")
			w.must(err)
			as.Annotations[network.NetworksKey] = c.names
			w.kube.ResetRequests()
			tx := w.worker.writer.Transactions()
			w.names("a", c.names)
			w.until("that is told", func() error { return w.told("a", reasonRefused) })
			w.looks("a", as)
			if n := w.kube.Requests(); n["patch pods"] != 1 || n["delete ips"] > 0 || w.worker.writer.Transactions() != tx {
				t.Errorf("writes: %v, %d transactions", n, w.worker.writer.Transactions()-tx)
			}
			c.mend(w)
			w.settled("a")
			w.kept(before)
			if d := cmp.Diff(map[string]string{network.DefaultProvider: "s", secondNIC: "s2"}, w.leasedTo()); d != "" {
				t.Error(d)
			}
			w.finish("a")
		})
	}
}

// What can't be had now is waited for, and nothing of it is leased meanwhile; what goes, goes at once.
func TestEditThatWaits(t *testing.T) {
	w := plugging(t, worldOptions{})
	const full = "full.app.ovn"
	w.serving("full", "10.35.0.0/30", full) // one address, and the gateway
	w.ovnAttachment("full")
	w.admitWhole(podNamed("holder", onNode, attachedTo("full")))
	w.settled("holder")
	w.admitWhole(podNamed("a", onNode, attachedTo("n1")))
	before := w.settled("a")
	w.names("a", "n2,full")
	w.until("that is told", func() error { return w.told("a", reasonWaiting) })
	only := func() error {
		p, err := w.get("a")
		if d := cmp.Diff(map[string]string{network.DefaultProvider: "ss", full: "full"}, w.leasedTo()); d != "" || err != nil || network.Given(p.Annotations, firstNIC) {
			return fmt.Errorf("%w: annotations %v, leases (-want +got):\n%s", err, p.Annotations, d)
		}
		return nil
	}
	w.until("n1 is gone", only)
	w.keeps("all or nothing", only)
	w.kept(before)
	w.end("holder")
	p := w.settled("a")
	if p.Annotations[network.Key(full, network.SuffixAddress)] != "10.35.0.2" || !network.Given(p.Annotations, secondNIC) {
		t.Errorf("annotations %v", p.Annotations)
	}
	w.kept(before)
	w.finish("a")
}

// A pod whose new network needs the address that its old one has gets it.
func TestEditToTheSameAddress(t *testing.T) {
	w := plugging(t, worldOptions{})
	w.attachment("n3", `{"type":"kube-ovn","provider":"n1.app.ovn"}`)
	w.admitWhole(podNamed("a", onNode, attachedTo(`[{"name":"n1","interface":"x"},{"name":"n1","interface":"y","ips":["10.30.0.9"]}]`)))
	w.settled("a")
	w.names("a", `[{"name":"n1","interface":"x"},{"name":"n1","interface":"z","ips":["10.30.0.9"]}]`)
	p := w.settled("a")
	if got := p.Annotations[network.Key(firstNIC+".z", network.SuffixAddress)]; got != "10.30.0.9" || network.Given(p.Annotations, firstNIC+".y") {
		t.Errorf("annotations %v", p.Annotations)
	}
	w.finish("a")
}

// The address on another CNI's network is the pod's until that CNI says that it is unplugged.
func TestUnplugFromAnotherCNI(t *testing.T) {
	status := func(ips string) string { return fmt.Sprintf(`[{"name":"app/mv","interface":"net1","ips":[%s]}]`, ips) }
	w := plugging(t, worldOptions{})
	w.admitWhole(podNamed("a", onNode, attachedTo("mv,n1")))
	p := w.settled("a")
	address := p.Annotations[network.Key(another, network.SuffixAddress)]
	w.runsOn("a", p.Annotations[addressKey])
	w.change("a", annotated(network.StatusKey, status(fmt.Sprintf("%q", address))))
	w.names("a", "")
	w.until("that is told", func() error { return w.told("a", reasonInUse) })
	w.until("n1 is gone", func() error {
		if d := cmp.Diff(map[string]string{network.DefaultProvider: "s", another: "mv"}, w.leasedTo()); d != "" {
			return errors.New(d)
		}
		return nil
	})
	w.keeps("the address in use", w.leased(2))
	w.change("a", annotated(network.StatusKey, status("")))
	w.settled("a")
	w.until("it is given back", w.leased(1))
	w.quiet()
	w.finish("a")
}

// A copy of a pod's manifest, edited, takes nothing from the pod whose leases it names.
func TestEditOfACopy(t *testing.T) {
	w := plugging(t, worldOptions{})
	w.admitWhole(podNamed("a", onNode, attachedTo("n1")))
	before := w.settled("a")
	as, err := w.picture("a")
	w.must(err)
	twin := podNamed("b", onNode, annotated(network.NetworksKey, ""), func(p *corev1.Pod) {
		for k, v := range before.Annotations {
			if !network.Progress(k) && k != network.NetworksKey {
				p.Annotations[k] = v
			}
		}
		p.Finalizers = []string{network.Finalizer}
	})
	w.must(w.client.Create(w.ctx, twin))
	w.wired("b")
	w.kept(before)
	for _, l := range as.Leases {
		if !strings.Contains(l, "UID") {
			t.Errorf("lease %s was not bound", l)
		}
	}
	for _, l := range w.podLeases() {
		if l.Claim == ipam.Claim(before.Annotations[network.ClaimKey]) && l.PodUID != string(before.UID) {
			t.Errorf("lease %v went to another pod", l)
		}
	}
	w.end("b")
	w.finish("a")
}

// Where another CNI has the default network, all networks of a pod that runs come and go.
func TestPlugWhereTheDefaultNetworkIsAnothers(t *testing.T) {
	w := plugging(t, worldOptions{change: func(o *Options) { o.Network.NonPrimary = true }})
	w.must(w.client.Create(w.ctx, podNamed("a", onNode)))
	w.seen(podNamed("a"))
	w.runsOn("a", "192.0.2.77")
	for range 2 {
		w.names("a", "n1")
		w.until("n1", func() error {
			p, err := w.get("a")
			if err != nil || p.Annotations[network.Key(firstNIC, network.SuffixRouted)] != "true" {
				return fmt.Errorf("%w: %v", err, p.Annotations)
			}
			return nil
		})
		w.names("a", "")
		w.until("nothing", w.leased(0))
		w.until("no port", func() error {
			if ports := w.podPorts(); len(ports) > 0 {
				return fmt.Errorf("ports %v", ports)
			}
			return nil
		})
	}
	w.finish("a")
}

// A network that gives MACs alone comes and goes with its port, its record and the lease of its MAC.
func TestPlugANetworkOfMACs(t *testing.T) {
	w := plugging(t, worldOptions{})
	const macs = "macs.app.ovn"
	w.must(w.client.Create(w.ctx, &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "pn"}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1"}}))
	w.must(w.client.Create(w.ctx, &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "v7"}, Spec: kubeovnv1.VlanSpec{ID: 7, Provider: "pn"}}))
	node := w.node("n1")
	old := node.DeepCopy()
	node.Labels = map[string]string{network.ReadyLabel("pn"): "true"}
	w.must(w.client.Patch(w.ctx, node, client.MergeFrom(old)))
	w.seen(node)
	w.makeSubnet("macs", kubeovnv1.SubnetSpec{Protocol: "Mac", Vlan: "v7", Provider: macs})
	w.seen(w.subnet("macs"))
	w.ovnAttachment("macs")
	w.must(w.client.Create(w.ctx, podNamed("p", onNode)))
	w.wired("p")
	w.change("p", func(p *corev1.Pod) { p.Annotations[network.NetworksKey] = "macs" })
	p := w.settled("p")
	port, ok := w.nb.Port("p.app." + macs)
	if mac := p.Annotations[network.Key(macs, network.SuffixMAC)]; mac == "" || !ok || !slices.Equal(port.Addresses, []string{mac}) {
		t.Errorf("MAC %q, port %+v", mac, port)
	}
	w.must(w.leased(2)())
	w.names("p", "")
	w.settled("p")
	w.until("nothing is left of it", func() error {
		var list kubeovnv1.IPList
		w.must(w.client.List(w.ctx, &list))
		if d := cmp.Diff([]string{"p.app"}, w.podPorts()); d != "" || len(list.Items) != 1 {
			return fmt.Errorf("%d records, ports (-want +got):\n%s", len(list.Items), d)
		}
		return w.leased(1)()
	})
	w.finish("p")
}
