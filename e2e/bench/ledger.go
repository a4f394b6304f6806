package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
)

// Ledger is a start over many leases.
type Ledger struct {
	Leases  int     `json:"leases"`
	Blocks  int     `json:"blocks"`
	Webhook Restart `json:"webhook"`
}

const (
	// largeName is the subnet of the large ledger; there is no namespace of the name.
	largeName = "bench-large"
	perBlock  = 64
)

// largeLedger writes a ledger as pods would leave it, and restarts the webhook. The worker stays away meanwhile: it would
// take back what no pod has.
func (w *World) largeLedger(ctx context.Context, leases int) (l Ledger, err error) {
	if err := w.scaleWorker(ctx, 0); err != nil {
		return l, err
	}
	s := subnetRange{CIDR: "10.128.0.0/9"}.object(largeName)
	made, err := w.objects.Resource(subnets()).Create(ctx, s, metav1.CreateOptions{})
	if err != nil {
		return l, fmt.Errorf("make subnet %s: %w", largeName, err)
	}
	store, err := blockstore.New(w.Config())
	if err != nil {
		return l, fmt.Errorf("store of the ledger: %w", err)
	}
	l.Leases, l.Blocks = leases, (leases+perBlock-1)/perBlock
	err = each(ctx, hands, l.Blocks, func(ctx context.Context, n int) error {
		b, err := fullBlock(n, min(perBlock, leases-n*perBlock), string(made.GetUID()))
		if err == nil {
			_, err = store.Write(ctx, b)
		}
		return err
	})
	if err != nil {
		return l, fmt.Errorf("write the ledger: %w", err)
	}
	l.Webhook, err = w.restartWebhook(ctx)
	if err != nil {
		return l, err
	}
	// The ledger stands still in the worker's absence: nobody takes what vanishes for lost and restores it.
	err = w.objects.Resource(blocks()).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: v1alpha1.LabelSubnet + "=" + largeName})
	if err != nil {
		return l, fmt.Errorf("remove the ledger: %w", err)
	}
	if err := w.objects.Resource(subnets()).Delete(ctx, largeName, metav1.DeleteOptions{}); err != nil {
		return l, fmt.Errorf("remove subnet %s: %w", largeName, err)
	}
	return l, w.scaleWorker(ctx, 1)
}

// fullBlock is the n-th block of the large subnet with so many leases of pods.
func fullBlock(n, leases int, uid string) (*ipam.Block, error) {
	first := nth(netip.AddrFrom4([4]byte{10, 128, 0, 0}), (n+1)*perBlock) // the first block has the network's own address
	b := &ipam.Block{Name: ipam.BlockName(largeName, first), Subnet: largeName, SubnetUID: uid, First: first, Version: ipam.FormatVersion, Revision: 1}
	for i := range leases {
		claim, err := ipam.NewClaim(rand.Reader)
		if err != nil {
			return nil, err
		}
		a := nth(first, i)
		b.Leases = append(b.Leases, &ipam.Lease{Address: a, MAC: ipam.DerivedMAC(a), Claim: claim, Generation: 2, Owner: ipam.PodOwner(largeName), Provider: "ovn",
			PodUID: "00000000-0000-0000-0000-000000000000", PodName: fmt.Sprintf("pod-%d-%d", n, i)})
	}
	return b, nil
}

// scaleWorker sets the worker's replicas, and waits until they are so many.
func (w *World) scaleWorker(ctx context.Context, n int) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
	if _, err := w.client.AppsV1().Deployments(systemNamespace).Patch(ctx, workerName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("scale the worker: %w", err)
	}
	return until(ctx, fmt.Sprintf("%d workers", n), func(ctx context.Context) error {
		ips, err := w.addressesOf(ctx, workerName)
		if err == nil && len(ips) != n {
			err = fmt.Errorf("%d are there", len(ips))
		}
		return err
	})
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
