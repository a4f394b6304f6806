package admission

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/jsonpatch"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// Outcomes of a request, as metrics, log and audit annotations name them.
const (
	outcomeAllocated  = "allocated"
	outcomeKept       = "kept"
	outcomePreview    = "preview"
	outcomeSkipped    = "skipped"
	outcomeGated      = "gated"
	outcomeWaiting    = "waiting"
	outcomeRefused    = "refused"
	outcomeOverloaded = "overloaded"
	outcomeBadRequest = "bad-request"
	outcomeError      = "error"
	outcomePanic      = "panic"
)

func outcomes() []string {
	return []string{outcomeAllocated, outcomeKept, outcomePreview, outcomeSkipped, outcomeGated, outcomeWaiting, outcomeRefused,
		outcomeOverloaded, outcomeBadRequest, outcomeError, outcomePanic}
}

// creation is how long the API server takes for one at most: its own limit of 34 s for mutating calls.
const creation = 34 * time.Second

// Audit annotations.
const (
	auditOutcome   = "outcome"
	auditClaim     = "claim"
	auditSubnet    = "subnet"
	auditAddresses = "addresses"
)

// decision is an answer: allowed with a patch, or refused with a status.
type decision struct {
	outcome  string
	reason   string // of a refusal
	status   *metav1.Status
	patch    []jsonpatch.Operation
	warnings []string
	audit    map[string]string
}

func allowed(outcome string, warnings ...string) *decision {
	return &decision{outcome: outcome, warnings: warnings, audit: map[string]string{auditOutcome: outcome}}
}

func overloaded() *decision {
	d := allowed(outcomeOverloaded)
	d.reason = "Overloaded"
	d.status = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: "too many pods are being created at once: try again", Details: &metav1.StatusDetails{RetryAfterSeconds: 1}}
	return d
}

// refused by what the pod says: all reasons at once.
func refused(p network.Pod, errs field.ErrorList, warnings []string) *decision {
	d := allowed(outcomeRefused, warnings...)
	d.reason = "Invalid"
	details := &metav1.StatusDetails{Name: p.Name, Kind: "Pod"}
	var texts []string
	for _, e := range errs {
		texts = append(texts, e.Error())
		details.Causes = append(details.Causes, metav1.StatusCause{Type: metav1.CauseType(e.Type), Message: e.ErrorBody(), Field: e.Field})
	}
	d.status = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: fmt.Sprintf("pod %s can't get its network: %s", p, strings.Join(texts, "; ")), Details: details}
	return d
}

// unavailable is a refusal by the ledger.
func unavailable(p network.Pod, r ipam.Refusal, warnings []string) *decision {
	d := allowed(outcomeRefused, warnings...)
	d.reason = r.Reason()
	d.status = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: fmt.Sprintf("pod %s can't get its network: %s", p, r.Error()),
		Details: &metav1.StatusDetails{Name: p.Name, Kind: "Pod", Causes: []metav1.StatusCause{{Type: metav1.CauseType(r.Reason()), Message: r.Error()}}}}
	if r.Unavailable() {
		d.status.Code, d.status.Reason = http.StatusConflict, metav1.StatusReasonConflict
	}
	return d
}

// decide answers a request. An error is our fault and not the pod's.
func (h *Handler) decide(ctx context.Context, req *request) (*decision, error) {
	if !req.creates() {
		return allowed(outcomeSkipped), nil
	}
	pod := req.pod()
	if what, gateway := network.Gateway(pod); gateway && h.Config.Alone {
		return refused(pod, field.ErrorList{field.Forbidden(field.NewPath("metadata"), "the pod is "+what+
			", and no controller of Kube-OVN runs here that would connect it: run kube-ovn-controller, or use another way out")}, nil), nil
	}
	if reason, skip := network.Skip(pod); skip {
		d := allowed(outcomeSkipped)
		if asks := network.Asks(pod); len(asks) > 0 {
			d.warnings = append(d.warnings, fmt.Sprintf("the pod gets no address, because %s: ignored %s", reason, strings.Join(asks, ", ")))
		}
		return d, nil
	}
	c, errs, err := h.plan(ctx, pod, req.DryRun)
	if err != nil {
		return nil, err
	}
	if len(errs) > 0 {
		return refused(pod, errs, c.warnings), nil
	}
	if len(c.plan.Interfaces) == 0 { // other CNIs have all its networks
		return c.without(outcomeSkipped), nil
	}
	if slices.ContainsFunc(pod.SchedulingGates, func(g string) bool { return g != network.AddressGate }) && !c.ours {
		return c.without(outcomeGated), nil
	}
	c.moment = req.moment()
	return c.allocate(ctx, c.plan, c.namespace)
}

// plan works out the pod's networks.
func (h *Handler) plan(ctx context.Context, pod network.Pod, dryRun bool) (c *candidate, errs field.ErrorList, err error) {
	_, errs, err = catalog.Plan(ctx, h.Topology, pod, func(view catalog.View) (wrong field.ErrorList, err error) {
		c = &candidate{handler: h, pod: view.Pod, namespace: view.Namespace, catalog: view.Catalog, have: pod.Annotations, dryRun: dryRun}
		if err := c.identify(ctx); err != nil {
			return nil, err
		}
		c.plan, wrong = network.Plan(c.pod, c.namespace, c.catalog, h.Config)
		return wrong, nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("planning a pod of namespace %s: %w", pod.Namespace, err)
	}
	c.warnings = append(c.warnings, c.plan.Dropped...)
	return c, errs, nil
}

// candidate is a pod that is to get addresses.
type candidate struct {
	handler   *Handler
	pod       network.Pod // without what a copy carries
	plan      network.Planned
	namespace network.Namespace
	have      map[string]string // the annotations as they came
	moment    time.Time         // when the creation began, by the API server's clock
	catalog   network.Catalog
	claim     ipam.Claim
	ours      bool // claim is the pod's own, of an earlier call for it
	dryRun    bool
	warnings  []string
}

// identify tells the pod's own claim, of an earlier call for the same creation, from a copy's, which is taken off.
func (c *candidate) identify(ctx context.Context) error {
	if progress := c.progress(); len(progress) > 0 {
		c.warnings = append(c.warnings, fmt.Sprintf("ignored %s: only the worker says so", strings.Join(progress, ", ")))
	}
	if _, ok := c.have[network.ClaimKey]; !ok {
		return nil
	}
	claim, ok := network.ClaimOf(c.have)
	if !ok {
		return nil // the plan takes it for a copy's, and says so
	}
	ours, err := c.isOurs(ctx, claim)
	if err != nil {
		return err
	}
	if ours {
		c.claim, c.ours = claim, true
		return nil
	}
	var dropped []string
	c.pod.Annotations, dropped = network.Strip(c.have)
	c.warnings = append(c.warnings, fmt.Sprintf("%s is another pod's: ignored %s", network.ClaimKey, strings.Join(dropped, ", ")))
	return nil
}

func (c *candidate) progress() []string {
	var out []string
	for k := range c.have {
		if network.Progress(k) {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// isOurs asks the ledger: the cache first, which may say yes, then the blocks themselves.
func (c *candidate) isOurs(ctx context.Context, claim ipam.Claim) (bool, error) {
	held := c.handler.Ledger.ByClaim(claim)
	if len(held) == 0 {
		var subnets []string
		for _, i := range network.Carried(c.have) {
			if c.catalog.Subnets[i.Subnet].Set != nil {
				subnets = append(subnets, i.Subnet)
			}
		}
		if len(subnets) == 0 {
			return false, nil
		}
		if err := c.handler.Ledger.Refresh(ctx, subnets...); err != nil {
			return false, fmt.Errorf("looking for the leases of claim %s: %w", claim, err)
		}
		held = c.handler.Ledger.ByClaim(claim)
	}
	owner := network.OwnerOf(c.pod, c.handler.Config)
	for _, l := range held {
		// One creation ends soon: an older lease without a pod is of another.
		if l.Owner != owner || !owner.Sticky() && (l.PodUID != "" || !c.handler.Ledger.Young(l, creation)) {
			return false, nil
		}
	}
	return len(held) > 0, nil
}

// copied tells whether the pod carries a claim that is not its own.
func (c *candidate) copied() bool {
	_, ok := c.have[network.ClaimKey]
	return ok && !c.ours
}

// without lets a pod through that gets no address, or none yet: the worker gives one when the last foreign gate goes.
func (c *candidate) without(outcome string) *decision {
	d := allowed(outcome, c.warnings...)
	d.patch = jsonpatch.Set(jsonpatch.Annotations, c.have, c.unanswered())
	return d
}

// waiting lets a pod through behind our gate: the worker lifts it when there is an address for the pod.
func (c *candidate) waiting(plan network.Planned, r ipam.Refusal) *decision {
	d := allowed(outcomeWaiting, append(c.warnings, "the pod waits for its address: "+r.Error())...)
	d.reason = r.Reason()
	want := c.unanswered()
	if plan.Requested != "" {
		want[network.RequestedKey] = plan.Requested
	}
	d.patch = slices.Concat(jsonpatch.Set(jsonpatch.Annotations, c.have, want), patchFinalizers(c.pod.Finalizers), patchGates(c.pod.SchedulingGates))
	return d
}

// unanswered are the pod's annotations without what nobody but us may say.
func (c *candidate) unanswered() map[string]string {
	want := map[string]string{}
	copied := c.copied()
	for k, v := range c.have {
		if network.Progress(k) || copied && network.Output(k) {
			continue
		}
		want[k] = v
	}
	return want
}

// allocate takes the leases and writes the patch.
func (c *candidate) allocate(ctx context.Context, plan network.Planned, ns network.Namespace) (*decision, error) {
	h := c.handler
	claim := c.claim
	if !c.ours && !c.dryRun {
		subnet, err := h.guard.stormy(ctx, c.pod.Namespace, plan)
		if err != nil {
			return nil, err
		}
		if subnet != "" {
			return stormed(c.pod, subnet), nil
		}
	}
	if !c.ours {
		var err error
		if claim, err = ipam.NewClaim(h.Random); err != nil {
			return nil, err
		}
	}
	take := h.Ledger.Take
	if c.dryRun {
		take = h.Ledger.Preview
	}
	r := plan.Request(claim, c.ours)
	r.Moment = c.moment
	a, err := take(ctx, r)
	if r, ok := ipam.AsRefusal(err); ok {
		if r.Unavailable() && !c.ours && network.Waits(c.pod, ns, plan) {
			return c.waiting(plan, r), nil
		}
		return unavailable(c.pod, r, c.warnings), nil
	}
	if err != nil {
		return nil, fmt.Errorf("taking addresses for pod %s: %w", c.pod, err)
	}
	d := allowed(outcomeAllocated, c.warnings...)
	ours := network.Annotations(plan, a, c.catalog, h.Config)
	switch {
	case c.dryRun:
		d = allowed(outcomePreview, append(c.warnings, "dry run: the addresses are a preview, nothing was taken")...)
		ours[network.ClaimKey] = network.ClaimPreview
	case c.ours:
		d = allowed(outcomeKept, c.warnings...)
	}
	have := c.have
	if c.copied() {
		have, _ = network.Strip(c.have)
	} else if c.ours {
		have = c.present(a)
	}
	d.patch = append(jsonpatch.Set(jsonpatch.Annotations, c.have, wanted(have, ours)), patchFinalizers(c.pod.Finalizers)...)
	if c.pod.NodeName == "" {
		nodes := network.NodeSelector(a, c.catalog)
		if why := network.Contradicts(c.pod, nodes); why != "" {
			d.warnings = append(d.warnings, why+": it will not be scheduled")
		}
		d.patch = append(d.patch, jsonpatch.Fill(jsonpatch.NodeSelector, c.pod.NodeSelector, nodes)...)
	}
	d.describe(ours[network.ClaimKey], a)
	return d, nil
}

// present are the annotations without those of networks that an earlier call served and that the pod is no longer in,
// because somebody after us took it out: their leases are nobody's then.
func (c *candidate) present(a *ipam.Allocation) map[string]string {
	served := map[string]bool{}
	for _, h := range c.handler.Ledger.ByClaim(c.claim) {
		served[h.Provider] = true
	}
	for _, i := range a.Interfaces {
		delete(served, i.Provider)
	}
	out := maps.Clone(c.have)
	maps.DeleteFunc(out, func(k, _ string) bool {
		provider, _, ok := network.SplitKey(k)
		return ok && served[provider] && network.Output(k)
	})
	return out
}

// describe tells the audit log what was given.
func (d *decision) describe(claim string, a *ipam.Allocation) {
	var subnets, addresses []string
	for _, i := range a.Interfaces {
		subnets = append(subnets, i.Subnet.Name())
		for _, ip := range i.Addresses() {
			addresses = append(addresses, ip.String())
		}
	}
	d.audit[auditClaim] = claim
	d.audit[auditSubnet] = strings.Join(subnets, ",")
	d.audit[auditAddresses] = strings.Join(addresses, ",")
}
