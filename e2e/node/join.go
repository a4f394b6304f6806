package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-net/berth/e2e/proc"
)

// nodePort is the interface by which the node itself is on the pods' network.
const nodePort = "ovn0"

// join puts the node itself on the pods' network once its annotations say where, and keeps the routes to the subnets
// of the default router. What is in place already is not touched.
func (a *Agent) join(ctx context.Context, node *corev1.Node) error {
	own := annotations{node.Annotations, defaultProvider}
	port := own.get("port_name")
	if own.get("allocated") != "true" || port == "" {
		return nil
	}
	addresses, err := own.prefixes()
	if err != nil {
		return err
	}
	gateways, err := own.gateways(addresses)
	if err != nil {
		return err
	}
	cidrs, err := a.podCIDRs(ctx)
	if err != nil {
		return err
	}
	batch := joinBatch(own.get("mac_address"), a.cfg.MTU, addresses, gateways, cidrs)
	if batch == a.joined {
		return nil
	}
	// Waits for the switch: the interface must be there for what follows.
	_, err = a.sandboxes.vsctl(ctx, "--timeout=10", "--may-exist", "add-port", "br-int", nodePort, "--", "set", "interface", nodePort,
		"type=internal", "external_ids:iface-id="+port, `external_ids:ip="`+own.get("ip_address")+`"`)
	if err != nil {
		return err
	}
	if _, err := proc.Run(ctx, batch, "ip", "-batch", "-"); err != nil {
		return err
	}
	a.joined = batch
	return nil
}

// joinBatch is the input of ip that sets the node's interface up.
func joinBatch(mac string, mtu int, addresses []netip.Prefix, gateways []netip.Addr, cidrs []netip.Prefix) string {
	var b strings.Builder
	fmt.Fprintf(&b, "link set %s address %s mtu %d up\n", nodePort, mac, mtu)
	for _, p := range addresses {
		nodad := ""
		if p.Addr().Is6() {
			nodad = " nodad"
		}
		fmt.Fprintf(&b, "addr replace %s dev %s%s\n", p, nodePort, nodad)
	}
	for _, cidr := range cidrs {
		for _, gw := range gateways {
			if gw.Is4() == cidr.Addr().Is4() {
				fmt.Fprintf(&b, "route replace %s via %s dev %s\n", cidr, gw, nodePort)
			}
		}
	}
	return b.String()
}

// podCIDRs lists the ranges of the OVN subnets behind the default router, the node's own excepted.
func (a *Agent) podCIDRs(ctx context.Context) ([]netip.Prefix, error) {
	list, err := a.objects.Resource(kubeOVN("subnets")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Subnets: %w", err)
	}
	var out []netip.Prefix
	var errs []error
	for _, o := range list.Items {
		text := func(key string) string { s, _, _ := unstructured.NestedString(o.Object, "spec", key); return s }
		vpc, provider := text("vpc"), text("provider")
		if o.GetName() == "join" || vpc != "" && vpc != "ovn-cluster" || provider != "" && provider != defaultProvider || text("vlan") != "" {
			continue
		}
		for _, s := range strings.Split(text("cidrBlock"), ",") {
			cidr, err := netip.ParsePrefix(strings.TrimSpace(s))
			if err != nil {
				errs = append(errs, fmt.Errorf("subnet %s: cidrBlock: %w", o.GetName(), err))
				continue
			}
			out = append(out, cidr.Masked())
		}
	}
	return out, errors.Join(errs...)
}
