package topology

import (
	"encoding/json"
	"reflect"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// SubnetPatch has the fields of a Subnet's spec that are to change; nil means unchanged. Its JSON is the spec part of a
// merge patch.
type SubnetPatch struct {
	Default     *bool    `json:"default,omitempty"`
	Vpc         *string  `json:"vpc,omitempty"`
	Protocol    *string  `json:"protocol,omitempty"`
	CIDRBlock   *string  `json:"cidrBlock,omitempty"`
	Gateway     *string  `json:"gateway,omitempty"`
	ExcludeIps  []string `json:"excludeIps,omitempty"`
	Provider    *string  `json:"provider,omitempty"`
	GatewayType *string  `json:"gatewayType,omitempty"`
}

// Empty tells that nothing is to change.
func (p SubnetPatch) Empty() bool { return reflect.ValueOf(p).IsZero() }

// MergePatch returns the JSON merge patch of the single fields, or nil when nothing is to change. It carries no other
// field, so it takes nothing from another writer.
func (p SubnetPatch) MergePatch() ([]byte, error) {
	if p.Empty() {
		return nil, nil
	}
	return json.Marshal(map[string]SubnetPatch{"spec": p})
}

// Apply changes a Subnet as the patch says.
func (p SubnetPatch) Apply(s *kubeovnv1.Subnet) {
	set := func(to *string, from *string) {
		if from != nil {
			*to = *from
		}
	}
	if p.Default != nil {
		s.Spec.Default = *p.Default
	}
	set(&s.Spec.Vpc, p.Vpc)
	set(&s.Spec.Protocol, p.Protocol)
	set(&s.Spec.CIDRBlock, p.CIDRBlock)
	set(&s.Spec.Gateway, p.Gateway)
	set(&s.Spec.Provider, p.Provider)
	set(&s.Spec.GatewayType, p.GatewayType)
	if p.ExcludeIps != nil {
		s.Spec.ExcludeIps = p.ExcludeIps
	}
}
