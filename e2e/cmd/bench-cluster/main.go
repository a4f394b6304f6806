// Command bench-cluster measures Berth on a local cluster beside the same cluster without it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/e2e/bench"
)

// options are the flags.
type options struct {
	sizes   bench.Sizes
	parts   []string
	json    string
	append  string
	bin     string
	hook    bool
	timeout time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench-cluster:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	o := options{sizes: bench.DefaultSizes()}
	cmd := &cobra.Command{
		Use: "bench-cluster", Short: "Measure Berth on a local cluster", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		Long: "Measure Berth on a local cluster beside the same cluster without it. Needs root. The budgets are about the sizes that are the defaults.",
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.parts, "parts", []string{"a", "b", "c", "d", "e"}, "a: without Berth; b: with it; c: a full subnet; d: many pods; e: a large ledger")
	f.IntVar(&o.sizes.Pods, "pods", o.sizes.Pods, "pods of a burst")
	f.IntVar(&o.sizes.Creates, "creates", o.sizes.Creates, "pods of one measurement of CREATE")
	f.IntSliceVar(&o.sizes.Clients, "clients", o.sizes.Clients, "clients that create at once, one measurement each")
	f.IntVar(&o.sizes.Singles, "singles", o.sizes.Singles, "pods one after the other")
	f.IntVar(&o.sizes.Runs, "runs", o.sizes.Runs, "runs without Berth before, with it, and without it after")
	f.IntVar(&o.sizes.Addresses, "addresses", o.sizes.Addresses, "addresses of the subnet that is filled")
	f.IntVar(&o.sizes.Held, "held", o.sizes.Held, "pods of the filled cluster")
	f.IntVar(&o.sizes.Leases, "leases", o.sizes.Leases, "leases of the large ledger")
	f.StringVar(&o.json, "json", "", "file for the figures as JSON")
	f.StringVar(&o.append, "append", "", "page to add the report to, docs/benchmarks.md say")
	f.StringVar(&o.bin, "bin", "", "directory of webhook, finalizer-worker and node-agent (default bin of the work tree)")
	f.BoolVar(&o.hook, "bind-hook", false, "have the API server ask the worker about bindings")
	f.DurationVar(&o.timeout, "timeout", 2*time.Hour, "time for all of it")
	return cmd
}

func (o *options) run(cmd *cobra.Command) (err error) {
	parts := map[string]bool{}
	for _, p := range o.parts {
		if !strings.Contains("abcde", p) || len(p) != 1 {
			return fmt.Errorf("--parts: there is no part %q, take some of a,b,c,d,e", p)
		}
		parts[p] = true
	}
	report, err := bench.NewReport(o.sizes)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	defer cancel()
	world, err := bench.Start(ctx, bench.Options{Out: cmd.ErrOrStderr(), Tight: o.sizes.Addresses, Bin: o.bin, BindHook: o.hook})
	if err != nil {
		return err
	}
	measured := world.Measure(ctx, report, parts)
	if measured != nil {
		measured = errors.Join(measured, world.Explain(cmd.ErrOrStderr()))
	}
	return errors.Join(measured, o.tell(cmd, report, measured == nil), world.Stop(context.WithoutCancel(ctx)))
}

// tell prints the report, and keeps one that is complete.
func (o *options) tell(cmd *cobra.Command, r *bench.Report, complete bool) error {
	text := bench.Markdown(r)
	if _, err := fmt.Fprint(cmd.OutOrStdout(), text); err != nil {
		return err
	}
	if o.json != "" {
		out, err := json.MarshalIndent(r, "", " ")
		if err == nil {
			err = os.WriteFile(o.json, append(out, '\n'), 0o644)
		}
		if err != nil {
			return fmt.Errorf("write the figures: %w", err)
		}
	}
	if o.append == "" || !complete {
		return nil
	}
	page, err := os.ReadFile(o.append)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the page to add to: %w", err)
	}
	if err := os.WriteFile(o.append, []byte(bench.Append(string(page), text)), 0o644); err != nil {
		return fmt.Errorf("add to the page: %w", err)
	}
	return nil
}
