package ovn

import (
	"slices"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// DefaultSecurityGroup names the SecurityGroup for ports of other VPCs than the default one.
const DefaultSecurityGroup = "default-securitygroup"

// findMembers looks once through the groups for all ports whose membership is asked for, or that go.
func (c *composer) findMembers(changes []Change) {
	wanted := map[string]bool{}
	for _, ch := range changes {
		for _, p := range ch.Ensure.Ports {
			if p.Groups == nil && p.SecurityGroups == nil {
				continue
			}
			if row, ok := c.view.port(p.Row.Name); ok {
				wanted[row.UUID] = true
			}
		}
	}
	for _, ch := range changes {
		for _, name := range ch.RemovePorts {
			if row, ok := c.view.port(name); ok {
				wanted[row.UUID] = true
			}
		}
	}
	if len(wanted) == 0 {
		return
	}
	c.view.eachGroup(func(g *nb.PortGroup) {
		var into map[string][]nb.PortGroup
		switch {
		case followsNode(g.ExternalIDs):
			into = c.following
		case isSecurityGroup(g.ExternalIDs):
			into = c.secure
		default:
			return
		}
		for _, uuid := range g.Ports {
			if wanted[uuid] {
				into[uuid] = append(into[uuid], nb.PortGroup{UUID: g.UUID, Name: g.Name})
			}
		}
	})
}

// followsNode tells whether a port group is one whose members this package decides.
func followsNode(ids map[string]string) bool {
	return ids[nb.Vendor] == nb.VendorKubeOVN && ids[nb.KeyNode] != ""
}

func isSecurityGroup(ids map[string]string) bool {
	return ids[nb.Vendor] == nb.VendorKubeOVN && ids[nb.KeyType] == nb.TypeSecurityGroup && ids[nb.KeySecurityGroup] != ""
}

// secureGroups returns the port groups of SecurityGroups, of those that have one. A port in any of them is denied what
// none of them allows.
func (c *composer) secureGroups(names []string) []string {
	var out []string
	find := func(sg string) {
		if name := nb.SecurityGroupName(sg); c.secured(sg) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	for _, sg := range names {
		find(sg)
	}
	if len(out) > 0 {
		find(nb.DenyAll)
	}
	return out
}

// regroup makes a port a member of exactly these groups, of those of their kind that it is in.
func (c *composer) regroup(uuid string, have []nb.PortGroup, want []string) {
	for _, g := range have {
		if !slices.Contains(want, g.Name) {
			c.refer(tableGroup, g.UUID, nil, []string{uuid})
		}
	}
	for _, name := range want {
		if slices.ContainsFunc(have, func(g nb.PortGroup) bool { return g.Name == name }) {
			continue
		}
		// A group that was asked for but is of another kind isn't among the members found.
		if row, ok := c.view.group(name); ok && slices.Contains(row.Ports, uuid) {
			continue
		}
		c.refer(tableGroup, c.groupRef(name), []string{uuid}, nil)
	}
}
