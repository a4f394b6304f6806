package adopt

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/internal/facts"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// Scope says what is meant: the conditions that are set all hold. The zero value means everything.
type Scope struct{ Namespace, Subnet string }

// Input is all that a plan is made of.
type Input struct {
	Catalog network.Catalog
	Config  network.Config
	// Pods and Records are all of the cluster, whatever the scope: others may have the same addresses.
	Pods    []corev1.Pod
	Records []kubeovnv1.IP
	// Leases that there are.
	Leases []ipam.Held
	// Keeps tells whether an owner still wants a lease.
	Keeps func(ipam.Held) lifecycle.Answer
	// Draw draws a claim.
	Draw  func() (ipam.Claim, error)
	Scope Scope
}

// Problem is why an object can't be taken over, or is left out.
type Problem struct {
	Kind, Namespace, Name string
	Text                  string
}

// PodStep is what one pod gets.
type PodStep struct {
	Pod *corev1.Pod
	// Annotations that it lacks. None that it has changes.
	Annotations map[string]string
	// Finalize tells that it lacks the finalizer.
	Finalize bool
}

// RecordStep marks an IP record as ours.
type RecordStep struct {
	Record *kubeovnv1.IP
	Claim  ipam.Claim
	// PodUID is empty where the pod is absent.
	PodUID string
}

// Plan is what is to be done.
type Plan struct {
	// Problems stop everything, unless the objects are left out: the steps are those of all others.
	Problems []Problem
	// Skipped objects need nothing, or can't be helped now.
	Skipped []Problem
	// Subnets that are taken over, sorted.
	Subnets []string
	// Leases to make; those in Replace had been made for a reservation.
	Leases  lifecycle.Rebuilt
	Pods    []PodStep
	Records []RecordStep
	// Left are, by subnet, the living pods that are not taken over.
	Left map[string][]string
	// Namespaces of the pods that are taken over, or were before.
	Namespaces []string
	// OrdinalSets are the StatefulSets whose pods count addresses of a list from zero.
	OrdinalSets []string
}

type spot struct {
	place string // subnet, or L2 domain for a MAC
	what  string
}

type planner struct {
	Input
	out     Plan
	pods    []Pod // living ones with a network of their own
	at      map[spot]ipam.Held
	users   map[spot][]Pod
	bound   map[string]ipam.Claim // by UIDs of pods
	sticky  map[ipam.Owner]ipam.Claim
	byName  map[string]Pod // by the names of ports
	records map[string]*kubeovnv1.IP
	claims  map[string]ipam.Claim // of pods that are taken over, by UIDs
	under   map[ipam.Claim]map[netip.Addr]*ipam.Owner
	held    []lifecycle.Claimant
}

// Adopt plans how pods, IP records, reservations and Vips are taken over. An error says that no claim could be drawn.
func Adopt(in Input) (Plan, error) {
	p := &planner{Input: in, at: map[spot]ipam.Held{}, users: map[spot][]Pod{}, bound: map[string]ipam.Claim{}, sticky: map[ipam.Owner]ipam.Claim{},
		byName: map[string]Pod{}, records: map[string]*kubeovnv1.IP{}, claims: map[string]ipam.Claim{}, under: map[ipam.Claim]map[netip.Addr]*ipam.Owner{}}
	p.out.Left = map[string][]string{}
	p.index()
	for _, pod := range p.pods {
		if err := p.pod(pod); err != nil {
			return Plan{}, err
		}
	}
	for i := range p.Records {
		if err := p.record(&p.Records[i]); err != nil {
			return Plan{}, err
		}
	}
	p.lease()
	if err := p.reserve(); err != nil {
		return Plan{}, err
	}
	p.sort()
	return p.out, nil
}

// serves tells whether addresses of a subnet can be taken over at all.
func (p *planner) serves(s network.Subnet) bool {
	return s.Set != nil && s.Object.Name != p.Config.NodeSwitch && s.Object.DeletionTimestamp == nil && s.Set.Closed() == ""
}

func (p *planner) problem(kind, namespace, name, format string, args ...any) {
	p.out.Problems = append(p.out.Problems, Problem{Kind: kind, Namespace: namespace, Name: name, Text: fmt.Sprintf(format, args...)})
}

func (p *planner) skip(kind, namespace, name, format string, args ...any) {
	p.out.Skipped = append(p.out.Skipped, Problem{Kind: kind, Namespace: namespace, Name: name, Text: fmt.Sprintf(format, args...)})
}

func (p *planner) domain(subnet string) string {
	if s := p.Catalog.Subnets[subnet]; s.Set != nil {
		return s.Set.Domain()
	}
	return subnet
}

// index files what there is.
func (p *planner) index() {
	for _, h := range p.Leases {
		if h.Address.IsValid() {
			p.at[spot{h.Subnet, h.Address.String()}] = h
		}
		if h.MAC != (ipam.MAC{}) {
			p.at[spot{p.domain(h.Subnet), h.MAC.String()}] = h
		}
		if h.PodUID != "" {
			p.bound[h.PodUID] = h.Claim
		}
		if h.Owner.Sticky() && p.sticky[h.Owner] == "" {
			p.sticky[h.Owner] = h.Claim
		}
	}
	for i := range p.Records {
		p.records[p.Records[i].Name] = &p.Records[i]
	}
	for i := range p.Pods {
		pod := PodOf(&p.Pods[i], p.Catalog, p.Config)
		if _, skip := network.Skip(network.PodOf(pod.Pod)); skip || lifecycle.Ended(pod.Pod) {
			continue
		}
		p.pods = append(p.pods, pod)
		for _, n := range pod.Networks {
			p.byName[network.PortName(pod.Identity, pod.Namespace, n.Provider)] = pod
			for _, a := range n.Addresses {
				at := spot{n.Subnet, a.String()}
				p.users[at] = append(p.users[at], pod)
			}
			if n.MAC != (ipam.MAC{}) {
				at := spot{p.domain(n.Subnet), n.MAC.String()}
				p.users[at] = append(p.users[at], pod)
			}
		}
	}
	slices.SortFunc(p.pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (p *planner) meant(namespace string, subnets []string) bool {
	return (p.Scope.Namespace == "" || p.Scope.Namespace == namespace) && (p.Scope.Subnet == "" || slices.Contains(subnets, p.Scope.Subnet))
}

// pod plans one pod.
func (p *planner) pod(pod Pod) error {
	subnets := pod.Subnets()
	_, ours := network.ClaimOf(pod.Annotations)
	leave := func() {
		for _, s := range subnets {
			p.out.Left[s] = append(p.out.Left[s], pod.Namespace+"/"+pod.Name)
		}
	}
	switch {
	case !p.meant(pod.Namespace, subnets):
		if !ours {
			leave()
		}
		return nil
	case ours:
		p.own(pod, leave)
		return nil
	case pod.DeletionTimestamp != nil:
		p.skip("Pod", pod.Namespace, pod.Name, "it is being deleted: run this again when it is gone")
		leave()
		return nil
	case len(pod.Networks) == 0 && p.Config.NonPrimary: // it has another network alone
		return nil
	case len(subnets) == 0 && !facts.Running(pod.Pod):
		p.skip("Pod", pod.Namespace, pod.Name, "it has no address yet")
		return nil
	}
	claim, err := p.claimOf(pod)
	if err != nil {
		return err
	}
	if why := p.broken(pod, claim); len(why) > 0 {
		for _, text := range why {
			p.problem("Pod", pod.Namespace, pod.Name, "%s", text)
		}
		leave()
		return nil
	}
	p.take(pod, claim)
	return nil
}

// own is for a pod that was taken over, or served, before.
func (p *planner) own(pod Pod, leave func()) {
	claim, _ := network.ClaimOf(pod.Annotations)
	for _, n := range pod.Networks {
		for _, a := range n.Addresses {
			if h, leased := p.at[spot{n.Subnet, a.String()}]; network.Given(pod.Annotations, n.Provider) && (!leased || h.Claim != claim) {
				p.problem("Pod", pod.Namespace, pod.Name, "it has a claim, and no lease of %s: kubectl berth rebuild %s", a, n.Subnet)
				leave()
				return
			}
		}
	}
	p.claims[string(pod.UID)] = claim
	if pod.Owner.Sticky() {
		p.sticky[pod.Owner] = claim
	}
	p.use(pod.Namespace, pod.Subnets())
}

// claimOf is the claim of the leases which are the pod's own, or a new one.
func (p *planner) claimOf(pod Pod) (ipam.Claim, error) {
	claim := p.bound[string(pod.UID)]
	switch {
	case claim == "" && pod.Owner.Sticky():
		return p.stickyClaim(pod.Owner)
	case claim == "":
		return p.Draw()
	case pod.Owner.Sticky():
		p.sticky[pod.Owner] = claim
	}
	return claim, nil
}

// take plans the steps of a pod in which nothing is wrong.
func (p *planner) take(pod Pod, claim ipam.Claim) {
	p.claims[string(pod.UID)] = claim
	p.use(pod.Namespace, pod.Subnets())
	c := lifecycle.Claimant{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Identity: pod.Identity, Created: pod.CreationTimestamp.Time,
		Claim: claim, Owner: pod.Owner, OwnerUID: facts.ControllerUID(pod.Pod, pod.Owner), Running: true}
	asked := Requested(pod.Pod)
	for _, n := range pod.Networks {
		if len(n.Addresses) == 0 && n.MAC == (ipam.MAC{}) {
			continue
		}
		c.Holdings = append(c.Holdings, lifecycle.Holding{Provider: n.Provider, Subnet: n.Subnet, Addresses: n.Addresses, MAC: n.MAC,
			Requested: asked[n.Provider][network.SuffixAddress] != "", RequestedMAC: asked[n.Provider][network.SuffixMAC] != ""})
		for _, a := range n.Addresses {
			if o := p.vipOf(pod, n, a); o != (ipam.Owner{}) {
				if p.under[claim] == nil {
					p.under[claim] = map[netip.Addr]*ipam.Owner{}
				}
				p.under[claim][a] = &o
			}
		}
	}
	p.held = append(p.held, c)
	if step := p.step(pod, claim, asked); step.Finalize || len(step.Annotations) > 0 {
		p.out.Pods = append(p.out.Pods, step)
	}
}

func (p *planner) step(pod Pod, claim ipam.Claim, asked map[string]map[string]string) PodStep {
	step := PodStep{Pod: pod.Pod, Annotations: map[string]string{}, Finalize: !slices.Contains(pod.Finalizers, network.Finalizer)}
	add := func(key, value string) {
		if _, has := pod.Annotations[key]; !has && value != "" {
			step.Annotations[key] = value
		}
	}
	add(network.ClaimKey, string(claim))
	add(network.RequestedKey, requestedValue(asked))
	if network.NeedsOrdinalStart(network.PodOf(pod.Pod)) {
		add(network.OrdinalRuleKey, network.OrdinalRuleKubeOVN)
		if ref, ok := network.PodOf(pod.Pod).Controller(); ok && !slices.Contains(p.out.OrdinalSets, pod.Namespace+"/"+ref.Name) {
			p.out.OrdinalSets = append(p.out.OrdinalSets, pod.Namespace+"/"+ref.Name)
		}
	}
	return step
}

func (p *planner) use(namespace string, subnets []string) {
	if namespace != "" && !slices.Contains(p.out.Namespaces, namespace) {
		p.out.Namespaces = append(p.out.Namespaces, namespace)
	}
	for _, s := range subnets {
		if !slices.Contains(p.out.Subnets, s) {
			p.out.Subnets = append(p.out.Subnets, s)
		}
	}
}

// vipOf is the Vip by which the pod has its address.
func (p *planner) vipOf(pod Pod, n network.CarriedInterface, a netip.Addr) ipam.Owner {
	o := p.Catalog.Reserved[n.Subnet][a]
	if o.Kind == ipam.KindVip && o.Name != "" && o.Name == pod.Annotations[network.Key(n.Provider, network.SuffixVip)] {
		return o
	}
	return ipam.Owner{}
}

func (p *planner) sort() {
	order := func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Text, b.Text))
	}
	slices.SortFunc(p.out.Problems, order)
	slices.SortFunc(p.out.Skipped, order)
	slices.Sort(p.out.Subnets)
	slices.Sort(p.out.Namespaces)
	slices.Sort(p.out.OrdinalSets)
	slices.SortFunc(p.out.Records, func(a, b RecordStep) int { return cmp.Compare(a.Record.Name, b.Record.Name) })
}
