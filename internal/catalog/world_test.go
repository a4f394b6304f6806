package catalog

import (
	"context"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-net/berth/pkg/network"
)

// A world has all namespaces, the internal addresses of nodes and the topology.
func TestWorld(t *testing.T) {
	api := cluster(t, namespace("red"), namespace("blue"), subnet("a", "10.16.0.0/16"),
		node("n1", corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "192.168.0.1"}, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.1"},
			corev1.NodeAddress{Type: corev1.NodeHostName, Address: "n1"}, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "fd00::1"}))
	w, err := New(Options{Cache: api, Live: api}).World(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]string{}
	for a, n := range w.Nodes {
		nodes[a.String()] = n
	}
	if d := cmp.Diff(map[string]string{"192.168.0.1": "n1", "fd00::1": "n1"}, nodes); d != "" {
		t.Error(d)
	}
	want := []network.Namespace{{Name: "blue", Labels: map[string]string{"team": "blue"}}, {Name: "red", Labels: map[string]string{"team": "red"}}}
	if d := cmp.Diff(want, w.Namespaces); d != "" {
		t.Error(d)
	}
	if p, ok := w.Catalog.Subnets["a"].Set.Prefix(4); !ok || p != netip.MustParsePrefix("10.16.0.0/16") {
		t.Errorf("subnet a is %v", p)
	}
}

// What can't be read is an error, never an empty world.
func TestWorldUnread(t *testing.T) {
	for name, unreadable := range map[string]client.ObjectList{"namespaces": &corev1.NamespaceList{}, "nodes": &corev1.NodeList{}} {
		t.Run(name, func(t *testing.T) {
			api := interceptor.NewClient(cluster(t), interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if cmp.Equal(list, unreadable) {
					return context.DeadlineExceeded
				}
				return c.List(ctx, list, opts...)
			}})
			if _, err := New(Options{Cache: api, Live: api}).World(t.Context()); err == nil {
				t.Error("no error")
			}
		})
	}
}
