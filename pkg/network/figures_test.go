package network

import (
	"context"
	"strings"
	"testing"

	"k8s.io/utils/clock"

	"github.com/berth-net/berth/pkg/ipam"
)

type noStore struct{}

func (noStore) Get(context.Context, string) (*ipam.Block, error)       { return nil, ipam.ErrNotFound }
func (noStore) List(context.Context, ...string) ([]*ipam.Block, error) { return nil, nil }

func (noStore) ListOwner(context.Context, ipam.Owner, ...string) ([]*ipam.Block, error) {
	return nil, nil
}
func (noStore) Write(context.Context, *ipam.Block) (*ipam.Block, error) { return nil, ipam.ErrRefused }
func (noStore) Delete(context.Context, *ipam.Block) error               { return ipam.ErrRefused }

// figures counts a subnet's IPv4 addresses as an empty ledger does.
func figures(t *testing.T, s Subnet) ipam.Figures {
	t.Helper()
	l, err := ipam.New(ipam.Options{Store: noStore{}, Replica: "r", Clock: clock.RealClock{}, Random: strings.NewReader("")})
	if err != nil {
		t.Fatal(err)
	}
	return l.Figures(s.Set, ipam.IPv4)
}
