package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// statusPeriod is how often figures are written at most: a burst of pods makes one write and not thousands.
const statusPeriod = 5 * time.Second

// figures are what a status says of the addresses of one family.
type figures struct {
	available, using           kubeovnv1.BigInt
	availableRange, usingRange string
}

// Catalog is what the worker knows of the topology.
func (w *Worker) Catalog(ctx context.Context) (network.Catalog, error) {
	return w.topology.Topology(ctx)
}

// statusLoop writes the figures of Subnets and IPPools, until ctx ends.
func (w *Worker) statusLoop(ctx context.Context) error {
	if err := w.awaitLead(ctx); err != nil {
		return nil // it never led
	}
	tick := w.Clock.NewTicker(min(statusPeriod, w.SweepPeriod))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
		if err := w.writeStatus(ctx); err != nil && ctx.Err() == nil {
			w.Log.Error(err, "The figures of some subnets or pools could not be written")
		}
	}
}

// writeStatus writes what differs. Of a subnet whose leases are being restored nothing is known.
func (w *Worker) writeStatus(ctx context.Context) error {
	cat, err := w.topology.Topology(ctx)
	if err != nil {
		return err
	}
	w.forgetFigured(cat)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(cat.Subnets)) {
		s := cat.Subnets[name]
		if s.Set == nil || w.Ledger.Open(s.Set) != nil {
			continue
		}
		errs = append(errs, w.subnetStatus(ctx, s))
		for _, pool := range s.Pools {
			if p := cat.Pools[pool]; p != nil {
				errs = append(errs, w.poolStatus(ctx, s, p))
			}
		}
	}
	return errors.Join(errs...)
}

func (w *Worker) subnetStatus(ctx context.Context, s network.Subnet) error {
	have := &s.Object.Status
	v4, err := usageOf(w.Ledger.Usage(s.Set, ipam.IPv4))
	if err != nil {
		return err
	}
	v6, err := usageOf(w.Ledger.Usage(s.Set, ipam.IPv6))
	if err != nil {
		return err
	}
	d := difference{}
	d.family("v4", "range", v4, figures{have.V4AvailableIPs, have.V4UsingIPs, have.V4AvailableIPRange, have.V4UsingIPRange})
	d.family("v6", "range", v6, figures{have.V6AvailableIPs, have.V6UsingIPs, have.V6AvailableIPRange, have.V6UsingIPRange})
	return w.patchStatus(ctx, &kubeovnv1.Subnet{}, s.Object, d)
}

func (w *Worker) poolStatus(ctx context.Context, s network.Subnet, p *kubeovnv1.IPPool) error {
	have := &p.Status
	v4, err := usageOf(w.Ledger.PoolUsage(ipam.Source{Subnet: s.Set, Pool: p.Name}, ipam.IPv4))
	if err != nil {
		return err
	}
	v6, err := usageOf(w.Ledger.PoolUsage(ipam.Source{Subnet: s.Set, Pool: p.Name}, ipam.IPv6))
	if err != nil {
		return err
	}
	d := difference{}
	d.family("v4", "Range", v4, figures{have.V4AvailableIPs, have.V4UsingIPs, have.V4AvailableIPRange, have.V4UsingIPRange})
	d.family("v6", "Range", v6, figures{have.V6AvailableIPs, have.V6UsingIPs, have.V6AvailableIPRange, have.V6UsingIPRange})
	return w.patchStatus(ctx, &kubeovnv1.IPPool{}, p, d)
}

func usageOf(u ipam.Usage, err error) (figures, error) {
	if err != nil {
		return figures{}, err
	}
	using, available := u.Counts()
	return figures{available: kubeovnv1.NewBigInt(available), using: kubeovnv1.NewBigInt(using),
		availableRange: rangesOf(u.Available), usingRange: rangesOf(u.Using)}, nil
}

// rangesOf writes ranges as Kube-OVN does: "a-b" or "a", joined by commas.
func rangesOf(s *netipx.IPSet) string {
	var out []string
	for _, r := range s.Ranges() {
		if r.From() == r.To() {
			out = append(out, r.From().String())
			continue
		}
		out = append(out, r.From().String()+"-"+r.To().String())
	}
	return strings.Join(out, ",")
}

// difference is what of a status is to be written.
type difference map[string]any

// family notes what differs. Subnets and pools spell the fields each in their own way.
func (d difference) family(prefix, ranges string, want, have figures) {
	names := [2]string{"availableIPs", "usingIPs"}
	if ranges == "Range" {
		names = [2]string{"AvailableIPs", "UsingIPs"}
	}
	for i, c := range [][2]kubeovnv1.BigInt{{want.available, have.available}, {want.using, have.using}} {
		if !sameCount(&c[0].Int, &c[1].Int) {
			d[prefix+names[i]] = c[0]
		}
	}
	for i, c := range [][2]string{{want.availableRange, have.availableRange}, {want.usingRange, have.usingRange}} {
		if c[0] != c[1] {
			d[prefix+strings.TrimSuffix(names[i], "s")+ranges] = c[0]
		}
	}
}

// sameCount compares as an API server stores numbers: beyond 2^53 not all of them.
func sameCount(a, b *big.Int) bool {
	if a.Cmp(b) == 0 {
		return true
	}
	x, _ := new(big.Float).SetInt(a).Float64()
	y, _ := new(big.Float).SetInt(b).Float64()
	return x == y
}

// forgetFigured forgets what was written over objects that are gone.
func (w *Worker) forgetFigured(cat network.Catalog) {
	there := map[types.UID]bool{}
	for _, s := range cat.Subnets {
		if s.Object != nil {
			there[s.Object.GetUID()] = true
		}
	}
	for _, p := range cat.Pools {
		there[p.GetUID()] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.figured, func(uid types.UID, _ string) bool { return !there[uid] })
}

// patchStatus writes figures over the version that they were compared with, and over each version once: who finds them
// different again has read what was there before.
func (w *Worker) patchStatus(ctx context.Context, obj, of client.Object, d difference) error {
	if len(d) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": of.GetUID()}, "status": d})
	if err != nil {
		return err
	}
	w.mu.Lock()
	done := w.figured[of.GetUID()] == of.GetResourceVersion()
	w.figured[of.GetUID()] = of.GetResourceVersion()
	w.mu.Unlock()
	if done {
		return nil
	}
	obj.SetName(of.GetName())
	if err := w.Client.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, body)); client.IgnoreNotFound(err) != nil {
		w.mu.Lock()
		delete(w.figured, of.GetUID())
		w.mu.Unlock()
		return fmt.Errorf("write the figures of %s: %w", of.GetName(), err)
	}
	return nil
}
