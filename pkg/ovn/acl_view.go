package ovn

import (
	"slices"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

func (s *session) eachPort(f func(*nb.LogicalSwitchPort)) {
	for _, r := range s.tables[tablePort].RowsShallow() {
		f((*nb.LogicalSwitchPort)(r.(*portRow)))
	}
}

func (s *session) acl(uuid string) (nb.ACL, bool) {
	r, ok := s.tables[tableACL].Row(uuid).(*aclRow)
	if !ok {
		return nb.ACL{}, false
	}
	return nb.ACL(*r), true
}

func (s *session) addressSet(name string) (nb.AddressSet, bool) {
	r, ok := byName[*setRow](s, tableSet, &setRow{Name: name})
	if !ok {
		return nb.AddressSet{}, false
	}
	return nb.AddressSet(*r), true
}

// ACLs returns the ACLs of a switch or a port group, those of others too.
func (c *Client) ACLs(a nb.ACLs) []nb.ACL {
	s := c.latest()
	if s == nil {
		return nil
	}
	var uuids []string
	if a.Switch != "" {
		for _, row := range s.switchesNamed(a.Switch) {
			uuids = append(uuids, row.ACLs...)
		}
	} else if row, ok := s.group(a.Group); ok {
		uuids = row.ACLs
	}
	var out []nb.ACL
	for _, uuid := range uuids {
		if row, ok := s.acl(uuid); ok {
			out = append(out, row)
		}
	}
	return out
}

// SecurityGroups returns the names of the SecurityGroups that have a port group.
func (c *Client) SecurityGroups() []string {
	s := c.latest()
	if s == nil {
		return nil
	}
	var names []string
	s.eachGroup(func(g *nb.PortGroup) {
		if sg := g.ExternalIDs[nb.KeySecurityGroup]; isSecurityGroup(g.ExternalIDs) && nb.SecurityGroupName(sg) == g.Name {
			names = append(names, sg)
		}
	})
	slices.Sort(names)
	return names
}
