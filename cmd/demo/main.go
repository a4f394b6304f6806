// Command demo shows Berth's main job in one process: pods get their addresses at CREATE, their rows in OVN, and leave
// nothing behind.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berth-net/berth/internal/demo"
)

func main() {
	flags := pflag.NewFlagSet("demo", pflag.ExitOnError)
	var o demo.Options
	flags.StringVar(&o.Northbound, "northbound", demo.NorthboundAuto,
		"the northbound database: ovsdb-server, memory, or auto, which is the real server where it is installed")
	flags.StringVar(&o.Break, "break", "", "release: leave one pod undeleted, so that the demo fails")
	_ = flags.Parse(os.Args[1:]) // ExitOnError
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctrllog.SetLogger(logr.Discard()) // what goes wrong, the demo says itself
	err := demo.Run(ctx, os.Stdout, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}
