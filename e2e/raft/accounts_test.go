//go:build e2e

package raft

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/proc"
	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
)

// port is a pod's port as a server has it.
type port struct{ uuid, addresses string }

// ports are the pods' ports by name, as one server has them. Two of one name are told.
func (h *harness) ports(ctx context.Context, s cluster.NorthboundServer) (map[string]port, error) {
	rows, err := h.rows(ctx, s.Socket, "_uuid,name,addresses", "find", "Logical_Switch_Port", `external_ids:pod!=""`)
	if err != nil {
		return nil, err
	}
	out := map[string]port{}
	for _, row := range rows {
		name := atom(row[1])
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("two ports are named %s", name)
		}
		words := strings.Fields(atom(row[2]))
		slices.Sort(words)
		out[name] = port{uuid: uuidOf(row[0]), addresses: strings.Join(words, " ")}
	}
	return out, nil
}

// rows has ovn-nbctl print columns of rows.
func (h *harness) rows(ctx context.Context, db, columns string, command ...string) ([][]any, error) {
	args := append([]string{"--db=" + db, "--no-leader-only", "--timeout=10", "--format=json", "--columns=" + columns}, command...)
	out, err := proc.Run(ctx, "", "ovn-nbctl", args...)
	if err != nil {
		return nil, err
	}
	var table struct{ Data [][]any }
	if err := json.Unmarshal([]byte(out), &table); err != nil {
		return nil, fmt.Errorf("rows of ovn-nbctl: %w", err)
	}
	return table.Data, nil
}

// atom is a single value, or a set of one.
func atom(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return fmt.Sprint(v)
}

// pods lists the pods, and fails when one isn't routed.
func (h *harness) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := h.Client().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, p := range list.Items {
		if p.DeletionTimestamp != nil {
			return nil, fmt.Errorf("pod %s is still being deleted", p.Name)
		}
		if p.Annotations["ovn.kubernetes.io/routed"] != "true" {
			return nil, fmt.Errorf("pod %s is not routed: %v", p.Name, p.Annotations)
		}
	}
	return list.Items, nil
}

// wired waits until every pod is routed and each of the servers has exactly their ports, with their addresses.
func (h *harness) wired(ctx context.Context, t *testing.T) map[string]port {
	t.Helper()
	var ports map[string]port
	until(ctx, t, "every server has the ports of the pods", func(ctx context.Context) error {
		pods, err := h.pods(ctx)
		if err != nil {
			return err
		}
		want := map[string]string{}
		for _, p := range pods {
			words := append(strings.Split(p.Annotations["ovn.kubernetes.io/ip_address"], ","), p.Annotations["ovn.kubernetes.io/mac_address"])
			slices.Sort(words)
			want[p.Name+"."+p.Namespace] = strings.Join(words, " ")
		}
		for _, s := range h.servers {
			if ports, err = h.ports(ctx, s); err != nil {
				return err
			}
			got := map[string]string{}
			for name, p := range ports {
				got[name] = p.addresses
			}
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Errorf("ports of %s (-want +got):\n%s", s.Socket, diff)
			}
		}
		return nil
	})
	return ports
}

// distinct looks for addresses that two pods have.
func (h *harness) distinct(t *testing.T, ports map[string]port) {
	t.Helper()
	has := map[string]string{}
	for name, p := range ports {
		for a := range strings.FieldsSeq(p.addresses) {
			if other := has[a]; other != "" {
				t.Errorf("%s and %s both have %s", other, name, a)
			}
			has[a] = name
		}
	}
}

// empty deletes all pods and waits for empty accounts: no lease, port, group member or IP record of a pod is left.
func (h *harness) empty(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := h.Client().CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	until(ctx, t, "the accounts are empty", func(ctx context.Context) error {
		var left []string
		for what, count := range map[string]func(context.Context) ([]string, error){
			"pods": h.namesOfPods, "leases": h.leases, "ports": h.namesOfPorts, "members": h.members, "records": h.records,
		} {
			names, err := count(ctx)
			if err != nil {
				return err
			}
			if len(names) > 0 {
				left = append(left, fmt.Sprintf("%d %s %v", len(names), what, names))
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("left: %s", strings.Join(left, "; "))
		}
		return nil
	})
	t.Logf("accounts empty %s after the deletion", time.Since(began).Round(time.Millisecond))
}

func (h *harness) namesOfPods(ctx context.Context) (out []string, err error) {
	list, err := h.Client().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, p := range list.Items {
		out = append(out, p.Name)
	}
	return out, nil
}

// leases are those of pods, as they are stored.
func (h *harness) leases(ctx context.Context) (out []string, err error) {
	list, err := h.dynamic.Resource(schema.GroupVersionResource{Group: "berth.dev", Version: "v1alpha1", Resource: "addressblocks"}).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, b := range list.Items {
		spec, _ := b.Object["spec"].(map[string]any)
		leases, _ := spec["leases"].([]any)
		for _, text := range leases {
			lease, err := v1alpha1.ParseLease(fmt.Sprint(text))
			if err != nil {
				return nil, err
			}
			if o, err := ipam.ParseOwner(lease.Owner); err == nil && o.Reserves() {
				continue
			}
			out = append(out, fmt.Sprint(text))
		}
	}
	return out, nil
}

func (h *harness) namesOfPorts(ctx context.Context) (out []string, err error) {
	for _, s := range h.servers {
		ports, err := h.ports(ctx, s)
		if err != nil {
			return nil, err
		}
		for name := range ports {
			out = append(out, name)
		}
	}
	return out, nil
}

// members are those of port groups that are no nodes' ports.
func (h *harness) members(ctx context.Context) (out []string, err error) {
	nodes := map[string]bool{}
	ports, err := h.rows(ctx, h.NBSocket(), "_uuid,name", "list", "Logical_Switch_Port")
	if err != nil {
		return nil, err
	}
	for _, row := range ports {
		if slices.Contains(h.NodeNames(), strings.TrimPrefix(atom(row[1]), "node-")) {
			nodes[uuidOf(row[0])] = true
		}
	}
	groups, err := h.rows(ctx, h.NBSocket(), "name,ports", "list", "Port_Group")
	if err != nil {
		return nil, err
	}
	for _, row := range groups {
		for _, m := range uuidsOf(row[1]) {
			if !nodes[m] {
				out = append(out, atom(row[0])+" "+m)
			}
		}
	}
	return out, nil
}

// uuidOf reads ["uuid", "..."].
func uuidOf(v any) string {
	if pair, ok := v.([]any); ok && len(pair) == 2 && pair[0] == "uuid" {
		return atom(pair[1])
	}
	return ""
}

// uuidsOf reads one UUID, or ["set", [["uuid", "..."], ...]].
func uuidsOf(v any) (out []string) {
	if one := uuidOf(v); one != "" {
		return []string{one}
	}
	if pair, ok := v.([]any); ok && len(pair) == 2 && pair[0] == "set" {
		all, _ := pair[1].([]any)
		for _, u := range all {
			out = append(out, uuidOf(u))
		}
	}
	return out
}

// records are the IP objects but for the nodes', on the join switch.
func (h *harness) records(ctx context.Context) (out []string, err error) {
	list, err := h.dynamic.Resource(schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "ips"}).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, ip := range list.Items {
		if !strings.HasPrefix(ip.GetName(), "node-") {
			out = append(out, ip.GetName())
		}
	}
	return out, nil
}
