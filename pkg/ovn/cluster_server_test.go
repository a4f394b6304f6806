package ovn

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startCluster starts three servers of one clustered database.
func startCluster(t *testing.T) []*server {
	t.Helper()
	var servers []*server
	for i := range 3 {
		s := newServer(t)
		raft := "unix:" + s.path("raft")
		if i == 0 {
			s.run("ovsdb-tool", "create-cluster", s.path("nb.db"), installedSchema, raft)
		} else {
			s.run("ovsdb-tool", "join-cluster", s.path("nb.db"), database, raft, "unix:"+servers[0].path("raft"))
		}
		s.start()
		servers = append(servers, s)
	}
	return servers
}

func (s *server) leads() bool {
	s.t.Helper()
	return strings.Contains(s.run("ovs-appctl", "-t", s.path("ctl"), "cluster/status", database), "Role: leader")
}

func TestB89LeaderDies(t *testing.T) {
	t.Parallel()
	servers := startCluster(t)
	var endpoints []string
	for _, s := range servers {
		endpoints = append(endpoints, s.endpoint())
	}
	c := connect(t, Config{Endpoints: endpoints})
	w := servers[0].writer(c)
	apply(t, w, switchChange("s1"))
	var wg sync.WaitGroup
	for p := range 10 {
		wg.Go(func() {
			for r := range 10 {
				if err := w.Apply(t.Context(), podChange(fmt.Sprintf("p%d-%d", p, r), "s1", NodeGroup("n1"))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, s := range servers {
		if s.leads() {
			s.stop()
			break
		}
	}
	wg.Wait()
	for _, s := range servers {
		if s.cmd == nil {
			continue
		}
		s.run("ovsdb-client", "--timeout=20", "wait", s.endpoint(), database, "connected")
		if got := len(strings.Fields(s.nbctl("--bare", "--columns=_uuid", "list", "Logical_Switch_Port"))); got != 100 {
			t.Errorf("%d ports, want 100", got)
		}
	}
	waitUntil(t, c, func() bool { return c.Ready() == nil && len(c.Ports()) == 100 })
	s, err := c.live()
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range servers {
		if server.cmd != nil && server.endpoint() == s.ovs.CurrentEndpoint() && !server.leads() {
			t.Error("the client is at a follower")
		}
	}
}

// A server that hangs takes connections and says nothing: it costs the length of a probe, and not of a call.
func TestB89ServerOfAClusterHangs(t *testing.T) {
	t.Parallel()
	servers := startCluster(t)
	hung := slices.IndexFunc(servers, func(s *server) bool { return !s.leads() })
	if err := servers[hung].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	endpoints := []string{servers[hung].endpoint()}
	for n, s := range servers {
		if n != hung {
			endpoints = append(endpoints, s.endpoint())
		}
	}
	began := time.Now()
	c, err := Connect(t.Context(), Config{Endpoints: endpoints, Timeout: 40 * time.Second, InactivityProbe: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if took := time.Since(began); took >= 40*time.Second {
		t.Errorf("connected after %s: the server that hangs was waited for", took)
	}
	apply(t, servers[0].writer(c), switchChange("s1"))
}

// authority issues certificates into a directory.
type authority struct {
	t   *testing.T
	dir string
	crt *x509.Certificate
	key *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.issue("ca")
	return a
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name+".pem") }

// issue writes <name>.pem and <name>-key.pem.
func (a *authority) issue(name string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	crt := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: a.crt == nil, BasicConstraintsValid: true,
	}
	parent, signer := a.crt, a.key
	if parent == nil {
		parent, signer = crt, key
	}
	der, err := x509.CreateCertificate(rand.Reader, crt, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.crt == nil {
		if a.crt, err = x509.ParseCertificate(der); err != nil {
			a.t.Fatal(err)
		}
		a.key = key
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name, "CERTIFICATE", der)
	a.write(name+"-key", "PRIVATE KEY", private)
}

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestTLSFilesAreReadForEveryConnection(t *testing.T) {
	t.Parallel()
	old, young := newAuthority(t), newAuthority(t)
	old.issue("server")
	old.issue("client")
	port := freePort(t)
	s := startServer(t, installedSchema, "--remote=pssl:"+port+":127.0.0.1",
		"--private-key="+old.path("server-key"), "--certificate="+old.path("server"), "--ca-cert="+old.path("ca"))
	endpoints, err := ParseEndpoints("ssl:[127.0.0.1]:" + port)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Endpoints: endpoints, CACert: old.path("ca"), Cert: old.path("client"), Key: old.path("client-key")}
	c := connect(t, cfg)
	apply(t, s.writer(c), switchChange("s1"))

	s.stop()
	for _, name := range []string{"server", "client"} {
		young.issue(name)
	}
	for _, name := range []string{"ca", "server", "server-key", "client", "client-key"} {
		data, err := os.ReadFile(young.path(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(old.path(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.start()
	waitUntil(t, c, func() bool { return c.Ready() == nil && len(c.Switches()) == 1 })
}
