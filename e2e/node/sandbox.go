package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/e2e/proc"
)

// PodNetns is the name of a pod's network namespace in a cluster of the given name.
func PodNetns(cluster string, uid types.UID) string {
	id := strings.ReplaceAll(string(uid), "-", "")
	return cluster + "-pod-" + id[:min(len(id), 16)]
}

// Sandbox is what this node made for one pod. It is on disk before anything is made, so that an agent that starts anew
// finds and removes everything.
type Sandbox struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	// Netns is empty for pods on the node's network.
	Netns      string      `json:"netns,omitempty"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	// Started is when everything stood; zero: not yet.
	Started time.Time `json:"started"`
}

// IPs are the addresses of the first interface.
func (s *Sandbox) IPs() []string {
	if len(s.Interfaces) == 0 {
		return nil
	}
	return s.Interfaces[0].IPs()
}

// sandboxes makes and removes pods' networks on one node.
type sandboxes struct {
	// dir keeps a file per sandbox.
	dir string
	// ovsdb is the node's switch database, as ovs-vsctl's --db.
	ovsdb string
	// slots bounds how many sandboxes are changed at once.
	slots chan struct{}
}

func (m *sandboxes) file(uid types.UID) string { return filepath.Join(m.dir, string(uid)+".json") }

// save replaces the sandbox's file.
func (m *sandboxes) save(s *Sandbox) error {
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode sandbox of %s/%s: %w", s.Namespace, s.Name, err)
	}
	if err := os.WriteFile(m.file(s.UID)+".tmp", text, 0o600); err != nil {
		return fmt.Errorf("keep sandbox of %s/%s, is the disk full: %w", s.Namespace, s.Name, err)
	}
	return os.Rename(m.file(s.UID)+".tmp", m.file(s.UID))
}

// load reads all sandboxes that an earlier agent left.
func (m *sandboxes) load() (map[types.UID]*Sandbox, error) {
	files, err := filepath.Glob(filepath.Join(m.dir, "*.json"))
	if err != nil {
		return nil, err
	}
	found := map[types.UID]*Sandbox{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("read sandbox: %w", err)
		}
		var s Sandbox
		if err := json.Unmarshal(text, &s); err != nil {
			return nil, fmt.Errorf("sandbox file %s is damaged, remove it: %w", f, err)
		}
		found[s.UID] = &s
	}
	return found, nil
}

// take waits for a free slot; the returned function gives it back.
func (m *sandboxes) take(ctx context.Context) (release func(), err error) {
	select {
	case m.slots <- struct{}{}:
		return func() { <-m.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// attach makes the network namespace, its interfaces and their switch ports. Whatever stood there before is removed.
func (m *sandboxes) attach(ctx context.Context, s *Sandbox, mtu map[string]int) error {
	release, err := m.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := m.save(s); err != nil {
		return err
	}
	if err := m.remove(ctx, s); err != nil {
		return err
	}
	if _, err := proc.Run(ctx, "", "ip", "netns", "add", s.Netns); err != nil {
		return err
	}
	for n := range s.Interfaces {
		if err := m.attachOne(ctx, s, &s.Interfaces[n], mtu[s.Interfaces[n].Name]); err != nil {
			return err
		}
	}
	return nil
}

func (m *sandboxes) attachOne(ctx context.Context, s *Sandbox, i *Interface, mtu int) error {
	links := fmt.Sprintf("link add %s mtu %d type veth peer name %s address %s mtu %d netns %s\nlink set %s up\n",
		i.HostName, mtu, i.Name, i.MAC, mtu, s.Netns, i.HostName)
	if _, err := proc.Run(ctx, links, "ip", "-batch", "-"); err != nil {
		return err
	}
	// The userspace datapath sees packets as they are, so checksums must be in them.
	if _, err := proc.Run(ctx, "", "nsenter", "--net=/run/netns/"+s.Netns, "ethtool", "-K", i.Name, "tx", "off"); err != nil {
		return err
	}
	if _, err := proc.Run(ctx, addressBatch(i), "ip", "-n", s.Netns, "-batch", "-"); err != nil {
		return err
	}
	if err := m.clearDuplicates(ctx, i); err != nil {
		return err
	}
	ids := "external_ids:"
	_, err := m.vsctl(ctx, "--no-wait", "--may-exist", "add-port", "br-int", i.HostName, "--", "set", "interface", i.HostName,
		ids+"iface-id="+i.Port, ids+"vendor=kube-ovn", ids+"pod_name="+s.Name, ids+"pod_namespace="+s.Namespace,
		ids+"pod_netns=/run/netns/"+s.Netns, ids+`ip="`+strings.Join(i.IPs(), ",")+`"`)
	return err
}

// addressBatch is the input of ip that brings up an interface inside the pod.
func addressBatch(i *Interface) string {
	var b strings.Builder
	fmt.Fprintf(&b, "link set lo up\nlink set %s up\n", i.Name)
	for _, p := range i.Addresses {
		nodad := ""
		if p.Addr().Is6() {
			nodad = " nodad"
		}
		fmt.Fprintf(&b, "addr add %s dev %s%s\n", p, i.Name, nodad)
	}
	if i.DefaultRoute {
		for _, gw := range i.Gateways {
			fmt.Fprintf(&b, "route replace default via %s dev %s\n", gw, i.Name)
		}
	}
	for _, r := range i.Routes {
		dst := "default"
		if r.Dst.IsValid() {
			dst = r.Dst.String()
		}
		fmt.Fprintf(&b, "route replace %s via %s dev %s\n", dst, r.Via, i.Name)
	}
	return b.String()
}

// clearDuplicates takes the port's name off other interfaces: two claims of one port would fight for ever.
func (m *sandboxes) clearDuplicates(ctx context.Context, i *Interface) error {
	out, err := m.vsctl(ctx, "--bare", "--columns=name", "find", "interface", `external_ids:iface-id="`+i.Port+`"`)
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(out) {
		if name == i.HostName {
			continue
		}
		if _, err := m.vsctl(ctx, "--no-wait", "--if-exists", "remove", "interface", name, "external_ids", "iface-id"); err != nil {
			return err
		}
	}
	return nil
}

// installed waits until this node's OVN controller has put the port's flows in place.
func (m *sandboxes) installed(ctx context.Context, i *Interface, limit time.Duration) error {
	_, err := m.vsctl(ctx, "--timeout="+strconv.Itoa(int(limit.Seconds())), "wait-until", "interface", i.HostName,
		`external_ids:ovn-installed="true"`)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("port %s was not installed within %v, look for it with ovn-nbctl and for this chassis with ovn-sbctl: %w",
			i.Port, limit, err)
	}
	return err
}

// ping tries once to reach an address from inside the sandbox.
func (s *Sandbox) ping(ctx context.Context, address string) bool {
	_, err := proc.Run(ctx, "", "nsenter", "--net=/run/netns/"+s.Netns, "ping", "-n", "-q", "-c", "1", "-W", "1", address)
	return err == nil
}

// detach removes everything that attach made, and the record of it.
func (m *sandboxes) detach(ctx context.Context, s *Sandbox) error {
	release, err := m.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := m.remove(ctx, s); err != nil {
		return err
	}
	if err := os.Remove(m.file(s.UID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget sandbox of %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// remove takes down ports, interfaces and namespace; what is not there is fine.
func (m *sandboxes) remove(ctx context.Context, s *Sandbox) error {
	if s.Netns == "" {
		return nil
	}
	var ports []string
	for n := range s.Interfaces {
		ports = append(ports, "--", "--if-exists", "del-port", "br-int", s.Interfaces[n].HostName)
	}
	if len(ports) > 0 {
		if _, err := m.vsctl(ctx, append([]string{"--no-wait"}, ports[1:]...)...); err != nil {
			return err
		}
	}
	if _, err := os.Stat("/run/netns/" + s.Netns); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	proc.KillNetns(ctx, s.Netns) // as the end of a sandbox ends its processes
	for n := range s.Interfaces {
		// The other end goes with it; the namespace alone would take both away some time later.
		_, _ = proc.Run(ctx, "", "ip", "link", "del", s.Interfaces[n].HostName)
	}
	_, err := proc.Run(ctx, "", "ip", "netns", "del", s.Netns)
	return err
}

func (m *sandboxes) vsctl(ctx context.Context, args ...string) (string, error) {
	return proc.Run(ctx, "", "ovs-vsctl", append([]string{"--db=" + m.ovsdb}, args...)...)
}
