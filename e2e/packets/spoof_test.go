//go:build e2e

package packets

import (
	"net"
	"net/netip"
	"testing"
)

// nobody is a MAC that no port has.
func nobody() net.HardwareAddr { return net.HardwareAddr{0x0a, 0x58, 0xde, 0xad, 0xbe, 0xef} }

// TestPortSecurity sends frames with addresses that aren't the sender's: with port security they are not heard, without
// they are.
func TestPortSecurity(t *testing.T) { checkPortSecurity(t, start(t)) }

func checkPortSecurity(t *testing.T, h *harness) {
	ctx := t.Context()
	ns := h.namespace(t, "spoof")
	h.make(t, h.subnet("spoof", 44))
	pods := h.pods(t, ns, map[string][]podOption{
		"victim":    {in("spoof"), on("node-1")},
		"secured":   {in("spoof"), on("node-1"), with("port_security", "true")},
		"secured-2": {in("spoof"), on("node-2"), with("port_security", "true")},
		"open":      {in("spoof"), on("node-2")},
	})
	victim := pods["victim"]
	ear := victim.listen(t)
	for _, v4 := range h.families() {
		other := netip.MustParseAddr("fd00:10:44::99")
		if v4 {
			other = netip.MustParseAddr("10.44.0.99")
		}
		for _, from := range []*place{pods["secured"], pods["secured-2"], pods["open"]} {
			word := from.name + "-" + other.String()
			address, mac := plain(from, victim, v4, word+"-address"), plain(from, victim, v4, word+"-mac")
			address.from, mac.fromMAC = other, nobody()
			if from == pods["open"] {
				ear.await(ctx, t, from, address)
				ear.await(ctx, t, from, mac)
				continue
			}
			for range 3 {
				from.send(t, address)
				from.send(t, mac)
			}
			ear.await(ctx, t, from, plain(from, victim, v4, word+"-own"))
			if ear.heard(address.word) {
				t.Errorf("%s is heard with address %s, which is not its own", from.name, other)
			}
			if ear.heard(mac.word) {
				t.Errorf("%s is heard with MAC %s, which is not its own", from.name, nobody())
			}
		}
	}
}

// TestPortSecurityChanges turns port security on and off again on a pod that runs.
func TestPortSecurityChanges(t *testing.T) { checkPortSecurityChanges(t, start(t)) }

func checkPortSecurityChanges(t *testing.T, h *harness) {
	ctx := t.Context()
	ns := h.namespace(t, "guard")
	h.make(t, h.subnet("guard", 45))
	pods := h.pods(t, ns, map[string][]podOption{"victim": {in("guard")}, "sender": {in("guard")}})
	victim, sender := pods["victim"], pods["sender"]
	ear := victim.listen(t)
	v4 := h.families()[0]
	other := netip.MustParseAddr(h.ofFamilies("10.44.0.99", "fd00:10:44::99")[0])
	spoofed := func(word string) frame {
		f := plain(sender, victim, v4, word)
		f.from = other
		return f
	}
	ear.await(ctx, t, sender, spoofed("before"))
	h.annotate(t, sender, "port_security", "true")
	n := 0
	sender.loses(ctx, t, "the victim with another address", func() error {
		n++
		word := string(rune('a' + n))
		sender.send(t, spoofed("on-"+word))
		ear.await(ctx, t, sender, plain(sender, victim, v4, "own-"+word))
		if ear.heard("on-" + word) {
			return nil
		}
		return errSilence
	})
	h.annotate(t, sender, "port_security", "false")
	ear.await(ctx, t, sender, spoofed("off"))
}

// TestLayer2Forward sends frames to a MAC that no port has: only a pod that forwards hears them.
func TestLayer2Forward(t *testing.T) { checkLayer2Forward(t, start(t)) }

func checkLayer2Forward(t *testing.T, h *harness) {
	ctx := t.Context()
	ns := h.namespace(t, "bridge")
	h.make(t, h.subnet("bridge", 46))
	pods := h.pods(t, ns, map[string][]podOption{
		"sender":  {in("bridge"), on("node-1")},
		"forward": {in("bridge"), on("node-2"), with("layer2_forward", "true")},
		"plain":   {in("bridge"), on("node-2")},
	})
	sender, forward, other := pods["sender"], pods["forward"], pods["plain"]
	forwardEar, otherEar := forward.listen(t), other.listen(t)
	for _, v4 := range h.families() {
		f := plain(sender, forward, v4, "unknown-"+sender.of(v4).String())
		f.toMAC = nobody()
		forwardEar.await(ctx, t, sender, f)
		otherEar.await(ctx, t, sender, plain(sender, other, v4, "own-"+sender.of(v4).String()))
		if otherEar.heard(f.word) {
			t.Errorf("%s hears a frame to %s without layer2_forward", other.name, nobody())
		}
	}
}
