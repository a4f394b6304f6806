package topology

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// Networks are those that a cluster begins with. One without a CIDR isn't made.
type Networks struct {
	// PodCIDR is the network of pods that ask for none, or one of each family joined by a comma. PodGateway is in it, empty:
	// its first address; PodExclude lists addresses and ranges (10.16.0.2..10.16.0.9) that no pod gets.
	PodCIDR, PodGateway, PodExclude string
	// NodeCIDR and NodeGateway are those of the switch that joins the nodes to the cluster router.
	NodeCIDR, NodeGateway string
}

// NetworksError tells that a cluster can't begin with the networks that are given.
type NetworksError struct {
	// Subnet that they would be.
	Subnet string
	Err    error
}

// Error implements error.
func (e *NetworksError) Error() string {
	return fmt.Sprintf("networks that a cluster begins with: subnet %s: %v", e.Subnet, e.Err)
}

// Unwrap returns what is wrong.
func (e *NetworksError) Unwrap() error { return e.Err }

// Objects returns the Vpc and the Subnets, complete. Without networks there is no Vpc either.
func (n Networks) Objects(cfg Config) (*kubeovnv1.Vpc, []*kubeovnv1.Subnet, error) {
	var subnets []*kubeovnv1.Subnet
	add := func(name, cidr string, spec kubeovnv1.SubnetSpec) error {
		if cidr == "" {
			return nil
		}
		s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		s.Spec.CIDRBlock = cidr
		patch, err := Defaults(s, cfg)
		if err != nil {
			return &NetworksError{Subnet: name, Err: err}
		}
		patch.Apply(s)
		subnets = append(subnets, s)
		return nil
	}
	if err := add(cfg.NodeSwitch, n.NodeCIDR, kubeovnv1.SubnetSpec{Gateway: n.NodeGateway, DisableInterConnection: true}); err != nil {
		return nil, nil, err
	}
	if err := add(cfg.DefaultSubnet, n.PodCIDR, kubeovnv1.SubnetSpec{
		Gateway: n.PodGateway, ExcludeIps: slices.Collect(splitList(n.PodExclude)), Default: true, NatOutgoing: true,
	}); err != nil {
		return nil, nil, err
	}
	if len(subnets) == 0 {
		return nil, nil, nil
	}
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: cfg.ClusterRouter}}
	_, findings := Rows(Input{Vpcs: []*kubeovnv1.Vpc{vpc}, Subnets: subnets, Config: cfg})
	for _, f := range findings {
		return nil, nil, &NetworksError{Subnet: f.Name, Err: f.Err}
	}
	return vpc, subnets, nil
}
