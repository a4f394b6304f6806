package app

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/pkg/ovn"
)

// northbound says where the northbound database is; without an address nobody looks there.
type northbound struct {
	addr, ca, cert, key string
	timeout             time.Duration
}

func (n *northbound) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&n.addr, "northbound", "", "northbound database to look into as well: tcp:HOST:PORT, ssl:HOST:PORT or unix:/PATH, several joined by commas")
	fs.StringVar(&n.ca, "northbound-ca-cert", "", "CA certificate of ssl remotes")
	fs.StringVar(&n.cert, "northbound-cert", "", "own certificate for ssl remotes")
	fs.StringVar(&n.key, "northbound-key", "", "key of that certificate")
	fs.DurationVar(&n.timeout, "northbound-timeout", 15*time.Second, "how long to wait for the northbound database")
}

// connect reads the whole database; nil when no address was given.
func (n *northbound) connect(ctx context.Context) (*ovn.Client, error) {
	if n.addr == "" {
		return nil, nil
	}
	endpoints, err := ovn.ParseEndpoints(n.addr)
	if err != nil {
		return nil, usagef("--northbound: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	c, err := ovn.Connect(ctx, ovn.Config{Endpoints: endpoints, CACert: n.ca, Cert: n.cert, Key: n.key})
	if err != nil {
		return nil, fmt.Errorf("%w: check that the address can be reached from here, or leave --northbound away", err)
	}
	return c, nil
}
