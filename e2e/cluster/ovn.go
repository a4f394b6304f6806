package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/berth-net/berth/e2e/proc"
)

const (
	schemaNB     = "/usr/share/ovn/ovn-nb.ovsschema"
	schemaSB     = "/usr/share/ovn/ovn-sb.ovsschema"
	schemaSwitch = "/usr/share/openvswitch/vswitch.ovsschema"

	portSB = 6642
)

// startOVN starts the central databases, northd, and the switch, the controller and the agent of every node.
func (c *Cluster) startOVN(ctx context.Context) error {
	if err := c.startNorthbound(ctx); err != nil {
		return err
	}
	dir := c.ovnDir()
	if err := c.startDB(ctx, "ovn-sb", dir, "sb", words("create %s %s", filepath.Join(dir, "sb.db"), schemaSB), "--remote="+c.listen(portSB)); err != nil {
		return err
	}
	if _, err := proc.Run(ctx, "", "ovn-sbctl", "--db="+c.SBSocket(), "--timeout=20", "init"); err != nil {
		return err
	}
	from := c.NBSocket()
	if c.NorthboundServers > 1 {
		from = c.NBAddress() // northd finds out that a server hangs only where it probes, which it doesn't at sockets
	}
	err := c.start("ovn-northd", runtimeDir(dir), "ovn-northd", "--ovnnb-db="+from, "--ovnsb-db="+c.SBSocket(),
		"--unixctl="+filepath.Join(dir, "northd.ctl"))
	if err != nil {
		return err
	}
	if c.Underlay {
		if err := c.startUnderlay(ctx); err != nil {
			return err
		}
	}
	group, nodes := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for n := range c.NodeNames() {
		group.Go(func() error { return c.startNode(nodes, n) })
	}
	return group.Wait()
}

// runtimeDir points OVN's and the switch's programs to a directory for their sockets.
func runtimeDir(dir string) []string {
	return []string{"OVS_RUNDIR=" + dir, "OVN_RUNDIR=" + dir, "OVS_LOGDIR=" + dir, "OVN_LOGDIR=" + dir, "OVS_DBDIR=" + dir, "OVN_DBDIR=" + dir}
}

func (c *Cluster) ovnDir() string { return filepath.Join(c.Dir, "ovn") }

// startDB has ovsdb-tool create a database, and serves it on <dir>/<base>.sock and on a further remote, if there is one.
func (c *Cluster) startDB(ctx context.Context, name, dir, base string, create []string, more ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of %s: %w", name, err)
	}
	file, sock := filepath.Join(dir, base+".db"), filepath.Join(dir, base+".sock")
	if _, err := proc.Run(ctx, "", "ovsdb-tool", create...); err != nil {
		return err
	}
	args := append([]string{"ovsdb-server", file, "--remote=punix:" + sock, "--unixctl=" + filepath.Join(dir, base+".ctl")}, more...)
	if err := c.start(name, runtimeDir(dir), args...); err != nil {
		return err
	}
	return c.await(ctx, name, func(context.Context) error { _, err := os.Stat(sock); return err })
}

// startSwitchDB starts the database of a switch.
func (c *Cluster) startSwitchDB(ctx context.Context, name, dir string) error {
	return c.startDB(ctx, name, dir, "db", words("create %s %s", filepath.Join(dir, "db.db"), schemaSwitch))
}

// startNode starts one node: its switch with br-int and br-phy, the OVN controller and the agent.
func (c *Cluster) startNode(ctx context.Context, n int) error {
	name, ip := c.NodeNames()[n], c.nodeIP(n)
	dir, in := c.nodeDir(name), []string{"ip", "netns", "exec", c.nodeNetns(name)}
	if err := c.startSwitchDB(ctx, name+"-ovsdb", dir); err != nil {
		return err
	}
	vsctl := words("ovs-vsctl --db=%s --timeout=30", c.nodeOVSDB(name))
	ids := "external_ids:"
	err := each(ctx, slices.Concat(vsctl, words("--no-wait init")), slices.Concat(vsctl, words(
		"--no-wait set open . %[1]ssystem-id=%[2]s %[1]shostname=%[2]s %[1]sovn-remote=%[3]q %[1]sovn-encap-type=geneve %[1]sovn-encap-ip=%[4]q",
		ids, name, "tcp:"+c.at(portSB), c.tunnelIP(n))))
	if err != nil {
		return err
	}
	err = c.start(name+"-vswitchd", runtimeDir(dir), append(in, "ovs-vswitchd", c.nodeOVSDB(name), "--unixctl="+filepath.Join(dir, "vs.ctl"))...)
	if err != nil {
		return err
	}
	ns := c.nodeNetns(name)
	err = each(ctx,
		slices.Concat(vsctl, words("add-br br-int -- set bridge br-int datapath_type=netdev fail-mode=secure")),
		slices.Concat(vsctl, words("add-br br-phy -- set bridge br-phy datapath_type=netdev -- add-port br-phy uplink")),
		words("ip -n %s addr add %s/%d dev br-phy %s", ns, c.tunnelIP(n), c.Subnet.Bits(), c.nodad()),
		words("ip -n %s link set br-phy up", ns),
		words("ip -n %s link set br-int up", ns))
	if err != nil {
		return err
	}
	if err := c.start(name+"-ovn-controller", runtimeDir(dir), append(in, "ovn-controller", c.nodeOVSDB(name))...); err != nil {
		return err
	}
	// Not 'ip netns exec': its private mounts would hide the namespaces that the agent makes for pods.
	agent := []string{"nsenter", "--net=/run/netns/" + ns, c.NodeBin, "--name=" + name, "--ip=" + ip, "--cluster=" + c.Name, "--dir=" + dir,
		"--log-dir=" + c.LogDir(), "--ovsdb=" + c.nodeOVSDB(name), "--kubeconfig=" + c.nodeKubeconfig(name), "--run=" + c.runMap()}
	return c.start(name+"-agent", nil, append(agent, c.NodeArgs...)...)
}
