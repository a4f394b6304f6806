package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const (
	providerBridge = "br-"
	readySuffix    = ".provider-network.kubernetes.io/ready"
)

// provide plugs the node into the physical networks that ProviderNetworks name, as the stock daemon does: a bridge with
// the interface for each, the mapping by which OVN finds it, and the node's label that says so. What is in place already
// is not touched.
func (a *Agent) provide(ctx context.Context, node *corev1.Node) error {
	list, err := a.objects.Resource(kubeOVN("provider-networks")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list ProviderNetworks: %w", err)
	}
	want := map[string]string{}
	for _, o := range list.Items {
		nic, _, _ := unstructured.NestedString(o.Object, "spec", "defaultInterface")
		excluded, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "excludeNodes")
		if nic != "" && !slices.Contains(excluded, a.cfg.Name) {
			want[o.GetName()] = nic
		}
	}
	if !maps.Equal(want, a.provided) {
		if _, err := a.sandboxes.vsctl(ctx, providerArgs(a.provided, want)...); err != nil {
			return err
		}
		a.provided = want
	}
	return a.labelReady(ctx, node, want)
}

// providerArgs are what ovs-vsctl does to lead from the networks that are there to those that shall be, by the name of
// each and its interface.
func providerArgs(present, want map[string]string) []string {
	args := []string{"--timeout=10"}
	for _, name := range slices.Sorted(maps.Keys(present)) {
		if want[name] != present[name] {
			args = append(args, "--", "--if-exists", "del-br", providerBridge+name)
		}
	}
	var mappings []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		bridge := providerBridge + name
		args = append(args, "--", "--may-exist", "add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev",
			"--", "--may-exist", "add-port", bridge, want[name])
		mappings = append(mappings, name+":"+bridge)
	}
	if len(mappings) == 0 {
		return append(args, "--", "remove", "open", ".", "external_ids", "ovn-bridge-mappings")
	}
	return append(args, "--", "set", "open", ".", `external_ids:ovn-bridge-mappings="`+strings.Join(mappings, ",")+`"`)
}

// labelReady says by labels which networks the node is plugged into.
func (a *Agent) labelReady(ctx context.Context, node *corev1.Node, ready map[string]string) error {
	labels := map[string]any{}
	for name := range ready {
		if node.Labels[name+readySuffix] != "true" {
			labels[name+readySuffix] = "true"
		}
	}
	for key := range node.Labels {
		if name, ok := strings.CutSuffix(key, readySuffix); ok && ready[name] == "" {
			labels[key] = nil
		}
	}
	if len(labels) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return fmt.Errorf("encode labels of node %s: %w", a.cfg.Name, err)
	}
	_, err = a.client.CoreV1().Nodes().Patch(ctx, a.cfg.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
