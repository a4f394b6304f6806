package node

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProviderArgs(t *testing.T) {
	type networks = map[string]string
	for name, tc := range map[string]struct {
		present, want networks
		args          string
	}{
		"first": {nil, networks{"a": "phys"},
			"--timeout=10 -- --may-exist add-br br-a -- set bridge br-a datapath_type=netdev -- --may-exist add-port br-a phys " +
				`-- set open . external_ids:ovn-bridge-mappings="a:br-a"`},
		"another interface": {networks{"a": "old"}, networks{"a": "phys"},
			"--timeout=10 -- --if-exists del-br br-a -- --may-exist add-br br-a -- set bridge br-a datapath_type=netdev " +
				`-- --may-exist add-port br-a phys -- set open . external_ids:ovn-bridge-mappings="a:br-a"`},
		"none left": {networks{"a": "phys"}, nil,
			"--timeout=10 -- --if-exists del-br br-a -- remove open . external_ids ovn-bridge-mappings"},
	} {
		if diff := cmp.Diff(tc.args, strings.Join(providerArgs(tc.present, tc.want), " ")); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
