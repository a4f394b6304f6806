// Command kubectl-berth shows operators of Berth what it knows and does: kubectl finds it as `kubectl berth`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/cmd/kubectl-berth/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	code := app.Run(ctx, os.Args[1:], streams, clock.RealClock{})
	stop()
	os.Exit(code)
}
