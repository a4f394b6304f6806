package serve

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/berth-net/berth/pkg/network"
)

func TestNetworkFlags(t *testing.T) {
	with := func(change func(*network.Config)) network.Config {
		c := DefaultNetwork()
		change(&c)
		return c
	}
	for name, c := range map[string]struct {
		args []string
		want network.Config
	}{
		"defaults": {nil, DefaultNetwork()},
		"names": {[]string{"--default-ls=a", "--cluster-router=b", "--node-switch=c", "--pod-nic-type=internal-port"},
			network.Config{DefaultSubnet: "a", ClusterRouter: "b", NodeSwitch: "c", PodNICType: "internal-port"}},
		"VMs are forgotten": {[]string{"--keep-vm-ip=false"}, with(func(c *network.Config) { c.ForgetVMs = true })},
		"VMs are kept":      {[]string{"--keep-vm-ip"}, DefaultNetwork()},
		"attachments only":  {[]string{"--non-primary-cni-mode"}, with(func(c *network.Config) { c.NonPrimary = true })},
		"owners": {[]string{"--owner-kinds=x.io/Db,/Thing", "--owner-kinds=y.io/Q"}, with(func(c *network.Config) {
			c.Owners = []network.OwnerKind{{Group: "x.io", Kind: "Db"}, {Kind: "Thing"}, {Group: "y.io", Kind: "Q"}}
		})},
	} {
		t.Run(name, func(t *testing.T) {
			got := DefaultNetwork()
			fs := pflag.NewFlagSet("p", pflag.ContinueOnError)
			RegisterNetwork(fs, &got)
			err := fs.Parse(c.args)
			if d := cmp.Diff(c.want, got); err != nil || d != "" {
				t.Errorf("%v\n%s", err, d)
			}
		})
	}
	for _, bad := range []string{"--owner-kinds=Db", "--owner-kinds=x.io/", "--owner-kinds=a/b/c", "--keep-vm-ip=perhaps"} {
		c := DefaultNetwork()
		fs := pflag.NewFlagSet("p", pflag.ContinueOnError)
		RegisterNetwork(fs, &c)
		if err := fs.Parse([]string{bad}); err == nil {
			t.Errorf("%s was taken: %+v", bad, c)
		}
	}
}
