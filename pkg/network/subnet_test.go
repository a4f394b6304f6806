package network

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

func TestNewSubnet(t *testing.T) {
	cases := map[string]struct {
		obj           *kubeovnv1.Subnet
		cidr, gateway string
		free, size    string // IPv4
		err           string
	}{
		"missing gateway":  {obj: subnet("a", "10.0.0.0/24"), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "253", size: "253"},
		"host bits":        {obj: subnet("a", "10.0.0.7/24"), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "253", size: "253"},
		"v6 first":         {obj: subnet("a", "fd00::/64,10.0.0.0/24"), cidr: "10.0.0.0/24,fd00::/64", gateway: "10.0.0.1,fd00::1", free: "253", size: "253"},
		"one gateway":      {obj: subnet("a", "10.0.0.0/24,fd00::/64", gw("FD00:0::FF")), cidr: "10.0.0.0/24,fd00::/64", gateway: "10.0.0.1,fd00::ff", free: "253", size: "253"},
		"excluded":         {obj: subnet("a", "10.0.0.0/24", exclude("10.0.0.10..10.0.0.19", " 10.0.0.20 ", "")), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "242", size: "253"},
		"mapped spelling":  {obj: subnet("a", "10.0.0.0/24", exclude("::ffff:10.0.0.10..10.0.0.19")), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "243", size: "253"},
		"fenced":           {obj: subnet("a", "10.0.0.0/24", exclude("10.0.0.0..10.0.0.255"), fenced("")), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "253", size: "253"},
		"fence, own":       {obj: subnet("a", "10.0.0.0/24", exclude("10.0.0.0..10.0.0.255"), fenced("10.0.0.9")), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "252", size: "253"},
		"not fenced yet":   {obj: subnet("a", "10.0.0.0/24", exclude("10.0.0.9"), fenced("")), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "252", size: "253"},
		"slash 31":         {obj: subnet("a", "10.0.0.0/31"), cidr: "10.0.0.0/31", gateway: "10.0.0.0", free: "1", size: "1"},
		"slash 32":         {obj: subnet("a", "10.0.0.1/32"), err: "one address only"},
		"no cidr":          {obj: subnet("a", ""), err: "spec.cidrBlock is empty"},
		"bad cidr":         {obj: subnet("a", "10.0.0.0"), err: `"10.0.0.0" is not a CIDR`},
		"two of a family":  {obj: subnet("a", "10.0.0.0/24,10.0.1.0/24"), err: "more than one CIDR of a family"},
		"gateway outside":  {obj: subnet("a", "10.0.0.0/24", gw("10.0.1.1")), err: "10.0.1.1 is outside 10.0.0.0/24"},
		"gateway garbage":  {obj: subnet("a", "10.0.0.0/24", gw("x")), err: `spec.gateway: "x" is not an IP address`},
		"backward exclude": {obj: subnet("a", "10.0.0.0/24", exclude("10.0.0.9..10.0.0.1")), err: "is not a range"},
		"mixed exclude":    {obj: subnet("a", "10.0.0.0/24", exclude("10.0.0.9..fd00::1")), err: "is not a range"},
		"garbage exclude":  {obj: subnet("a", "10.0.0.0/24", exclude("a..b")), err: "neither an address nor a range"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := NewSubnet(c.obj, Around{})
			if c.err != "" {
				if s.Err == nil || s.Set != nil || !strings.Contains(s.Err.Error(), c.err) {
					t.Fatalf("error %v, want %q", s.Err, c.err)
				}
				return
			}
			if s.Err != nil {
				t.Fatal(s.Err)
			}
			fig := figures(t, s)
			got := []string{s.CIDR, s.Gateway, fig.Free.String(), fig.Size.String()}
			if d := cmp.Diff([]string{c.cidr, c.gateway, c.free, c.size}, got); d != "" {
				t.Error(d)
			}
		})
	}
}
