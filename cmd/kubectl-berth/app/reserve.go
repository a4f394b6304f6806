package app

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/facts"
	"github.com/berth-net/berth/internal/report"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// wish is what reserve and release are asked for.
type wish struct {
	subnet    string
	addresses []netip.Addr
	name, mac string
}

func (e *env) reserveCommand() *cobra.Command {
	w := wish{}
	cmd := &cobra.Command{
		Use: "reserve SUBNET ADDRESS --for NAME", Short: "Keep an address for somebody",
		Long: `Keep an address for somebody, by an IP object without finalizers: no pod gets it unasked. ADDRESS may be an IPv4 and an
IPv6 address joined by a comma. It is checked against subnet and ledger first.

NAME becomes the object's. With --namespace it is a pod's: the object is then named as that pod's port in this subnet,
and a pod of that name gets the address.`,
		Example: "  kubectl berth reserve ovn-default 10.16.0.7 --for printer\n  kubectl berth reserve ovn-default 10.16.0.8 --for web-0 -n shop",
		Args:    exactly("SUBNET", "ADDRESS"), ValidArgsFunction: completeArgs(e.subnetNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := w.parse(args); err != nil {
				return err
			}
			if w.name == "" {
				return usagef("--for is missing: say for whom the address is kept")
			}
			c, err := e.connect()
			if err != nil {
				return err
			}
			r, err := c.reserve(cmd.Context(), w)
			if err != nil {
				return err
			}
			return e.write(r)
		},
	}
	cmd.Flags().StringVar(&w.name, "for", "", "for whom: the name of the IP object, or with --namespace of a pod")
	cmd.Flags().StringVar(&w.mac, "mac", "", "MAC to keep with the address")
	return cmd
}

func (e *env) releaseCommand() *cobra.Command {
	w := wish{}
	cmd := &cobra.Command{
		Use: "release SUBNET ADDRESS", Short: "Keep an address for nobody any more",
		Long: `Keep an address for nobody any more: delete the IP object that reserves it. Addresses of pods are not released by this:
delete the pod. A pod that has the address keeps it until it ends.`,
		Example: "  kubectl berth release ovn-default 10.16.0.7",
		Args:    exactly("SUBNET", "ADDRESS"), ValidArgsFunction: completeArgs(e.subnetNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := w.parse(args); err != nil {
				return err
			}
			c, err := e.connect()
			if err != nil {
				return err
			}
			r, err := c.release(cmd.Context(), w)
			if err != nil {
				return err
			}
			return e.write(r)
		},
	}
	return cmd
}

// parse reads the arguments.
func (w *wish) parse(args []string) (err error) {
	w.subnet = args[0]
	if w.addresses, err = network.ParseAddresses(args[1]); err != nil {
		return usagef("%w: write an IP address, or an IPv4 and an IPv6 address joined by a comma", err)
	}
	if len(w.addresses) == 0 {
		return usagef("%q names no address", args[1])
	}
	if w.mac != "" {
		m, err := ipam.ParseMAC(w.mac)
		if err != nil {
			return usagef("--mac: %w", err)
		}
		w.mac = m.String()
	}
	return nil
}

// reserve checks, and makes the object.
func (c *cluster) reserve(ctx context.Context, w wish) (*report.Reservation, error) {
	set, err := c.settings(ctx)
	if err != nil {
		return nil, err
	}
	cat, err := c.topology(ctx)
	if err != nil {
		return nil, err
	}
	ledger, _, err := c.ledger(ctx, set)
	if err != nil {
		return nil, err
	}
	s, ok := cat.Subnets[w.subnet]
	switch {
	case !ok:
		return nil, fmt.Errorf("there is no subnet %s: kubectl berth subnets lists them", w.subnet)
	case s.Err != nil:
		return nil, s.Err
	}
	if err := check(w, s, ledger); err != nil {
		return nil, err
	}
	ip := w.object(*c.flags.Namespace, s)
	if bad := validation.IsDNS1123Subdomain(ip.Name); len(bad) > 0 {
		return nil, usagef("--for=%s makes the name %q, which no object can have: %s", w.name, ip.Name, strings.Join(bad, ", "))
	}
	err = c.client.Create(ctx, ip)
	if apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("there is an IP object %s already: release what it reserves, or choose another name", ip.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("create IP %s: %w", ip.Name, err)
	}
	// A pod may have taken it since it was looked for.
	held, err := c.holders(ctx, w, ip)
	if err != nil {
		return nil, fmt.Errorf("IP %s is made, but whether it came in time is not known: %w", ip.Name, err)
	}
	return report.ReservationOf("reserved", ip.Name, w.subnet, texts(w.addresses), w.mac, held), nil
}

// check tells why an address can't be reserved.
func check(w wish, s network.Subnet, ledger *ipam.Ledger) error {
	for _, a := range w.addresses {
		if err := s.Set.Check(a, ipam.Owner{}); err != nil {
			return fmt.Errorf("%s can't be reserved: %w", a, err)
		}
		if h, leased := ledger.Lookup(w.subnet, a); leased {
			return fmt.Errorf("%s can't be reserved: %w", a, &ipam.HeldError{Subnet: w.subnet, Address: a, Holder: h.Lease})
		}
	}
	return nil
}

// object is the reservation.
func (w wish) object(namespace string, s network.Subnet) *kubeovnv1.IP {
	ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: w.name, Labels: map[string]string{facts.LabelSubnet: w.subnet, w.subnet: ""}},
		Spec: kubeovnv1.IPSpec{PodName: w.name, Namespace: namespace, Subnet: w.subnet, MacAddress: w.mac, IPAddress: strings.Join(texts(w.addresses), ","),
			AttachSubnets: []string{}, AttachIPs: []string{}, AttachMacs: []string{}}}
	if namespace != "" {
		ip.Name = network.PortName(w.name, namespace, s.Provider())
	}
	for _, a := range w.addresses {
		if a.Is4() {
			ip.Spec.V4IPAddress = a.String()
		} else {
			ip.Spec.V6IPAddress = a.String()
		}
	}
	return ip
}

// release finds the reservation of the addresses and deletes it.
func (c *cluster) release(ctx context.Context, w wish) (*report.Reservation, error) {
	var list kubeovnv1.IPList
	if err := c.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list IP objects: %w", err)
	}
	var found *kubeovnv1.IP
	for i := range list.Items {
		ip := &list.Items[i]
		have, err := network.ParseAddresses(ip.Spec.V4IPAddress + "," + ip.Spec.V6IPAddress)
		if err == nil && ip.Spec.Subnet == w.subnet && slices.ContainsFunc(w.addresses, func(a netip.Addr) bool { return slices.Contains(have, a) }) {
			found = ip
			w.addresses = have // they go together
			break
		}
	}
	switch {
	case found == nil:
		return nil, fmt.Errorf("no IP object reserves %s in subnet %s: kubectl berth who tells who has it", w.addresses[0], w.subnet)
	case !facts.Reservation(found) || len(found.OwnerReferences) > 0:
		return nil, fmt.Errorf("IP object %s is no reservation but a record of what has the address: delete that instead", found.Name)
	}
	held, err := c.holders(ctx, w, found)
	if err != nil {
		return nil, err
	}
	err = c.client.Delete(ctx, found, client.Preconditions{UID: &found.UID, ResourceVersion: &found.ResourceVersion})
	if apierrors.IsConflict(err) {
		return nil, fmt.Errorf("IP object %s has just changed: look at it, and try again: %w", found.Name, err)
	}
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("delete IP %s: %w", found.Name, err)
	}
	return report.ReservationOf("released", found.Name, w.subnet, texts(w.addresses), found.Spec.MacAddress, held), nil
}

// holders tells which pods keep the addresses although nobody reserves them.
func (c *cluster) holders(ctx context.Context, w wish, ip *kubeovnv1.IP) (string, error) {
	ledger, _, err := c.ledger(ctx, settings{})
	if err != nil {
		return "", err
	}
	for _, a := range w.addresses {
		h, leased := ledger.Lookup(w.subnet, a)
		if leased && !h.Owner.Reserves() {
			return fmt.Sprintf("%s stays with %s until that ends.", a, h.Owner), nil
		}
	}
	if !slices.Contains(ip.Finalizers, "kubeovn.io/kube-ovn-controller") {
		return "", nil
	}
	return "kube-ovn-controller takes it back.", nil
}

func texts(as []netip.Addr) []string {
	out := make([]string, 0, len(as))
	for _, a := range as {
		out = append(out, a.String())
	}
	return out
}
