package ovn

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

const installedSchema = "/usr/share/ovn/ovn-nb.ovsschema"

// server is an ovsdb-server of one test.
type server struct {
	t      testing.TB
	dir    string
	args   []string
	cmd    *exec.Cmd
	exited chan struct{}
}

// startServer starts an ovsdb-server on an empty northbound database of a schema.
func startServer(t testing.TB, schema string, args ...string) *server {
	t.Helper()
	s := newServer(t, args...)
	s.run("ovsdb-tool", "create", s.path("nb.db"), schema)
	s.start()
	return s
}

func newServer(t testing.TB, args ...string) *server {
	t.Helper()
	for _, tool := range []string{"ovsdb-server", "ovsdb-tool", "ovn-nbctl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%v: run `apt-get install ovn-central`", err)
		}
	}
	s := &server{t: t, dir: t.TempDir(), args: args}
	t.Cleanup(s.stop)
	return s
}

func (s *server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *server) endpoint() string { return "unix:" + s.path("nb.sock") }

func (s *server) start() {
	s.t.Helper()
	s.startAs(database)
}

// startAs starts it on a database that has another name.
func (s *server) startAs(name string) {
	s.t.Helper()
	args := append([]string{"--remote=punix:" + s.path("nb.sock"), "--unixctl=" + s.path("ctl")}, s.args...)
	s.cmd = exec.Command("ovsdb-server", append(args, s.path("nb.db"))...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	cmd, exited := s.cmd, make(chan struct{})
	s.exited = exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	s.listening()
	s.run("ovsdb-client", "--timeout=20", "wait", s.endpoint(), name, "connected")
}

// listening waits for the socket: ovsdb-client would look only once a second.
func (s *server) listening() {
	s.t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	timeout := time.After(20 * time.Second)
	for {
		if c, err := net.Dial("unix", s.path("nb.sock")); err == nil {
			_ = c.Close()
			return
		}
		select {
		case <-ticker.C:
		case <-s.exited:
			s.t.Fatal("ovsdb-server has ended")
		case <-timeout:
			s.t.Fatal("ovsdb-server doesn't listen")
		}
	}
}

// stop kills the server without letting it say good-bye.
func (s *server) stop() {
	if s.cmd == nil {
		return
	}
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Error(err)
	}
	<-s.exited
	s.cmd = nil
}

func (s *server) run(name string, args ...string) string {
	s.t.Helper()
	var out, bad bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &bad
	if err := cmd.Run(); err != nil {
		s.t.Fatalf("%s %s: %v: %s%s", name, strings.Join(args, " "), err, out.String(), bad.String())
	}
	return strings.TrimSpace(out.String())
}

// nbctl is the view of somebody else.
func (s *server) nbctl(args ...string) string {
	s.t.Helper()
	return s.run("ovn-nbctl", append([]string{"--no-leader-only", "--timeout=20", "--db=" + s.endpoint()}, args...)...)
}

func (s *server) connect() *Client {
	s.t.Helper()
	return connect(s.t, Config{Endpoints: []string{s.endpoint()}})
}

func connect(t testing.TB, cfg Config) *Client {
	t.Helper()
	cfg.Timeout, cfg.InactivityProbe = 20*time.Second, 2*time.Second
	c, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// writer returns a running writer under a fresh epoch.
func (s *server) writer(c *Client) *Writer {
	s.t.Helper()
	epoch, err := c.RaiseEpoch(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	w := NewWriter(c, WriterOptions{Epoch: epoch})
	runWriter(s.t, w)
	return w
}

func runWriter(t testing.TB, w *Writer) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// setup returns a server with one switch s1 and s2, a client and a writer.
func setup(t *testing.T) (*server, *Client, *Writer) {
	t.Helper()
	t.Parallel()
	s := startServer(t, installedSchema)
	c := s.connect()
	w := s.writer(c)
	apply(t, w, switchChange("s1", "s2"))
	return s, c, w
}

func switchChange(names ...string) Change {
	ch := Change{Key: "switches"}
	for _, name := range names {
		ch.Ensure.Switches = append(ch.Ensure.Switches, vendorSwitch(name))
	}
	return ch
}

func vendorSwitch(name string) nb.LogicalSwitch {
	return nb.LogicalSwitch{Name: name, ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN}}
}

func apply(t testing.TB, w *Writer, ch Change) {
	t.Helper()
	if err := w.Apply(t.Context(), ch); err != nil {
		t.Fatal(err)
	}
}

// cost applies a change and returns how many transactions it took.
func cost(t *testing.T, w *Writer, ch Change) int64 {
	t.Helper()
	before := w.Transactions()
	apply(t, w, ch)
	return w.Transactions() - before
}

// podChange is a pod with one port on a switch, in groups of its own.
func podChange(name, sw string, groups ...nb.Group) Change {
	port := nb.Port{Switch: sw, Row: nb.LogicalSwitchPort{
		Name: network.PortName(name, "default", ""), Addresses: []string{"0a:58:0a:10:00:02 10.16.0.2"},
		ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: sw, nb.KeyPod: "default/" + name},
	}}
	for _, g := range groups {
		port.Groups = append(port.Groups, g.Name)
	}
	return Change{Key: "default/" + name, Ensure: nb.Rows{Ports: []nb.Port{port}, Groups: groups}}
}
