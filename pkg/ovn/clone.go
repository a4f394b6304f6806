package ovn

import (
	"maps"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/model"
)

// CloneModel implements model.CloneableModel.
func (r *globalRow) CloneModel() model.Model { c := &globalRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *globalRow) CloneModelInto(m model.Model) {
	c := m.(*globalRow)
	*c = *r
	c.ExternalIDs, c.Options = maps.Clone(r.ExternalIDs), maps.Clone(r.Options)
}

// CloneModel implements model.CloneableModel.
func (r *switchRow) CloneModel() model.Model { c := &switchRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *switchRow) CloneModelInto(m model.Model) {
	c := m.(*switchRow)
	*c = *r
	c.ExternalIDs, c.OtherConfig = maps.Clone(r.ExternalIDs), maps.Clone(r.OtherConfig)
	c.ACLs = slices.Clone(r.ACLs)
}

// CloneModel implements model.CloneableModel.
func (r *routerRow) CloneModel() model.Model { c := &routerRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *routerRow) CloneModelInto(m model.Model) {
	c := m.(*routerRow)
	*c = *r
	c.ExternalIDs, c.Options = maps.Clone(r.ExternalIDs), maps.Clone(r.Options)
	c.Policies, c.NAT, c.StaticRoutes = slices.Clone(r.Policies), slices.Clone(r.NAT), slices.Clone(r.StaticRoutes)
}

// CloneModel implements model.CloneableModel.
func (r *portRow) CloneModel() model.Model { c := &portRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *portRow) CloneModelInto(m model.Model) {
	c := m.(*portRow)
	*c = *r
	c.Addresses, c.PortSecurity = slices.Clone(r.Addresses), slices.Clone(r.PortSecurity)
	c.ExternalIDs, c.Options = maps.Clone(r.ExternalIDs), maps.Clone(r.Options)
	c.Tag, c.DHCPv4, c.DHCPv6 = clonePtr(r.Tag), clonePtr(r.DHCPv4), clonePtr(r.DHCPv6)
}

// CloneModel implements model.CloneableModel.
func (r *routerPortRow) CloneModel() model.Model {
	c := &routerPortRow{}
	r.CloneModelInto(c)
	return c
}

// CloneModelInto implements model.CloneableModel.
func (r *routerPortRow) CloneModelInto(m model.Model) {
	c := m.(*routerPortRow)
	*c = *r
	c.Networks, c.ExternalIDs = slices.Clone(r.Networks), maps.Clone(r.ExternalIDs)
	c.Options, c.Peer, c.GatewayChassis = maps.Clone(r.Options), clonePtr(r.Peer), slices.Clone(r.GatewayChassis)
}

// CloneModel implements model.CloneableModel.
func (r *chassisRow) CloneModel() model.Model { c := &chassisRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *chassisRow) CloneModelInto(m model.Model) {
	c := m.(*chassisRow)
	*c = *r
	c.ExternalIDs = maps.Clone(r.ExternalIDs)
}

// CloneModel implements model.CloneableModel.
func (r *groupRow) CloneModel() model.Model { c := &groupRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *groupRow) CloneModelInto(m model.Model) {
	c := m.(*groupRow)
	*c = *r
	c.Ports, c.ExternalIDs, c.ACLs = slices.Clone(r.Ports), maps.Clone(r.ExternalIDs), slices.Clone(r.ACLs)
}

// CloneModel implements model.CloneableModel.
func (r *dhcpRow) CloneModel() model.Model { c := &dhcpRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *dhcpRow) CloneModelInto(m model.Model) {
	c := m.(*dhcpRow)
	*c = *r
	c.Options, c.ExternalIDs = maps.Clone(r.Options), maps.Clone(r.ExternalIDs)
}

// CloneModel implements model.CloneableModel.
func (r *policyRow) CloneModel() model.Model { c := &policyRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *policyRow) CloneModelInto(m model.Model) {
	c := m.(*policyRow)
	*c = *r
	c.Nexthops, c.ExternalIDs = slices.Clone(r.Nexthops), maps.Clone(r.ExternalIDs)
}

// CloneModel implements model.CloneableModel.
func (r *natRow) CloneModel() model.Model { c := &natRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *natRow) CloneModelInto(m model.Model) {
	c := m.(*natRow)
	*c = *r
	c.ExternalMAC, c.LogicalPort = clonePtr(r.ExternalMAC), clonePtr(r.LogicalPort)
	c.Options, c.ExternalIDs = maps.Clone(r.Options), maps.Clone(r.ExternalIDs)
}

// CloneModel implements model.CloneableModel.
func (r *staticRow) CloneModel() model.Model { c := &staticRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *staticRow) CloneModelInto(m model.Model) {
	c := m.(*staticRow)
	*c = *r
	c.Policy, c.ExternalIDs = clonePtr(r.Policy), maps.Clone(r.ExternalIDs)
}

// CloneModel implements model.CloneableModel.
func (r *aclRow) CloneModel() model.Model { c := &aclRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *aclRow) CloneModelInto(m model.Model) {
	c := m.(*aclRow)
	*c = *r
	c.Name, c.Severity = clonePtr(r.Name), clonePtr(r.Severity)
	c.Options, c.ExternalIDs = maps.Clone(r.Options), maps.Clone(r.ExternalIDs)
}

// CloneModel implements model.CloneableModel.
func (r *setRow) CloneModel() model.Model { c := &setRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *setRow) CloneModelInto(m model.Model) {
	c := m.(*setRow)
	*c = *r
	c.Addresses, c.ExternalIDs = slices.Clone(r.Addresses), maps.Clone(r.ExternalIDs)
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
