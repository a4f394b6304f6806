//go:build e2e

package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-net/berth/cmd/finalizer-worker/app"
	"github.com/berth-net/berth/e2e/proc"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

const (
	laterKey  = "later.example/kept"
	namespace = "fields"
	reserved  = "10.92.0.77"
)

// later is what some newer version would have written: nothing that this one knows.
func later() map[string]any {
	return map[string]any{"text": "x", "count": int64(3), "list": []any{int64(1), map[string]any{"deep": true}}, "none": map[string]any{}}
}

// object is one with unknown fields and marks of other people.
func object(kind, name string, spec map[string]any) *unstructured.Unstructured {
	spec["later"] = later()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "kubeovn.io/v1", "kind": kind, "spec": spec}}
	o.SetName(name)
	o.SetLabels(map[string]string{laterKey: "label"})
	o.SetAnnotations(map[string]string{laterKey: "annotation"})
	o.SetFinalizers([]string{laterKey})
	return o
}

// lacks tells what of the object before is not in the one after; what was added is fine.
func lacks(before, after any, path string) []string {
	want, ok := before.(map[string]any)
	if path == ".metadata.finalizers" { // ours comes beside those of others
		after = slices.DeleteFunc(slices.Clone(after.([]any)), func(f any) bool { return f == network.Finalizer })
	}
	if !ok {
		if d := cmp.Diff(before, after); d != "" {
			return []string{path + ":\n" + d}
		}
		return nil
	}
	have, _ := after.(map[string]any)
	var out []string
	for k, v := range want {
		switch path + "." + k {
		case ".metadata.resourceVersion", ".metadata.generation", ".metadata.managedFields":
			continue
		}
		x, ok := have[k]
		if !ok {
			out = append(out, path+"."+k+" is gone")
			continue
		}
		out = append(out, lacks(v, x, path+"."+k)...)
	}
	slices.Sort(out)
	return out
}

// TestUnknownFieldsSurvive runs the worker, which realises the topology and wires a pod, over objects of Kube-OVN's kinds
// that have fields which this version does not know.
func TestUnknownFieldsSurvive(t *testing.T) {
	h := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f := &fields{harness: h, t: t, ctx: ctx, before: map[string]*unstructured.Unstructured{}}
	f.world()
	f.work()
	f.until("the worker to fill in the subnet", func() error { return f.has("subnets", "fields", "gateway", "10.92.0.1") })
	f.until("the worker to correct a record", func() error { return f.has("ips", "p."+namespace, "ipAddress", "10.92.0.") })
	f.until("the worker to tell the node", func() error { return f.has("ips", "q."+namespace, "nodeName", "fields-node") })
	for name, before := range f.before {
		plural, name, _ := strings.Cut(name, "/")
		after := f.read(plural, name)
		for _, l := range lacks(before.Object, after.Object, "") {
			t.Errorf("%s %s: %s", plural, name, l)
		}
		if before.GetResourceVersion() != after.GetResourceVersion() {
			t.Logf("%s %s was written", plural, name)
		}
	}
}

// fields is the world of TestUnknownFieldsSurvive.
type fields struct {
	*harness
	t      *testing.T
	ctx    context.Context
	before map[string]*unstructured.Unstructured
}

func (f *fields) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fields) until(what string, ok func() error) {
	f.t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(f.ctx, 50*time.Millisecond, 40*time.Second, true, func(context.Context) (bool, error) {
		last = ok()
		return last == nil, nil
	})
	if err != nil {
		f.t.Fatalf("waiting for %s: %v\n%s", what, errors.Join(err, last), f.told())
	}
}

// told is what the worker told people about the pods.
func (f *fields) told() string {
	events, err := f.Client().EventsV1().Events(namespace).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	pods, err := f.Client().CoreV1().Pods(namespace).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, p := range pods.Items {
		out = append(out, fmt.Sprintf("pod %s has annotations %v", p.Name, p.Annotations))
	}
	for _, e := range events.Items {
		out = append(out, e.Reason+": "+e.Note)
	}
	return strings.Join(out, "\n")
}

// has tells whether a field of an object's spec begins as it should.
func (f *fields) has(plural, name, field, want string) error {
	got, _, err := unstructured.NestedString(f.read(plural, name).Object, "spec", field)
	if err == nil && !strings.HasPrefix(got, want) {
		err = fmt.Errorf("%s %s has %s %q", plural, name, field, got)
	}
	return err
}

func (f *fields) read(plural, name string) *unstructured.Unstructured {
	f.t.Helper()
	o, err := f.dynamic.Resource(resource("kubeovn.io", "v1", plural)).Get(f.ctx, name, metav1.GetOptions{})
	f.must(err)
	return o
}

// make stores an object, its status where the kind keeps that apart, and remembers it. It goes when the test ends.
func (f *fields) make(plural string, o *unstructured.Unstructured, status map[string]any) {
	f.t.Helper()
	r := f.dynamic.Resource(resource("kubeovn.io", "v1", plural))
	got, err := r.Create(f.ctx, o, metav1.CreateOptions{})
	f.must(err)
	f.t.Cleanup(func() {
		ctx := context.WithoutCancel(f.ctx)
		now, err := r.Get(ctx, o.GetName(), metav1.GetOptions{})
		if err == nil {
			now.SetFinalizers(nil)
			_, err = r.Update(ctx, now, metav1.UpdateOptions{})
		}
		if err == nil {
			err = r.Delete(ctx, o.GetName(), metav1.DeleteOptions{})
		}
		if err != nil {
			f.t.Errorf("%s %s: %v", plural, o.GetName(), err)
		}
	})
	if status != nil {
		got.Object["status"] = status
		got, err = r.UpdateStatus(f.ctx, got, metav1.UpdateOptions{})
		f.must(err)
	}
	for _, part := range []string{"spec", "status"} {
		if kept, _, _ := unstructured.NestedMap(got.Object, part, "later"); (part == "spec" || status != nil) && !cmp.Equal(kept, later()) {
			f.t.Fatalf("%s %s: the API server does not keep unknown fields of %s: %v", plural, o.GetName(), part, kept)
		}
	}
	f.before[plural+"/"+o.GetName()] = got
}

// world stores one object of each kind, a node and a pod.
func (f *fields) world() {
	f.t.Helper()
	status := func() map[string]any { return map[string]any{"later": later(), "laterCount": int64(7)} }
	f.make("vpcs", object("Vpc", "later", map[string]any{}), status())
	f.make("subnets", object("Subnet", "fields", map[string]any{"cidrBlock": "10.92.0.0/24"}), status())
	f.make("ippools", object("IPPool", "later", map[string]any{"subnet": "fields", "ips": []any{"10.92.0.40..10.92.0.43"}}), status())
	f.make("vips", object("Vip", "later", map[string]any{"subnet": "fields"}), nil)
	f.make("provider-networks", object("ProviderNetwork", "later", map[string]any{"defaultInterface": "none0"}), status())
	f.make("vlans", object("Vlan", "later", map[string]any{"id": int64(7), "provider": "later"}), status())
	f.make("security-groups", object("SecurityGroup", "later", map[string]any{}), status())
	// A record of an earlier pod of that name, in which the worker corrects much, and one that somebody made to reserve
	// an address, in which it writes the node.
	stale := []string{"podName", "namespace", "subnet", "nodeName", "ipAddress", "v4IpAddress", "v6IpAddress", "macAddress"}
	wrong := map[string]any{}
	for _, k := range stale {
		wrong[k] = "of another pod"
	}
	f.record("p", map[string]string{"ovn.kubernetes.io/ip_reserved": "false"}, wrong, stale...)
	f.record("q", nil, map[string]any{"podName": "q", "namespace": namespace, "subnet": "fields", "nodeName": "", "ipAddress": reserved,
		"v4IpAddress": reserved, "v6IpAddress": "", "macAddress": ""}, "nodeName")
	core := f.Client().CoreV1()
	_, err := core.Nodes().Create(f.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fields-node"}}, metav1.CreateOptions{})
	f.must(err)
	_, err = core.Namespaces().Create(f.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace,
		Labels: map[string]string{network.LabelInject: network.InjectEnabled}}}, metav1.CreateOptions{})
	f.must(err)
	for _, name := range []string{"p", "q"} {
		_, err = core.Pods(namespace).Create(f.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			Spec: corev1.PodSpec{NodeName: "fields-node", Containers: []corev1.Container{{Name: "c", Image: "none"}}}}, metav1.CreateOptions{})
		f.must(err)
	}
}

// record stores an IP record of a pod, of which the worker may change some fields.
func (f *fields) record(pod string, labels map[string]string, spec map[string]any, changes ...string) {
	f.t.Helper()
	maps.Copy(spec, map[string]any{"podType": "", "containerID": "", "attachIps": []any{}, "attachMacs": []any{}, "attachSubnets": []any{}})
	o := object("IP", pod+"."+namespace, spec)
	all := o.GetLabels()
	maps.Copy(all, labels)
	o.SetLabels(all)
	f.make("ips", o, nil)
	for _, k := range changes {
		unstructured.RemoveNestedField(f.before["ips/"+o.GetName()].Object, "spec", k)
	}
}

// work runs the worker, with a northbound database of its own, until the test ends.
func (f *fields) work() {
	f.t.Helper()
	_, err := proc.Run(f.ctx, "", filepath.Join(f.Repo, "hack", "tools.sh"), "ovn")
	f.must(err)
	dir := f.t.TempDir()
	file, remote := filepath.Join(dir, "nb.db"), "unix:"+filepath.Join(f.Dir, "nb.sock")
	_, err = proc.Run(f.ctx, "", "ovsdb-tool", "create", file, "/usr/share/ovn/ovn-nb.ovsschema")
	f.must(err)
	db := exec.Command("ovsdb-server", file, "--remote=p"+remote, "--unixctl="+filepath.Join(dir, "ctl"), "--log-file="+filepath.Join(dir, "log"))
	f.must(db.Start())
	f.t.Cleanup(func() {
		_ = db.Process.Kill()
		_ = db.Wait()
	})
	f.until("the northbound database", func() error {
		c, err := net.Dial("unix", strings.TrimPrefix(remote, "unix:"))
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	health, err := net.Listen("tcp", "127.0.0.1:0")
	f.must(err)
	o := app.DefaultOptions()
	o.Config, o.OVN.Addr, o.Topology, o.LeaderElect = f.Config(), remote, "ensure", false
	o.Network.DefaultSubnet = "fields"
	o.Networks.PodCIDR, o.Networks.NodeCIDR = "", ""
	o.Serve.MetricsAddr, o.OpsListener = "0", health
	ctx, cancel := context.WithCancel(f.ctx)
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx, o) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("the worker ended with %v", err)
		}
	})
}

// TestUnknownFieldsOfBlocksSurvive has the ledger bind and take in a block that a newer version wrote to.
func TestUnknownFieldsOfBlocksSurvive(t *testing.T) {
	h := start(t)
	ctx := t.Context()
	store := h.store(t)
	l := watched(t, store, store, "one")
	kept, bound, dropped := takeHeld(t, l, 10), takeHeld(t, l, 11), takeHeld(t, l, 12)
	if err := l.Free(ctx, dropped.Ref()); err != nil {
		t.Fatal(err)
	}
	before := h.markBlock(t, kept.Block)
	if _, err := l.Bind(ctx, "uid", "pod", bound.Ref()); err != nil { // meets a conflict unless the watch was faster
		t.Fatal(err)
	}
	takeHeld(t, l, 13)
	after, err := h.dynamic.Resource(blocks()).Get(ctx, kept.Block, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if before.GetResourceVersion() == after.GetResourceVersion() {
		t.Fatal("the ledger did not write the block")
	}
	kind, _, _ := unstructured.NestedFieldNoCopy(after.Object, "spec", "later")
	if d := cmp.Diff(any(later()), kind); d != "" {
		t.Errorf("of the block:\n%s", d)
	}
	for what, kept := range map[string]bool{"a lease": keepsLater(t, after, "leases", kept), "a lease that was bound": keepsLater(t, after, "leases", bound),
		"a free address": keepsLater(t, after, "freed", dropped)} {
		if !kept {
			t.Errorf("%s lost what a newer version wrote", what)
		}
	}
	if fields := after.GetManagedFields(); len(fields) > 0 {
		t.Errorf("the API server tracks who set the fields of a block: %v", fields)
	}
	t.Run("metadata", func(t *testing.T) {
		for _, l := range lacks(map[string]any{"metadata": before.Object["metadata"]}, after.Object, "") {
			t.Error(l)
		}
	})
}

// takeHeld takes the nth address of the big subnet: all of those below 64 stand in one block.
func takeHeld(t *testing.T, l *ipam.Ledger, n int) ipam.Held {
	t.Helper()
	sub, err := bigSubnet().build()
	if err != nil {
		t.Fatal(err)
	}
	claim, err := ipam.NewClaim(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ask := from(sub, ipam.IPv4)
	prefix, _ := sub.Prefix(ipam.IPv4)
	addr := prefix.Addr()
	for range n {
		addr = addr.Next()
	}
	ask.Choices = [][]netip.Addr{{addr}}
	a, err := l.Take(t.Context(), ipam.Request{Claim: claim, Owner: ipam.PodOwner("app"), Interfaces: []ipam.InterfaceRequest{ask}})
	if err != nil {
		t.Fatal(err)
	}
	return a.Interfaces[0].Leases[0]
}

// markBlock adds unknown fields to a block wherever there can be any, and marks of other people.
func (h *harness) markBlock(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	r := h.dynamic.Resource(blocks())
	o, err := r.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := o.Object["spec"].(map[string]any)
	spec["later"] = later()
	for _, list := range []string{"leases", "freed"} {
		items, _ := spec[list].([]any)
		for i, x := range items {
			items[i] = fmt.Sprint(x, " ", laterWord)
		}
	}
	o.SetAnnotations(map[string]string{laterKey: "annotation"})
	labels := o.GetLabels()
	labels[laterKey] = "label"
	o.SetLabels(labels)
	got, err := r.Update(t.Context(), o, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// laterWord is a word that a newer version wrote.
const laterWord = "later=50%25%20more"

// keepsLater tells that an address's text in a list of a block has the word still.
func keepsLater(t *testing.T, o *unstructured.Unstructured, list string, at ipam.Held) bool {
	t.Helper()
	items, _, err := unstructured.NestedStringSlice(o.Object, "spec", list)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range items {
		if words := strings.Fields(x); slices.Contains(words, "ip="+at.Address.String()) {
			return slices.Contains(words, laterWord)
		}
	}
	t.Errorf("%s has no %s", list, at.Address)
	return false
}
