package serve

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berth-net/berth/pkg/network"
)

// DefaultNetwork is how networks are planned unless flags say otherwise: as Kube-OVN's defaults are.
func DefaultNetwork() network.Config {
	return network.Config{DefaultSubnet: "ovn-default", ClusterRouter: "ovn-cluster", NodeSwitch: "join", PodNICType: "veth-pair"}
}

// RegisterNetwork adds the flags that decide what a pod's networks are, with the present values as defaults. All programs
// must be given the same.
func RegisterNetwork(fs *pflag.FlagSet, c *network.Config) {
	fs.StringVar(&c.DefaultSubnet, "default-ls", c.DefaultSubnet, "subnet of pods that nothing else decides for")
	fs.StringVar(&c.ClusterRouter, "cluster-router", c.ClusterRouter, "the default VPC, which is its router's name too")
	fs.StringVar(&c.NodeSwitch, "node-switch", c.NodeSwitch, "subnet that joins the nodes to the cluster router, which no pod may be in")
	fs.StringVar(&c.PodNICType, "pod-nic-type", c.PodNICType, "kind of interface of pods that don't choose")
	fs.BoolVar(&c.NonPrimary, "non-primary-cni-mode", c.NonPrimary, "another CNI has the default network: serve attachments only")
	fs.Var((*ownerKinds)(&c.Owners), "owner-kinds", "further kinds of controllers whose pods come back to their addresses, as group/Kind, joined by commas; the worker must be allowed to get them")
	keep := fs.VarPF((*inverse)(&c.ForgetVMs), "keep-vm-ip", "", "a virtual machine of KubeVirt keeps its addresses while it exists")
	keep.NoOptDefVal = "true"
}

// inverse is a flag that is true when what is behind it is false.
type inverse bool

func (i *inverse) String() string { return strconv.FormatBool(!bool(*i)) }

// Set reads the flag.
func (i *inverse) Set(text string) error {
	v, err := strconv.ParseBool(text)
	*i = inverse(!v)
	return err
}

// Type is that of a plain flag.
func (*inverse) Type() string { return "bool" }

// ownerKinds are kinds as group/Kind.
type ownerKinds []network.OwnerKind

func (o *ownerKinds) String() string { return strings.Join(o.GetSlice(), ",") }

// Set adds kinds, joined by commas.
func (o *ownerKinds) Set(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		if err := o.Append(strings.TrimSpace(word)); err != nil {
			return err
		}
	}
	return nil
}

// Type is that of a list of texts.
func (*ownerKinds) Type() string { return "strings" }

// Append adds a kind.
func (o *ownerKinds) Append(text string) error {
	group, kind, ok := strings.Cut(text, "/")
	if !ok || kind == "" || strings.Contains(kind, "/") {
		return fmt.Errorf("%q is not of the form group/Kind, as in apps.example.com/Database", text)
	}
	*o = append(*o, network.OwnerKind{Group: group, Kind: kind})
	return nil
}

// Replace sets the kinds.
func (o *ownerKinds) Replace(texts []string) error {
	*o = nil
	for _, t := range texts {
		if err := o.Append(t); err != nil {
			return err
		}
	}
	return nil
}

// GetSlice gives the kinds as they are written.
func (o *ownerKinds) GetSlice() []string {
	texts := []string{}
	for _, k := range *o {
		texts = append(texts, k.Group+"/"+k.Kind)
	}
	return texts
}
