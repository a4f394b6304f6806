package ovn

import (
	"slices"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// Bulk returns those of a topology's rows that may be written before the others, in parts of at most that many, when there
// are more than one part of them: groups of nodes in subnets and policies, of which there are as many as subnets times
// nodes. A part alone changes no pod's traffic for the worse, and others write between two parts. The topology as a whole
// is to be written afterwards in any case.
func (c *Client) Bulk(rows nb.Rows, most int) []nb.Rows {
	groups, policies := c.MissingGroups(rows.Groups), c.missingPolicies(rows.Policies)
	if len(groups)+len(policies) <= most {
		return nil
	}
	parts := []nb.Rows{{Routers: rows.Routers}} // which policies need
	for chunk := range slices.Chunk(groups, most) {
		parts = append(parts, nb.Rows{Groups: chunk})
	}
	for chunk := range slices.Chunk(policies, most) {
		parts = append(parts, nb.Rows{Policies: chunk})
	}
	return parts
}

// missingPolicies are those of the policies that their routers don't have.
func (c *Client) missingPolicies(policies []nb.Policy) []nb.Policy {
	s := c.latest()
	if s == nil {
		return policies
	}
	r := s.routing()
	there := map[[2]string]bool{}
	for _, row := range r.routers {
		for _, uuid := range row.Policies {
			if p, ok := r.policies[uuid]; ok {
				there[[2]string{row.Name, PolicyName(p)}] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(policies), func(p nb.Policy) bool { return there[[2]string{p.Router, PolicyName(p.Row)}] })
}
