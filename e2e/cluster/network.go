package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/e2e/proc"
)

// The machine network: a bridge in the host's namespace with the host's address, and two links into each node's
// namespace. 'machine' holds the node's address, by which it and its host-network pods talk to the control plane.
// 'uplink' is a port of the userspace switch's br-phy, which holds the address of the node's tunnels. One link for both
// works too, but then every packet between API server and webhook passes the switch, whose thread stands still while
// it adds ports: with 30 pods starting, a ping took 9 ms on average and 183 ms at worst.

// makeNetwork chooses a free range and makes the bridge and the nodes' namespaces.
func (c *Cluster) makeNetwork(ctx context.Context) error {
	unlock, err := lockNetworks()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := net.InterfaceByName(c.bridge()); err == nil {
		return fmt.Errorf("a cluster named %q has links on this machine; take it down (down --name %s) or choose another name", c.Name, c.Name)
	}
	if c.Subnet, err = freeSubnet(c.Family); err != nil {
		return err
	}
	if err := c.save(); err != nil {
		return err
	}
	err = each(ctx,
		words("ip link add %s type bridge", c.bridge()),
		words("ip addr add %s/%d dev %s %s", c.hostIP(), c.Subnet.Bits(), c.bridge(), c.nodad()),
		words("ip link set %s up", c.bridge()))
	if err != nil {
		return err
	}
	for n, name := range c.NodeNames() {
		ns, machine, tunnel := c.nodeNetns(name), c.Name+machineLink+strconv.Itoa(n+1), c.Name+tunnelLink+strconv.Itoa(n+1)
		err := each(ctx,
			words("ip netns add %s", ns),
			words("ip -n %s link set lo up", ns),
			words("ip link add %s master %s up type veth peer name machine netns %s", machine, c.bridge(), ns),
			words("ip -n %s addr add %s/%d dev machine %s", ns, c.nodeIP(n), c.Subnet.Bits(), c.nodad()),
			words("ip -n %s link set machine up", ns),
			words("ip link add %s master %s up type veth peer name uplink netns %s", tunnel, c.bridge(), ns),
			// Packets must carry their checksums where the userspace switch reads them.
			words("ethtool -K %s tx off", tunnel),
			words("ip netns exec %s ethtool -K uplink tx off", ns),
			words("ip -n %s link set uplink up", ns))
		if err != nil {
			return err
		}
	}
	return nil
}

// What follows the cluster's name in the names of the links to nodes, before the node's number.
const (
	machineLink = "-n"
	tunnelLink  = "-t"
)

// lockNetworks keeps two clusters from choosing one range.
func lockNetworks() (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(os.TempDir(), "berth-cluster-network.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the choice of a network: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock the choice of a network: %w", err)
	}
	return func() { _ = file.Close() }, nil
}

// freeSubnet returns the first network of the family for machines that no interface of this machine is in.
func freeSubnet(f Family) (netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("list this machine's addresses: %w", err)
	}
	var used []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			used = append(used, p)
		}
	}
	return firstFree(f, used)
}

func firstFree(f Family, used []netip.Prefix) (netip.Prefix, error) {
next:
	for n := range 256 {
		p := f.machines(n)
		for _, u := range used {
			if p.Overlaps(u) {
				continue next
			}
		}
		return p, nil
	}
	return netip.Prefix{}, fmt.Errorf("no free network beside %s; take other clusters down", f.machines(0))
}

// Cleanup removes network namespaces and links that carry a cluster's name, for when its directory is lost.
func Cleanup(ctx context.Context, name string) error { return removeNetwork(ctx, name) }

// removeNetwork removes the namespaces of nodes and pods, with whatever still runs in them, and the bridge.
func removeNetwork(ctx context.Context, name string) error {
	entries, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list network namespaces: %w", err)
	}
	var errs []error
	for _, e := range entries {
		ns := e.Name()
		if !strings.HasPrefix(ns, name+"-node-") && !strings.HasPrefix(ns, name+"-pod-") && !strings.HasPrefix(ns, name+outsideNetns) {
			continue
		}
		proc.KillNetns(ctx, ns)
		_, err := proc.Run(ctx, "", "ip", "netns", "del", ns)
		errs = append(errs, err)
	}
	links, err := net.Interfaces()
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("list links: %w", err))...)
	}
	for _, l := range links {
		for _, kind := range []string{machineLink, tunnelLink} {
			number, ok := strings.CutPrefix(l.Name, name+kind)
			if _, err := strconv.Atoi(number); ok && err == nil {
				_, _ = proc.Run(ctx, "", "ip", "link", "del", l.Name) // its end in the namespace may have taken it along
			}
		}
	}
	if _, err := net.InterfaceByName(name + "-br"); err == nil {
		_, err := proc.Run(ctx, "", "ip", "link", "del", name+"-br")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
