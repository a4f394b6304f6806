// Command soak lets pods come and go on a local cluster for a long time, and fails when anything grows.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/e2e/bench"
)

// errGrows says that something grows; the table tells what.
var errGrows = errors.New("something grows, or is left: the table says what")

// smallSubnet is of no use here, but the cluster has it.
const smallSubnet = 10

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	c, bin := bench.Churn{}, ""
	cmd := &cobra.Command{
		Use: "soak", Short: "Let pods come and go for a long time, and fail when anything grows", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd, c, bin) },
	}
	f := cmd.Flags()
	f.DurationVar(&c.For, "for", time.Hour, "how long")
	f.Float64Var(&c.Rate, "rate", 20, "pods in a second")
	f.DurationVar(&c.Life, "life", 30*time.Second, "how long a pod stays")
	f.DurationVar(&c.WarmUp, "warm-up", 3*time.Minute, "time that is left out of the trends: addresses rest, and caches fill")
	f.DurationVar(&c.Every, "every", 10*time.Second, "time between samples")
	f.Float64Var(&c.Part, "may-grow", 0.1, "part of its start by which the line through a series may grow in all")
	f.StringVar(&bin, "bin", "", "directory of webhook, finalizer-worker and node-agent (default bin of the work tree)")
	return cmd
}

func run(cmd *cobra.Command, c bench.Churn, bin string) error {
	if err := c.Check(); err != nil {
		return err
	}
	ctx := cmd.Context()
	world, err := bench.Start(ctx, bench.Options{Out: cmd.ErrOrStderr(), Tight: smallSubnet, Bin: bin})
	if err != nil {
		return err
	}
	soaked, err := world.Soak(ctx, c)
	if err != nil {
		err = errors.Join(err, world.Explain(cmd.ErrOrStderr()))
	}
	err = errors.Join(err, world.Stop(context.WithoutCancel(ctx)))
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%d pods, node -> routed: p50 %.0f ms, p99 %.0f ms\n\n%s", soaked.Pods, soaked.Connect.P50, soaked.Connect.P99, bench.TrendTable(soaked.Trends))
	for _, l := range soaked.Left {
		text += "left: " + l + "\n"
	}
	if _, err := fmt.Fprint(cmd.OutOrStdout(), text); err != nil {
		return err
	}
	if !soaked.Flat() {
		return errGrows
	}
	return nil
}
