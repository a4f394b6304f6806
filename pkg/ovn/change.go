package ovn

import "github.com/berth-net/berth/pkg/ovn/nb"

// Change is one caller's wish. It is applied as a whole or not at all.
type Change struct {
	// Key says what the change is for, in errors and logs: "default/web-0".
	Key string
	// Ensure lists rows that shall exist as given.
	Ensure nb.Rows
	// RemovePorts lists switch ports by name that shall not exist, whatever switch they are on. What hangs on them, by
	// KeyPort, goes too, even when the port is gone already.
	RemovePorts []string
	// RemoveGroups lists port groups by name that shall not exist.
	RemoveGroups []string
	// RemoveRouterPorts lists router ports by name that shall not exist.
	RemoveRouterPorts []string
	// RemoveSwitches lists switches by name that shall not exist. Their ports go with them.
	RemoveSwitches []string
	// RemoveRouters lists routers by name that shall not exist. Their ports go with them.
	RemoveRouters []string
}
