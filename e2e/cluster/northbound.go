package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-net/berth/e2e/proc"
)

// The northbound database is one server, or a cluster of several of which one leads.

const (
	northbound = "OVN_Northbound"

	// The ports of the first server, for clients and for the other servers; those of the next are portStep higher.
	portNB     = 6641
	portNBRaft = 6643
	portStep   = 10
)

// NorthboundServer is one server of the northbound database.
type NorthboundServer struct {
	*Process
	// Socket is the server alone, as ovn-nbctl's --db.
	Socket string
	// control is the socket of its commands.
	control string
}

// Command has the server do what ovs-appctl is told, and returns what it says.
func (s NorthboundServer) Command(ctx context.Context, args ...string) (string, error) {
	return proc.Run(ctx, "", "ovs-appctl", append([]string{"--timeout=5", "-t", s.control}, args...)...)
}

// Leads tells whether the server, by its own word, leads the others.
func (s NorthboundServer) Leads(ctx context.Context) (bool, error) {
	out, err := s.Command(ctx, "cluster/status", northbound)
	return strings.Contains(out, "Role: leader"), err
}

// Northbound lists the servers of the northbound database.
func (c *Cluster) Northbound() ([]NorthboundServer, error) {
	servers := make([]NorthboundServer, c.NorthboundServers)
	for n := range servers {
		p, err := c.Process("ovn-" + nbBase(n))
		if err != nil {
			return nil, err
		}
		servers[n] = NorthboundServer{Process: p, Socket: "unix:" + c.nbFile(n, "sock"), control: c.nbFile(n, "ctl")}
	}
	return servers, nil
}

// NBSocket is the northbound database's sockets, as ovn-nbctl's --db.
func (c *Cluster) NBSocket() string {
	return c.eachNB(func(n int) string { return "unix:" + c.nbFile(n, "sock") })
}

// NBAddress is the northbound database as nodes reach it.
func (c *Cluster) NBAddress() string {
	return c.eachNB(func(n int) string { return "tcp:" + c.at(portNB+n*portStep) })
}

func (c *Cluster) eachNB(remote func(n int) string) string {
	remotes := make([]string, c.NorthboundServers)
	for n := range remotes {
		remotes[n] = remote(n)
	}
	return strings.Join(remotes, ",")
}

// nbBase is what the files of a server, counted from 0, are called.
func nbBase(n int) string {
	if n == 0 {
		return "nb"
	}
	return "nb-" + strconv.Itoa(n+1)
}

func (c *Cluster) nbFile(n int, ending string) string {
	return filepath.Join(c.ovnDir(), nbBase(n)+"."+ending)
}

// startNorthbound starts the northbound database.
func (c *Cluster) startNorthbound(ctx context.Context) error {
	for n := range c.NorthboundServers {
		create := words("create %s %s", c.nbFile(n, "db"), schemaNB)
		raft := func(n int) string { return "tcp:" + c.at(portNBRaft+n*portStep) }
		switch {
		case c.NorthboundServers == 1:
		case n == 0:
			create = words("create-cluster %s %s %s", c.nbFile(n, "db"), schemaNB, raft(n))
		default:
			create = words("join-cluster %s %s %s %s", c.nbFile(n, "db"), northbound, raft(n), raft(0))
		}
		if err := c.startDB(ctx, "ovn-"+nbBase(n), c.ovnDir(), nbBase(n), create, "--remote="+c.listen(portNB+n*portStep)); err != nil {
			return err
		}
		// A server that has yet to join must not be met by the next one.
		if _, err := proc.Run(ctx, "", "ovsdb-client", "--timeout=30", "wait", "unix:"+c.nbFile(n, "sock"), northbound, "connected"); err != nil {
			return err
		}
	}
	_, err := proc.Run(ctx, "", "ovn-nbctl", "--db="+c.NBSocket(), "--timeout=20", "init")
	return err
}

// countNorthbound settles how many servers the northbound database has.
func (o *Options) countNorthbound() error {
	if o.NorthboundServers == 0 {
		o.NorthboundServers = 1
	}
	if n := o.NorthboundServers; n < 0 || n > 5 || n%2 == 0 {
		return fmt.Errorf("%d servers of the northbound database don't elect a leader well; take 1, 3 or 5", n)
	}
	return nil
}
