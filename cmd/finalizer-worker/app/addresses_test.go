package app

import (
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/berth-net/berth/internal/report"
)

// Every address of a subnet is counted in one state. A subnet that is gone, or that can't be read, has no samples, and
// nothing has any before all is known.
func TestAddresses(t *testing.T) {
	subnets := &report.Subnets{Items: []report.Subnet{{Name: "broken", Problem: "nonsense"}, {Name: "shop", Family: "IPv4", Figures: &report.Figures{
		Size: big.NewInt(13), Leased: 4, Bound: 1, Pending: 2, Reserved: 1, Excluded: big.NewInt(3), Free: big.NewInt(6), Resting: 5}}}}
	var problem error
	a := newAddresses(func() (*report.Subnets, error) { return subnets, problem })
	const want = `
# HELP berth_subnet_addresses Addresses of each subnet and family, by state.
# TYPE berth_subnet_addresses gauge
berth_subnet_addresses{family="IPv4",state="bound",subnet="shop"} 1
berth_subnet_addresses{family="IPv4",state="excluded",subnet="shop"} 3
berth_subnet_addresses{family="IPv4",state="free",subnet="shop"} 1
berth_subnet_addresses{family="IPv4",state="pending",subnet="shop"} 2
berth_subnet_addresses{family="IPv4",state="reserved",subnet="shop"} 1
berth_subnet_addresses{family="IPv4",state="resting",subnet="shop"} 5
`
	if err := testutil.CollectAndCompare(a, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	problem = errors.New("the caches are not filled yet")
	if n := testutil.CollectAndCount(a); n != 0 {
		t.Errorf("%d samples before all is known", n)
	}
	subnets, problem = &report.Subnets{}, nil
	if n := testutil.CollectAndCount(a); n != 0 {
		t.Errorf("%d samples of a subnet that is gone", n)
	}
}
