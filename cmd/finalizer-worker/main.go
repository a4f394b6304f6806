// Command finalizer-worker wires the pods that admission has given addresses to, and takes the addresses back when the
// pods are gone.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/berth-net/berth/cmd/finalizer-worker/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := app.NewCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "finalizer-worker:", err)
		os.Exit(1)
	}
}
