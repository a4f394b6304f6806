package cluster

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFirstFree(t *testing.T) {
	used := []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8"), netip.MustParsePrefix("172.30.0.1/24"), netip.MustParsePrefix("172.30.1.7/32"),
		netip.MustParsePrefix("fd00::1/64")}
	if got, err := firstFree(used); err != nil || got.String() != "172.30.2.0/24" {
		t.Errorf("got %v %v", got, err)
	}
	if got, err := firstFree([]netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}); err == nil {
		t.Errorf("got %v though all are taken", got)
	}
}

func TestAddresses(t *testing.T) {
	s := state{Options: Options{Name: "x", Dir: "/d"}, Subnet: netip.MustParsePrefix("172.30.7.0/24")}
	for got, want := range map[string]string{
		s.hostIP(): "172.30.7.1", s.nodeIP(0): "172.30.7.10", s.nodeIP(199): "172.30.7.209", s.tunnelIP(1): "172.31.7.11",
		s.nodeNetns("node-1"): "x-node-1", s.nodeOVSDB("node-1"): "unix:/d/nodes/node-1/db.sock",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestNamesFitIntoLinks(t *testing.T) {
	for _, dir := range []string{DefaultDir, "/a", "/tmp/some/where"} {
		if name := nameOf(dir) + tunnelLink + "200"; len(name) > 15 {
			t.Errorf("%s gives the link %s", dir, name)
		}
	}
	if nameOf("/a") == nameOf("/b") {
		t.Error("two directories, one name")
	}
}

func TestStateIsKept(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); !errors.As(err, new(*NotFoundError)) {
		t.Fatalf("an empty directory holds a cluster: %v", err)
	}
	c := &Cluster{state: state{Options: Options{Dir: dir, Name: "x", Nodes: 3}, Subnet: netip.MustParsePrefix("172.30.7.0/24")}}
	c.Processes = []*processState{{Name: "etcd", Command: []string{"etcd"}}}
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.Nodes != 3 || got.hostIP() != "172.30.7.1" || got.anyAlive() {
		t.Errorf("got %+v", &got.Options)
	}
	if _, err := got.Process("etcd"); err != nil {
		t.Error(err)
	}
	if _, err := got.Process("nothing"); err == nil || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("the error doesn't tell the names: %v", err)
	}
}

func TestCountNodes(t *testing.T) {
	for name, c := range map[string]struct {
		o     Options
		want  int
		alone bool
		fails bool
	}{
		"left open":            {o: Options{}, want: 2},
		"asked for":            {o: Options{Nodes: 3}, want: 3},
		"too many":             {o: Options{Nodes: 201}, fails: true},
		"negative":             {o: Options{Nodes: -1}, fails: true},
		"control plane":        {o: Options{ControlPlaneOnly: true}, alone: true},
		"control plane, nodes": {o: Options{ControlPlaneOnly: true, Nodes: 3}, alone: true},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.o.countNodes()
			if (err != nil) != c.fails {
				t.Fatalf("got %v", err)
			}
			if err == nil && (c.o.Nodes != c.want || c.o.WithoutBerth != c.alone) {
				t.Errorf("got %d nodes, without Berth %v", c.o.Nodes, c.o.WithoutBerth)
			}
		})
	}
}

func TestFindRepo(t *testing.T) {
	repo, err := findRepo("")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(repo, "manifests", "overlays", "local", "kustomization.yaml")); err != nil {
		t.Error(err)
	}
	if _, err := findRepo(t.TempDir()); err == nil {
		t.Error("a directory outside of a work tree was taken for one")
	}
}

func TestOverlayAddsTheDatabase(t *testing.T) {
	dir := t.TempDir()
	c := &Cluster{state: state{Options: Options{Dir: dir, Repo: "/repo"}, Subnet: netip.MustParsePrefix("172.30.7.0/24")}}
	at, err := c.overlay("/repo/manifests/overlays/local")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(at, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"value: --ovn-nb-addr=tcp:172.30.7.1:6641", `/repo/manifests/overlays/local"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), `- "/`) {
		t.Error("an absolute path: kustomize refuses it")
	}
}
