package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/berth-net/berth/e2e/proc"
)

// The physical network: a switch of its own in a namespace of its own, with a link into each node's namespace that
// passes every VLAN, and an access port into each namespace that Outside makes. It is not the kernel's bridge, which
// knows VLANs only with a module that not every machine has.

// PhysicalNIC is the nodes' interface to the physical network, for the defaultInterface of a ProviderNetwork.
const PhysicalNIC = "phys"

// outsideNetns is what follows the cluster's name in the names of the physical network's namespaces.
const outsideNetns = "-out-"

const physicalSwitch = "br-x"

func (c *Cluster) switchNetns() string { return c.Name + outsideNetns + "switch" }
func (c *Cluster) switchDir() string   { return filepath.Join(c.Dir, "physical") }

// switchCommand is a command for the physical switch.
func (c *Cluster) switchCommand(format string, args ...any) []string {
	return slices.Concat(words("ovs-vsctl --db=unix:%s/db.sock --timeout=30", c.switchDir()), words(format, args...))
}

// startUnderlay starts the physical network and plugs the nodes in.
func (c *Cluster) startUnderlay(ctx context.Context) error {
	if err := c.startSwitchDB(ctx, "physical-ovsdb", c.switchDir()); err != nil {
		return err
	}
	err := each(ctx,
		words("ip netns add %s", c.switchNetns()),
		words("ip -n %s link set lo up", c.switchNetns()),
		c.switchCommand("--no-wait init"))
	if err != nil {
		return err
	}
	dir := c.switchDir()
	err = c.start("physical-vswitchd", runtimeDir(dir), "ip", "netns", "exec", c.switchNetns(), "ovs-vswitchd",
		"unix:"+filepath.Join(dir, "db.sock"), "--unixctl="+filepath.Join(dir, "vs.ctl"))
	if err != nil {
		return err
	}
	if err := each(ctx, c.switchCommand("add-br %[1]s -- set bridge %[1]s datapath_type=netdev", physicalSwitch)); err != nil {
		return err
	}
	for n, name := range c.NodeNames() {
		if err := c.plug(ctx, "node"+strconv.Itoa(n+1), c.nodeNetns(name), PhysicalNIC, 0); err != nil {
			return err
		}
	}
	return nil
}

// plug links a namespace to the physical network: to one VLAN, or with 0 to all of them.
func (c *Cluster) plug(ctx context.Context, port, netns, nic string, vlan int) error {
	add := c.switchCommand("add-port %s %s", physicalSwitch, port)
	if vlan > 0 {
		add = append(add, "tag="+strconv.Itoa(vlan))
	}
	return each(ctx,
		words("ip link add %s netns %s type veth peer name %s netns %s", port, c.switchNetns(), nic, netns),
		// Packets must carry their checksums where the userspace switch reads them.
		words("ip netns exec %s ethtool -K %s tx off", c.switchNetns(), port),
		words("ip netns exec %s ethtool -K %s tx off", netns, nic),
		words("ip -n %s link set %s up", c.switchNetns(), port),
		words("ip -n %s link set %s up", netns, nic),
		add)
}

// Outside makes a network namespace that is neither a node nor a pod, whose eth0 is in a VLAN of the physical network,
// and returns its name. VLAN 0 is untagged, number tells several namespaces apart. Down removes it.
func (c *Cluster) Outside(ctx context.Context, number, vlan int) (netns string, err error) {
	if !c.Underlay {
		return "", errors.New("this cluster has no physical network; start it with Underlay")
	}
	netns = c.Name + outsideNetns + strconv.Itoa(number)
	if err := each(ctx, words("ip netns add %s", netns), words("ip -n %s link set lo up", netns)); err != nil {
		return "", err
	}
	return netns, c.plug(ctx, "out"+strconv.Itoa(number), netns, "eth0", vlan)
}

// RemoveOutside removes what Outside made.
func (c *Cluster) RemoveOutside(ctx context.Context, number int) error {
	err := each(ctx, c.switchCommand("--if-exists del-port %s out%d", physicalSwitch, number))
	if _, del := proc.Run(ctx, "", "ip", "netns", "del", c.Name+outsideNetns+strconv.Itoa(number)); del != nil {
		return errors.Join(err, fmt.Errorf("remove a machine outside: %w", del))
	}
	return err
}
