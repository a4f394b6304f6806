package network

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-net/berth/pkg/ipam"
)

// Limits of the API server: of an object's name, and of a label's value.
const (
	maxName  = 253
	maxLabel = 63
)

// generated is how long the suffix is that the API server adds to generateName, and maxGenerated what it keeps of that.
const (
	generated    = 5
	maxGenerated = 58
)

// PortName names the logical switch port of a pod's network, and its IP record: <pod>.<namespace>, and .<provider> for
// all but the default network. A virtual machine's has the machine's name in place of the pod's.
func PortName(pod, namespace, provider string) string {
	name := pod + "." + namespace
	if provider != DefaultProvider && provider != "" {
		name += "." + provider
	}
	return name
}

func fits(what, name string, limit int) error {
	if len(name) <= limit {
		return nil
	}
	return fmt.Errorf("%s, and %q has %d characters of at most %d: shorten it", what, name, len(name), limit)
}

// Identity is the name under which a pod's ports and records go: its own, or its virtual machine's, whose pods share
// them.
func Identity(p Pod, o ipam.Owner) string {
	if o.Kind == KindVM {
		return o.Name
	}
	return p.Name
}

// identity is, for a pod that is yet to be named, a name of the same length.
func (pl *planner) identity() string {
	if name := Identity(pl.pod, pl.out.Owner); name != "" {
		return name
	}
	g := pl.pod.GenerateName
	return g[:min(len(g), maxGenerated)] + strings.Repeat("x", generated)
}

func (pl *planner) portName(provider string) string {
	return PortName(pl.identity(), pl.pod.Namespace, provider)
}

// podName is the pod's name, or what it is to be made from, and where that stands.
func (pl *planner) podName() (at *field.Path, value string) {
	if pl.pod.Name == "" {
		return field.NewPath("metadata", "generateName"), pl.pod.GenerateName
	}
	return field.NewPath("metadata", "name"), pl.pod.Name
}

// checkPorts refuses names from which no port or record can be made.
func (pl *planner) checkPorts(nets []*net) {
	at, value := pl.podName()
	for _, n := range nets {
		if err := fits("a port is named after pod, namespace and network", pl.portName(n.provider), maxName); err != nil {
			pl.errs = append(pl.errs, field.Invalid(at, value, err.Error()))
		}
	}
}

// checkNames refuses names from which no port, record or group can be made, and such as another's would be made.
func (pl *planner) checkNames(nets []*net) {
	pl.checkPorts(nets)
	at, value := pl.podName()
	// "a.b" in "c" would have the name of the network "b.c" of "a" in another namespace's sense: dots join the parts.
	name := pl.portName(DefaultProvider)
	for _, provider := range pl.providers() {
		if rest, ok := strings.CutSuffix(name, "."+provider); ok && provider != DefaultProvider && strings.Contains(rest, ".") {
			pl.errs = append(pl.errs, field.Invalid(at, value, fmt.Sprintf(
				"the port's name %s is also that of network %s of pod %s: leave the dots out of the pod's name", name, provider, people(rest))))
		}
	}
}

// people names the pod of a port's name "<pod>.<namespace>": only the pod's name may have dots.
func people(name string) string {
	dot := strings.LastIndexByte(name, '.')
	return name[:dot] + " in namespace " + name[dot+1:]
}

// providers that subnets name.
func (pl *planner) providers() []string {
	var out []string
	for _, s := range pl.cat.Subnets {
		if p := s.Provider(); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// groupName is the port group of a SecurityGroup.
func groupName(sg string) string { return "ovn.sg." + strings.ReplaceAll(sg, "-", ".") }
