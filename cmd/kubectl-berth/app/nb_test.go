package app

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/berth-net/berth/internal/memnb"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// northboundOf starts a northbound database with the port of web-0, and one of a pod that is gone.
func northboundOf(t *testing.T, w *world) string {
	t.Helper()
	s, err := memnb.Start(t.Context(), memnb.Options{Socket: filepath.Join(t.TempDir(), "nb.sock")})
	w.must(err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := ovn.Connect(t.Context(), ovn.Config{Endpoints: []string{s.Endpoint()}})
	w.must(err)
	defer c.Close()
	epoch, err := c.RaiseEpoch(t.Context())
	w.must(err)
	writer := ovn.NewWriter(c, ovn.WriterOptions{Epoch: epoch})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- writer.Run(ctx) }()
	var web corev1.Pod
	w.must(w.client.Get(w.ctx, client.ObjectKey{Namespace: "shop", Name: "web-0"}, &web))
	port := func(name, address, pod, uid, claim string) nb.Port {
		return nb.Port{Switch: "ovn-default", Groups: []string{"node.n1"}, Row: nb.LogicalSwitchPort{Name: name, Addresses: []string{"0a:58:0a:10:00:14 " + address},
			ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: "ovn-default", nb.KeyPod: "shop/" + pod, nb.KeyPodUID: uid, nb.KeyClaim: claim}}}
	}
	w.must(writer.Apply(t.Context(), ovn.Change{Key: "test", Ensure: nb.Rows{
		Switches: []nb.LogicalSwitch{{Name: "ovn-default", ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN}}},
		Groups:   []nb.Group{{Name: "node.n1", ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeyNode: "n1"}}},
		Ports: []nb.Port{port("web-0.shop", "10.16.0.20 fd00:16::20", "web-0", string(web.UID), web.Annotations[network.ClaimKey]),
			port("lost.shop", "10.16.0.40", "lost", "uid-of-lost", "00000000000000000000000000000002")},
	}}))
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	return s.Endpoint()
}
