package nb

// Marks on ACLs, and values of their columns.
const (
	// KeyParent names the switch or port group that an ACL is on. With Kube-OVN's vendor mark, or none, the ACL is Berth's
	// to change.
	KeyParent = "parent"
	// KeyACL tells what an ACL of Berth's own making is there for.
	KeyACL = "berth-acl"

	// ToLport is the direction of what goes to a port, FromLport of what comes from one.
	ToLport = "to-lport"
	// FromLport is the other direction.
	FromLport = "from-lport"
	// ActionAllow lets pass, without looking at what belongs together.
	ActionAllow = "allow"
	// ActionAllowRelated lets pass, and the answers too.
	ActionAllowRelated = "allow-related"
	// ActionAllowStateless lets pass, past connection tracking.
	ActionAllowStateless = "allow-stateless"
	// ActionDrop drops.
	ActionDrop = "drop"
	// ActionReject drops, and tells the sender.
	ActionReject = "reject"
	// SeverityWarning is how a logged ACL is logged.
	SeverityWarning = "warning"
	// MaxACLPriority is the highest priority.
	MaxACLPriority = 32767

	// DenyAll names, among SecurityGroups, the one that has every port that is in any of them.
	DenyAll = "kubeovn_deny_all"
)

// SecurityGroupName returns the name of the port group of a SecurityGroup.
func SecurityGroupName(sg string) string { return GroupName("ovn.sg." + sg) }

// SecurityGroupSet returns the name of the address set of a SecurityGroup's members, of one family.
func SecurityGroupSet(sg, protocol string) string {
	if protocol == ProtocolIPv6 {
		return SecurityGroupName(sg) + ".associated.v6"
	}
	return SecurityGroupName(sg) + ".associated.v4"
}

// ACL is a row of ACL. It lives as long as a switch or a port group refers to it.
type ACL struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        *string           `ovsdb:"name"`
	Priority    int               `ovsdb:"priority"`
	Direction   string            `ovsdb:"direction"`
	Match       string            `ovsdb:"match"`
	Action      string            `ovsdb:"action"`
	Log         bool              `ovsdb:"log"`
	Severity    *string           `ovsdb:"severity"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// AddressSet is a row of Address_Set.
type AddressSet struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Addresses   []string          `ovsdb:"addresses"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// ACLs are all ACLs of Berth's on one switch, or on one port group. None: Berth's go. Those of others stay in any case.
type ACLs struct {
	// Switch or Group by name; the other one is empty.
	Switch, Group string
	// Rows have a direction, a priority and a match that no other of them has.
	Rows []ACL
}

// Parent names the switch or the group.
func (a ACLs) Parent() string { return a.Switch + a.Group }
