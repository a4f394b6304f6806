// Command serve serves the page over a world in memory, for a browser: it prints the page's address and ends with its
// standard input. Each line of that takes a lease: a subnet, a namespace and a pod's name; the address is printed.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"k8s.io/utils/clock"

	"github.com/berth-net/berth/internal/serve"
	"github.com/berth-net/berth/internal/web"
	"github.com/berth-net/berth/internal/web/webtest"
)

func main() {
	if err := run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := webtest.New(ctx, clock.RealClock{})
	if err != nil {
		return err
	}
	p, err := web.New(w.Options())
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- serve.RunPage(ctx, serve.PageOptions{Listener: l, Handler: p.Handler()}) }()
	go func() { ended <- p.Run(ctx) }()
	if _, err := fmt.Fprintf(out, "http://%s%s/\n", l.Addr(), web.Path); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 3 {
			return fmt.Errorf("%q is not a subnet, a namespace and a pod", lines.Text())
		}
		h, err := w.Take(ctx, f[0], f[1], f[2])
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, h.Address); err != nil {
			return err
		}
	}
	cancel()
	if err := <-ended; err != nil {
		return err
	}
	return lines.Err()
}
