package app

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
)

// What is free, leased and excluded makes up each subnet and each pool, and so do the parts of what is leased.
func TestFiguresAddUp(t *testing.T) {
	w := shop(t)
	code, out, errs := w.run("subnets", "-o", "json")
	if code != ExitFine {
		t.Fatal(errs)
	}
	type figures struct {
		Size, Excluded, Free                      *big.Int
		Leased, Bound, Pending, Reserved, Resting int
	}
	var list struct {
		Items []struct {
			Name, Family, Problem string
			figures
			Pools []struct {
				Name string
				figures
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	check := func(what string, f figures) {
		sum := new(big.Int).Add(f.Free, f.Excluded)
		if sum.Add(sum, big.NewInt(int64(f.Leased))); sum.Cmp(f.Size) != 0 {
			t.Errorf("%s: free %s + leased %d + excluded %s is not size %s", what, f.Free, f.Leased, f.Excluded, f.Size)
		}
		if f.Bound+f.Pending+f.Reserved != f.Leased {
			t.Errorf("%s: bound %d + pending %d + reserved %d is not leased %d", what, f.Bound, f.Pending, f.Reserved, f.Leased)
		}
	}
	counted, leased := 0, 0
	for _, s := range list.Items {
		if s.Problem != "" {
			continue
		}
		counted++
		leased += s.Leased
		check(s.Name+" "+s.Family, s.figures)
		pools := new(big.Int)
		for _, p := range s.Pools {
			check(s.Name+" pool "+p.Name, p.figures)
			pools.Add(pools, p.Size)
		}
		if len(s.Pools) > 0 && pools.Cmp(s.Size) != 0 {
			t.Errorf("%s: pools have %s addresses, the subnet %s", s.Name, pools, s.Size)
		}
	}
	if counted != 3 || leased != len(w.ledger.Leases()) {
		t.Errorf("%d families with %d leases, want 3 with %d", counted, leased, len(w.ledger.Leases()))
	}
	if !strings.Contains(out, "18446744073709551614") {
		t.Error("the size of an IPv6 subnet is not written exactly")
	}
}
