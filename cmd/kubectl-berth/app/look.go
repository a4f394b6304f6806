package app

import (
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/pkg/ipam"
)

func (e *env) subnetsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "subnets", Short: "Count the addresses of every subnet",
		Long: `Count the addresses of every subnet, by family.

free + leased + excluded = size, and leased = bound + pending + reserved. Size counts what may be leased at all: no
network, broadcast or gateway. Bound leases are pods', pending ones have no pod yet, reserved ones are a Vip's, an IP
object's, a node's or an interconnection's. Resting addresses are free and were somebody's a short while ago. With -o
wide, each IPPool has a row, and what belongs to none.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := e.connect()
			if err != nil {
				return err
			}
			s, err := c.settings(cmd.Context())
			if err != nil {
				return err
			}
			cat, err := c.topology(cmd.Context())
			if err != nil {
				return err
			}
			ledger, _, err := c.ledger(cmd.Context(), s)
			if err != nil {
				return err
			}
			return e.write(report.SubnetsOf(cat, ledger))
		},
	}
}

func (e *env) leasesCommand() *cobra.Command {
	var f report.LeaseFilter
	cmd := &cobra.Command{
		Use: "leases", Short: "List leases: who has which address",
		Long: `List leases: who has which address. All namespaces are listed, unless --namespace names one.

A lease is bound when a pod has it, pending when none has it yet (or none any more), and reserved when somebody has it
who is no pod.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.Namespace = *e.flags.Namespace
			c, err := e.connect()
			if err != nil {
				return err
			}
			ledger, _, err := c.ledger(cmd.Context(), settings{})
			if err != nil {
				return err
			}
			return e.write(report.LeasesOf(ledger.Leases(), f))
		},
	}
	cmd.Flags().StringVar(&f.Subnet, "subnet", "", "only leases of this subnet")
	cmd.Flags().BoolVar(&f.Pending, "pending", false, "only leases that no pod is bound to")
	e.complete(cmd, "subnet", e.subnetNames)
	return cmd
}

func (e *env) whoCommand() *cobra.Command {
	return &cobra.Command{
		Use: "who ADDRESS|MAC", Short: "Tell who has an address",
		Long: `Tell who has an IP address or a MAC: the pod, the owner that comes back to it, or what it is kept for; and where
nobody has it, when it was freed last. Exits with 3 when nobody has it.`,
		Example: "  kubectl berth who 10.16.0.7\n  kubectl berth who 0a:58:0a:10:00:07",
		Args:    exactly("ADDRESS|MAC"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			a, notAddress := netip.ParseAddr(args[0])
			m, notMAC := ipam.ParseMAC(args[0])
			if notAddress != nil && notMAC != nil {
				return usagef("%q is neither an IP address nor a MAC of an interface: write it like 10.16.0.7 or 0a:58:0a:10:00:07", args[0])
			}
			c, err := e.connect()
			if err != nil {
				return err
			}
			cat, err := c.topology(cmd.Context())
			if err != nil {
				return err
			}
			ledger, blocks, err := c.ledger(cmd.Context(), settings{})
			if err != nil {
				return err
			}
			who := report.WhoHasMAC(m, cat, ledger)
			if notAddress == nil {
				who = report.WhoHasAddress(a, cat, ledger, blocks)
			}
			if err := e.write(who); err != nil {
				return err
			}
			if !who.Found() {
				return foundError{}
			}
			return nil
		},
	}
}
