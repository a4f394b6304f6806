// Command ship makes what Berth is shipped as: install files, the Helm chart's templates, and the image.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/berth-net/berth/tools/ship/chart"
	"github.com/berth-net/berth/tools/ship/image"
	"github.com/berth-net/berth/tools/ship/render"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ship:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("say what to do: generate or image")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	repo := flags.String("repo", ".", "the work tree")
	switch args[0] {
	case "generate":
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return errors.Join(render.WriteInstalls(*repo), chart.Write(*repo))
	case "image":
		out := flags.String("out", "bin/image", "directory of the OCI layout, which is replaced")
		tag := flags.String("tag", "v0.1.0", "name of the image in the layout")
		architectures := flags.String("arch", "amd64,arm64", "architectures, joined by commas")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		digest, err := image.Build(ctx, image.Options{Repo: *repo, Out: *out, Tag: *tag, Architectures: strings.Split(*architectures, ","), Log: os.Stderr})
		if err != nil {
			return err
		}
		fmt.Printf("%s@%s\n", *out, digest)
		return nil
	}
	return fmt.Errorf("%s is unknown: say generate or image", args[0])
}
