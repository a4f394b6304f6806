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
	if got, err := firstFree(Dual, used); err != nil || got.String() != "172.30.2.0/24" {
		t.Errorf("got %v %v", got, err)
	}
	if got, err := firstFree(Dual, []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}); err == nil {
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

func TestAddressesOfIPv6(t *testing.T) {
	s := state{Options: Options{Name: "x", Dir: "/d", Family: IPv6, NorthboundServers: 1}, Subnet: netip.MustParsePrefix("fd00:30:0:7::/64")}
	c := &Cluster{state: state{Options: s.Options, Subnet: s.Subnet}}
	for got, want := range map[string]string{
		s.hostIP(): "fd00:30:0:7::1", s.nodeIP(0): "fd00:30:0:7::a", s.nodeIP(199): "fd00:30:0:7::d1", s.tunnelIP(1): "fd00:31:0:7::b",
		s.at(6443): "[fd00:30:0:7::1]:6443", s.listen(6641): "ptcp:6641:[fd00:30:0:7::1]", s.serviceIP(): "fd00:10:96::1",
		c.NBAddress(): "tcp:[fd00:30:0:7::1]:6641",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got, err := firstFree(IPv6, []netip.Prefix{netip.MustParsePrefix("fd00:30::1/64"), netip.MustParsePrefix("172.30.1.0/24")}); err != nil || got.String() != "fd00:30:0:1::/64" {
		t.Errorf("got %v %v", got, err)
	}
}

func TestNorthboundServers(t *testing.T) {
	c := &Cluster{state: state{Options: Options{Dir: "/d", NorthboundServers: 3}, Subnet: netip.MustParsePrefix("172.30.7.0/24")}}
	for got, want := range map[string]string{
		c.NBSocket():  "unix:/d/ovn/nb.sock,unix:/d/ovn/nb-2.sock,unix:/d/ovn/nb-3.sock",
		c.NBAddress(): "tcp:172.30.7.1:6641,tcp:172.30.7.1:6651,tcp:172.30.7.1:6661",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for _, n := range []int{-1, 2, 7} {
		if err := (&Options{NorthboundServers: n}).countNorthbound(); err == nil {
			t.Errorf("%d servers were accepted", n)
		}
	}
}

func TestFamilies(t *testing.T) {
	for in, want := range map[Family]Family{"": Dual, Dual: Dual, IPv6: IPv6, "v4": ""} {
		o := Options{Family: in}
		if err := o.chooseFamily(); (err != nil) != (want == "") || err == nil && o.Family != want {
			t.Errorf("%q: got %q, %v", in, o.Family, err)
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

func TestOverlay(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		want []string
		not  string
	}{
		"dual stack":         {Options{NorthboundServers: 1}, []string{`value: "--ovn-nb-addr=tcp:172.30.7.1:6641"`, `/repo/manifests/overlays/local"`}, "Subnet"},
		"three servers":      {Options{NorthboundServers: 3}, []string{`value: "--ovn-nb-addr=tcp:172.30.7.1:6641,tcp:172.30.7.1:6651,tcp:172.30.7.1:6661"`}, "Subnet"},
		"IPv6":               {Options{NorthboundServers: 1, Family: IPv6}, []string{`value: "fd00:10:16::/112"`, `value: "--node-switch-cidr=fd00:100:64::/112"`}, "10.16.0.0"},
		"without Berth":      {Options{NorthboundServers: 1, WithoutBerth: true}, []string{`/repo/manifests/overlays/local/network"`}, "patches"},
		"IPv6 without Berth": {Options{NorthboundServers: 1, Family: IPv6, WithoutBerth: true}, []string{`value: "fd00:10:16::1"`}, "Deployment"},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Dir, c.o.Repo = t.TempDir(), "/repo"
			cluster := &Cluster{state: state{Options: c.o, Subnet: netip.MustParsePrefix("172.30.7.0/24")}}
			at, err := cluster.overlay("/repo/manifests/overlays/local")
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(at, "kustomization.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(string(text), want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			if strings.Contains(string(text), c.not) {
				t.Errorf("%q in\n%s", c.not, text)
			}
			if strings.Contains(string(text), `- "/`) {
				t.Error("an absolute path: kustomize refuses it")
			}
		})
	}
}
