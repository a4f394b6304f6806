package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	nad "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-net/berth/pkg/network"
)

// readNetworks reads which attachments a pod names.
func readNetworks(p network.Pod) network.Pod {
	if text := strings.TrimSpace(p.Annotations[network.NetworksKey]); text != "" {
		p.Networks, p.NetworksErr = selections(text, p.Namespace)
	}
	if text := p.Annotations[network.PluggedKey]; text != "" { // read before, when it was planned by
		p.Plugged, _ = selections(text, p.Namespace)
	}
	if text := strings.TrimSpace(p.Annotations[network.DefaultNetworkKey]); text != "" {
		list, err := selections(text, p.Namespace)
		switch {
		case err == nil && len(list) == 1:
			p.DefaultNetwork = &list[0]
		case p.NetworksErr == nil:
			p.NetworksErr = fmt.Errorf("%s=%q does not name one network: write <namespace>/<name>", network.DefaultNetworkKey, text)
		}
	}
	return p
}

func selections(text, namespace string) ([]network.Selection, error) {
	if err := countable(text); err != nil {
		return nil, err
	}
	list, err := nad.ParseNetworkAnnotation(text, namespace)
	if err != nil {
		return nil, fmt.Errorf("write <namespace>/<name>@<interface>, separated by commas, or a JSON list: %w", err)
	}
	out := make([]network.Selection, 0, len(list))
	for _, e := range list {
		s := network.Selection{Namespace: e.Namespace, Name: e.Name, Interface: e.InterfaceRequest, MAC: e.MacRequest}
		if err := valid(s); err != nil {
			return nil, err
		}
		for _, ip := range e.IPRequest {
			if host, _, err := net.ParseCIDR(ip); err == nil {
				ip = host.String()
			}
			s.IPs = append(s.IPs, ip)
		}
		out = append(out, s)
	}
	return out, nil
}

// countable refuses what costs more to look at than any pod can have, and a JSON list with null in it, which the parser
// does not expect.
func countable(text string) error {
	var list []*struct{}
	many := 0
	if json.Unmarshal([]byte(text), &list) == nil {
		many = len(list)
	} else if !strings.HasPrefix(strings.TrimSpace(text), "[") {
		many = strings.Count(text, ",") + 1
	}
	if many > maxNetworks {
		return fmt.Errorf("it names %d networks: a pod can have at most %d", many, maxNetworks)
	}
	if slices.Contains(list, nil) {
		return fmt.Errorf("%q has an element without name: name the NetworkAttachmentDefinition", text)
	}
	return nil
}

// valid checks the names of a selection: of JSON the parser takes any, also such as no object and no annotation can
// have.
func valid(s network.Selection) error {
	switch {
	case s.Name == "":
		return errors.New("an element has no name: name the NetworkAttachmentDefinition")
	case len(validation.IsDNS1123Subdomain(s.Name)) > 0 || len(validation.IsDNS1123Label(s.Namespace)) > 0:
		return fmt.Errorf("%q is not the name of a NetworkAttachmentDefinition: write <namespace>/<name>", s)
	case s.Interface != "" && (len(s.Interface) > maxInterface || len(validation.IsConfigMapKey(s.Interface)) > 0):
		return fmt.Errorf("%q is not the name of an interface: write at most %d letters, digits, '-', '_' and '.'", s.Interface, maxInterface)
	}
	return nil
}

// maxNetworks bounds the attachments of a pod: each costs a read of its definition and a lease.
const maxNetworks = 64

// maxInterface is how long Linux lets the name of an interface be.
const maxInterface = 15

// AttachmentOf tells whose network an attachment is.
func AttachmentOf(nad *netv1.NetworkAttachmentDefinition) network.Attachment {
	return readAttachment(nad.Spec.Config)
}

const cniType = "kube-ovn"

// plugin is what of a CNI configuration tells whose network it is.
type plugin struct {
	Type     string `json:"type"`
	Provider string `json:"provider"`
	IPAM     struct {
		Type     string `json:"type"`
		Provider string `json:"provider"`
	} `json:"ipam"`
	Plugins []plugin `json:"plugins"`
}

// readAttachment tells by a CNI configuration, or a list of them, whose network it is.
func readAttachment(config string) network.Attachment {
	if strings.TrimSpace(config) == "" {
		return network.Attachment{} // configured by a file on the nodes
	}
	var p plugin
	if err := json.Unmarshal([]byte(config), &p); err != nil {
		return network.Attachment{Err: fmt.Errorf("spec.config: %w", err)}
	}
	for _, x := range append([]plugin{p}, p.Plugins...) {
		if x.Type == cniType {
			if x.Provider == "" {
				return network.Attachment{Provider: network.DefaultProvider}
			}
			return network.Attachment{Provider: x.Provider}
		}
	}
	for _, x := range append([]plugin{p}, p.Plugins...) {
		if x.IPAM.Type == cniType {
			if x.IPAM.Provider == "" {
				return network.Attachment{Err: fmt.Errorf("spec.config: ipam.provider is empty: name it, by convention <name>.<namespace>")}
			}
			return network.Attachment{Provider: x.IPAM.Provider, IPAMOnly: true}
		}
	}
	return network.Attachment{}
}
