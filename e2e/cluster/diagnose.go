package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-net/berth/e2e/proc"
)

// Diagnose asks every part of OVN what it has, for a test that has waited for packets in vain: what is wanted, what the
// controllers have heard of, how far they are, and what the switches do with packets. What fails is told in place.
func (c *Cluster) Diagnose(ctx context.Context) string {
	nb, sb := "ovn-nbctl --timeout=5 --db="+c.NBSocket(), "ovn-sbctl --timeout=5 --db="+c.SBSocket()
	lines := []string{
		nb + " --wait=hv sync",
		nb + " show",
		nb + " --columns=nb_cfg,sb_cfg,hv_cfg,options list NB_Global",
		sb + " --columns=name,nb_cfg list Chassis_Private",
		sb + " --columns=tunnel_key,external_ids list Datapath_Binding",
		sb + " --format=csv --columns=logical_port,type,tunnel_key,chassis,up,mac list Port_Binding",
	}
	for _, name := range c.NodeNames() {
		dir, in := c.nodeDir(name), "ip netns exec "+c.nodeNetns(name)
		lines = append(lines, "ovs-vsctl --timeout=5 --db="+c.nodeOVSDB(name)+" show", in+" ip addr", in+" ip neigh")
		for _, command := range []string{"upcall/show", "tnl/neigh/show", "tnl/ports/show", "dpctl/show", "dpctl/dump-flows", "coverage/show"} {
			lines = append(lines, "ovs-appctl --timeout=5 -t "+filepath.Join(dir, "vs.ctl")+" "+command)
		}
	}
	var said strings.Builder
	for _, line := range lines {
		short, cancel := context.WithTimeout(ctx, 6*time.Second)
		out, err := proc.Run(short, "", strings.Fields(line)[0], strings.Fields(line)[1:]...)
		cancel()
		fmt.Fprintf(&said, "--- %s\n%s\n", line, out)
		if err != nil {
			fmt.Fprintln(&said, err)
		}
	}
	return said.String()
}
