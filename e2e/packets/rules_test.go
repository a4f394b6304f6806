//go:build e2e

package packets

import (
	"net/netip"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// rule is a rule of one family; one about TCP or UDP is about the service's port.
func rule(v4 bool, priority int, protocol, remote, policy string) kubeovnv1.SecurityGroupRule {
	r := kubeovnv1.SecurityGroupRule{IPVersion: "ipv6", Priority: priority, Protocol: protocol, RemoteType: "address", RemoteAddress: remote, Policy: policy}
	if v4 {
		r.IPVersion = "ipv4"
	}
	if protocol == "tcp" || protocol == "udp" {
		r.PortRangeMin, r.PortRangeMax = servicePort, servicePort
	}
	return r
}

func anywhere(v4 bool) string {
	if v4 {
		return "0.0.0.0/0"
	}
	return "::/0"
}

// TestSecurityGroup lets through what the rules of a pod's group allow, and no more, while rules and pod change.
func TestSecurityGroup(t *testing.T) { checkSecurityGroup(t, start(t)) }

func checkSecurityGroup(t *testing.T, h *harness) {
	ctx := t.Context()
	ns := h.namespace(t, "guarded")
	h.make(t, h.subnet("guarded", 60))
	h.make(t, h.subnet("guarded-peers", 61))
	group := &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: "guarded-web"}}
	for _, v4 := range h.families() {
		group.Spec.IngressRules = append(group.Spec.IngressRules, rule(v4, 10, "tcp", anywhere(v4), "allow"))
		group.Spec.EgressRules = append(group.Spec.EgressRules, rule(v4, 10, "all", anywhere(v4), "allow"))
	}
	h.make(t, group)
	pods := h.pods(t, ns, map[string][]podOption{
		"web":    {in("guarded"), on("node-1"), with("security_groups", group.Name)},
		"member": {in("guarded"), on("node-2"), with("security_groups", group.Name)},
		"near":   {in("guarded"), on("node-1")},
		"far":    {in("guarded-peers"), on("node-2")},
	})
	web, member, near, far := pods["web"], pods["member"], pods["near"], pods["far"]
	near.serve(t, servicePort)
	web.serve(t, servicePort)
	web.serve(t, servicePort+1)
	var silence sync.WaitGroup
	for _, v4 := range h.families() {
		a := web.of(v4)
		for _, p := range []*place{near, far, member} {
			p.hears(ctx, t, "tcp", a, servicePort, web.name)
			silence.Go(func() {
				p.neverHears(ctx, t, "tcp", a, servicePort+1)
				p.neverHears(ctx, t, "udp", a, servicePort)
				p.neverReaches(ctx, t, a)
			})
		}
		web.hears(ctx, t, "udp", near.of(v4), servicePort, near.name) // answers come back
	}
	silence.Wait()
	t.Run("rules change", func(t *testing.T) {
		change(ctx, t, h, group, func(g *kubeovnv1.SecurityGroup) {
			for _, v4 := range h.families() {
				g.Spec.IngressRules = append(g.Spec.IngressRules, rule(v4, 20, "icmp", anywhere(v4), "allow"),
					rule(v4, 5, "tcp", far.of(v4).String(), "drop"))
			}
		})
		for _, v4 := range h.families() {
			a := web.of(v4)
			near.reaches(ctx, t, a)
			far.loses(ctx, t, "the service", func() error { _, _, err := far.ask(ctx, "tcp", a, servicePort); return err })
			near.hears(ctx, t, "tcp", a, servicePort, web.name)
		}
	})
	t.Run("members among each other", func(t *testing.T) {
		change(ctx, t, h, group, func(g *kubeovnv1.SecurityGroup) { g.Spec.AllowSameGroupTraffic = true })
		for _, v4 := range h.families() {
			member.hears(ctx, t, "tcp", web.of(v4), servicePort+1, web.name)
			near.neverHears(ctx, t, "tcp", web.of(v4), servicePort+1)
		}
	})
	t.Run("pod leaves the group", func(t *testing.T) {
		h.annotate(t, web, "security_groups", "")
		for _, v4 := range h.families() {
			far.hears(ctx, t, "tcp", web.of(v4), servicePort+1, web.name)
			far.hears(ctx, t, "udp", web.of(v4), servicePort, web.name)
		}
	})
}

// TestPrivateSubnet keeps a private subnet to itself and to those that it allows, while these change.
func TestPrivateSubnet(t *testing.T) { checkPrivateSubnet(t, start(t)) }

func checkPrivateSubnet(t *testing.T, h *harness) {
	ctx := t.Context()
	ns := h.namespace(t, "private")
	h.make(t, h.subnet("private-friend", 63))
	h.make(t, h.subnet("private-other", 64))
	private := h.subnet("private", 62)
	private.Spec.Private, private.Spec.AllowSubnets = true, h.ofFamilies("10.63.0.0/24", "fd00:10:63::/120")
	h.make(t, private)
	pods := h.pods(t, ns, map[string][]podOption{
		"inside": {in("private"), on("node-1")}, "beside": {in("private"), on("node-2")},
		"friend": {in("private-friend"), on("node-2")}, "other": {in("private-other"), on("node-2")},
	})
	inside, beside, friend, other := pods["inside"], pods["beside"], pods["friend"], pods["other"]
	beside.reaches(ctx, t, inside.addresses...)
	friend.reaches(ctx, t, inside.addresses...)
	inside.reaches(ctx, t, friend.addresses...)
	other.neverReaches(ctx, t, inside.addresses...)
	other.reaches(ctx, t, friend.addresses...)

	change(ctx, t, h, private, func(s *kubeovnv1.Subnet) { s.Spec.AllowSubnets = h.ofFamilies("10.64.0.0/24", "fd00:10:64::/120") })
	other.reaches(ctx, t, inside.addresses...)
	for _, a := range inside.addresses {
		friend.loses(ctx, t, "the private subnet", func() error { return friend.ping(ctx, a) })
	}
	change(ctx, t, h, private, func(s *kubeovnv1.Subnet) { s.Spec.Private = false })
	friend.reaches(ctx, t, inside.addresses...)
}

// TestSubnetACLs drops by an ACL of the subnet what comes from one address.
func TestSubnetACLs(t *testing.T) { checkSubnetACLs(t, start(t)) }

func checkSubnetACLs(t *testing.T, h *harness) {
	ctx := t.Context()
	ns := h.namespace(t, "acls")
	s := h.subnet("acls", 65)
	h.make(t, s)
	pods := h.pods(t, ns, map[string][]podOption{"target": {in("acls")}, "banned": {in("acls")}, "good": {in("acls")}})
	target, banned, good := pods["target"], pods["banned"], pods["good"]
	banned.reaches(ctx, t, target.addresses...)
	change(ctx, t, h, s, func(s *kubeovnv1.Subnet) {
		for _, a := range banned.addresses {
			s.Spec.ACLs = append(s.Spec.ACLs, kubeovnv1.ACL{Direction: "to-lport", Priority: 1100, Match: matchSource(a), Action: "drop"})
		}
	})
	for _, a := range target.addresses {
		banned.loses(ctx, t, "the target", func() error { return banned.ping(ctx, a) })
	}
	good.reaches(ctx, t, target.addresses...)
	change(ctx, t, h, s, func(s *kubeovnv1.Subnet) { s.Spec.ACLs = nil })
	banned.reaches(ctx, t, target.addresses...)
}

func matchSource(a netip.Addr) string {
	if a.Is4() {
		return "ip4.src == " + a.String()
	}
	return "ip6.src == " + a.String()
}
