package memnb_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-net/berth/internal/memnb"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

const installedSchema = "/usr/share/ovn/ovn-nb.ovsschema"

// backends are the in-memory server, and the real one that it must be like.
func backends() map[string]func(*testing.T) string {
	return map[string]func(*testing.T) string{"memory": startMemory, "ovsdb-server": startReal}
}

// onBoth runs a test against both servers. Each gets an empty database and its endpoint.
func onBoth(t *testing.T, test func(t *testing.T, endpoint string)) {
	t.Helper()
	for name, start := range backends() {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

func startMemory(t *testing.T) string {
	t.Helper()
	return memory(t).Endpoint()
}

func memory(t *testing.T) *memnb.Server {
	t.Helper()
	s, err := memnb.Start(t.Context(), memnb.Options{Socket: filepath.Join(t.TempDir(), "nb.sock")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func startReal(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"ovsdb-server", "ovsdb-tool"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("nothing to compare with: %v", err)
		}
	}
	if _, err := os.Stat(installedSchema); err != nil {
		t.Skipf("nothing to compare with: %v", err)
	}
	dir := t.TempDir()
	db, sock := filepath.Join(dir, "nb.db"), filepath.Join(dir, "nb.sock")
	if out, err := exec.CommandContext(t.Context(), "ovsdb-tool", "create", db, installedSchema).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command("ovsdb-server", "--remote=punix:"+sock, "--unixctl="+filepath.Join(dir, "ctl"), db)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it is running
		_ = cmd.Wait()         // it was killed
	})
	return "unix:" + sock
}

// dial connects to a server that may still be starting.
func dial(t *testing.T, endpoint string) net.Conn {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	timeout := time.After(20 * time.Second)
	for {
		c, err := net.Dial("unix", endpoint[len("unix:"):])
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		select {
		case <-ticker.C:
		case <-timeout:
			t.Fatal(err)
		}
	}
}

func connect(t *testing.T, endpoints ...string) *ovn.Client {
	t.Helper()
	c, err := ovn.Connect(t.Context(), ovn.Config{Endpoints: endpoints, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// writer returns a running writer under a fresh epoch.
func writer(t *testing.T, c *ovn.Client) *ovn.Writer {
	t.Helper()
	epoch, err := c.RaiseEpoch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := ovn.NewWriter(c, ovn.WriterOptions{Epoch: epoch})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func apply(t *testing.T, w *ovn.Writer, ch ovn.Change) {
	t.Helper()
	if err := w.Apply(t.Context(), ch); err != nil {
		t.Fatal(err)
	}
}

// cost applies a change and returns how many transactions it took.
func cost(t *testing.T, w *ovn.Writer, ch ovn.Change) int64 {
	t.Helper()
	before := w.Transactions()
	apply(t, w, ch)
	return w.Transactions() - before
}

func vendor() map[string]string { return map[string]string{nb.Vendor: nb.VendorKubeOVN} }

func switches(names ...string) ovn.Change {
	ch := ovn.Change{Key: "switches"}
	for _, name := range names {
		ch.Ensure.Switches = append(ch.Ensure.Switches, nb.LogicalSwitch{Name: name, ExternalIDs: vendor()})
	}
	return ch
}

// podChange is a pod with one port on a switch, in the given groups and no others.
func podChange(name, sw string, groups ...nb.Group) ovn.Change {
	ids := vendor()
	ids[nb.KeySwitch], ids[nb.KeyPod] = sw, "default/"+name
	port := nb.Port{Switch: sw, Groups: []string{}, Row: nb.LogicalSwitchPort{
		Name: portName(name), Addresses: []string{"0a:58:0a:10:00:02 10.16.0.2"}, ExternalIDs: ids,
	}}
	for _, g := range groups {
		port.Groups = append(port.Groups, g.Name)
	}
	return ovn.Change{Key: "default/" + name, Ensure: nb.Rows{Ports: []nb.Port{port}, Groups: groups}}
}

func portName(pod string) string { return network.PortName(pod, "default", "") }
