// Package app is the operator's command line.
//
// Invariant: what only looks writes nothing, for its ledger refuses all writes. What writes names the object as it was
// read (UID and resourceVersion), and is done again without harm. Ports are never changed from here, and leases only by
// rebuild, adopt and handback: all else is the worker's, which is fenced and knows who waits.
package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/internal/report"
)

// The exit codes.
const (
	// ExitFine: done.
	ExitFine = 0
	// ExitError: it could not be done.
	ExitError = 1
	// ExitUsage: the command line is wrong.
	ExitUsage = 2
	// ExitFound: audit found something, who found nobody, or a problem is in the way.
	ExitFound = 3
)

// UsageError says that the command line is wrong.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *UsageError) Unwrap() error { return e.Err }

func usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// foundError is no failure: the answer, which has been written, is one that scripts want to know of.
type foundError struct{}

func (foundError) Error() string { return "see the answer" }

// Run does what the arguments say, and returns the exit code.
func Run(ctx context.Context, args []string, streams genericiooptions.IOStreams, clk clock.Clock) int {
	cmd := NewCommand(streams, clk) //nolint:contextcheck // completions have the command's context
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	var usage *UsageError
	switch {
	case err == nil:
		return ExitFine
	case errors.Is(err, foundError{}):
		return ExitFound
	case errors.As(err, &usage):
		say(streams.ErrOut, "kubectl-berth: %v", err)
		return ExitUsage
	}
	say(streams.ErrOut, "kubectl-berth: %v", err)
	return ExitError
}

// env is what all commands share.
type env struct {
	genericiooptions.IOStreams
	clock     clock.Clock
	flags     *genericclioptions.ConfigFlags
	output    string
	format    report.Format
	namespace string // Berth's own
}

// NewCommand returns the tree of commands.
func NewCommand(streams genericiooptions.IOStreams, clk clock.Clock) *cobra.Command {
	e := &env{IOStreams: streams, clock: clk, flags: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use: "kubectl-berth", Short: "Look at the addresses of pods, and at Berth, which gives them",
		Long: `Look at the addresses of pods, and at Berth, which gives them.

Exit codes: 0 fine, 1 it could not be done, 2 the command line is wrong, 3 audit found something, who
found nobody, or adopt or handback found a problem and wrote nothing.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl berth"},
		SilenceErrors: true, SilenceUsage: true,
		Args: usageArgs(func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%q is no command: run %s --help for those that there are", args[0], cmd.CommandPath())
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			if e.format, err = report.ParseFormat(e.output); err != nil {
				return &UsageError{err}
			}
			return nil
		},
	}
	root.SetOut(streams.Out)
	root.SetErr(streams.ErrOut)
	root.SetIn(streams.In)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w: run %s --help for the flags that there are", err, cmd.CommandPath())
	})
	fs := root.PersistentFlags()
	e.flags.AddFlags(fs)
	fs.StringVarP(&e.output, "output", "o", "", "how to write the answer: table, wide, json or yaml (default table)")
	fs.StringVar(&e.namespace, "berth-namespace", "berth-system", "namespace that Berth is installed in")
	e.complete(root, "output", func(context.Context, string) ([]string, error) { return report.Formats(), nil })
	e.complete(root, "namespace", e.namespaceNames)
	root.AddCommand(e.statusCommand(), e.subnetsCommand(), e.leasesCommand(), e.whoCommand(), e.whyCommand(), e.auditCommand(), e.reserveCommand(),
		e.releaseCommand(), e.rebuildCommand(), e.adoptCommand(), e.handbackCommand(), e.uninstallCommand())
	return root
}

// usageArgs makes the errors of a check of arguments those of usage.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &UsageError{err}
		}
		return nil
	}
}

// exactly wants the named arguments.
func exactly(names ...string) cobra.PositionalArgs {
	return usageArgs(func(cmd *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return fmt.Errorf("%d arguments given, %d wanted: write %s", len(args), len(names), cmd.UseLine())
		}
		return nil
	})
}

// write writes the answer.
func (e *env) write(v report.View) error { return report.Write(e.Out, e.format, e.clock.Now(), v) }
