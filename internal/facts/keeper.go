package facts

import (
	"context"
	"strconv"
	"strings"

	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

const (
	kindStatefulSet = "StatefulSet"
	kindVMI         = "VirtualMachineInstance"
)

// Keeper asks the API server whether sticky owners still want their leases, each object at most once. It is not safe for
// concurrent use.
type Keeper struct {
	live        client.Reader
	mapper      meta.RESTMapper
	known       map[ipam.Owner]lifecycle.OwnerFacts
	attachments map[client.ObjectKey]provided
}

// provided is the provider of an attachment; vague when it could not be read.
type provided struct {
	provider string
	vague    bool
}

// NewKeeper makes one that reads from live.
func NewKeeper(live client.Reader, mapper meta.RESTMapper) *Keeper {
	return &Keeper{live: live, mapper: mapper, known: map[ipam.Owner]lifecycle.OwnerFacts{}, attachments: map[client.ObjectKey]provided{}}
}

// Keeps tells whether the owner of a lease still wants it. It answers Unknown on any doubt: the kind isn't served, the
// read failed, the object isn't understood.
func (k *Keeper) Keeps(ctx context.Context, h ipam.Held) lifecycle.Answer {
	o, number, ok := objectOf(h.Owner)
	switch {
	case !h.Owner.Sticky():
		return lifecycle.No
	case !ok:
		return lifecycle.Unknown
	}
	f, known := k.known[o]
	if !known {
		f = k.ask(ctx, o)
		k.known[o] = f
	}
	return lifecycle.Keeps(h, f, number)
}

// objectOf names the object that must exist for the owner to keep its leases, and the ordinal of its pod.
func objectOf(o ipam.Owner) (object ipam.Owner, number int64, ok bool) {
	if o.Kind == kindStatefulSet {
		o.Name, number, ok = splitOrdinal(o.Name)
		return o, number, ok
	}
	o.Name, _, _ = strings.Cut(o.Name, ":") // of a configured kind: who must exist, and whose address it is
	return o, 0, true
}

func (k *Keeper) ask(ctx context.Context, o ipam.Owner) lifecycle.OwnerFacts {
	obj, found := k.read(ctx, o)
	if found == lifecycle.No && o.Kind == network.KindVM { // an instance may be without a machine
		instance := o
		instance.Kind = kindVMI
		obj, found = k.read(ctx, instance)
	}
	f := lifecycle.OwnerFacts{Found: found}
	if found != lifecycle.Yes {
		return f
	}
	f.UID, f.Deleting = string(obj.GetUID()), obj.GetDeletionTimestamp() != nil
	var err error
	switch o.Kind {
	case kindStatefulSet:
		if f.Ordinals, err = ordinals(obj); err == nil {
			f.Networks, err = k.templateNetworks(ctx, obj)
		}
	case network.KindVM:
		f.UID = "" // a pod's controller is the instance, and every start makes another
		f.Networks = k.machineNetworks(ctx, obj)
	}
	if err != nil {
		return lifecycle.OwnerFacts{}
	}
	return f
}

func (k *Keeper) read(ctx context.Context, o ipam.Owner) (*unstructured.Unstructured, lifecycle.Answer) {
	mapping, err := k.mapper.RESTMapping(schema.GroupKind{Group: o.Group, Kind: o.Kind})
	if err != nil {
		return nil, lifecycle.Unknown
	}
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(mapping.GroupVersionKind)
	err = k.live.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: o.Name}, obj)
	switch {
	case apierrors.IsNotFound(err):
		return nil, lifecycle.No
	case err != nil:
		return nil, lifecycle.Unknown
	}
	return obj, lifecycle.Yes
}

// ordinals reads which pods a StatefulSet wants.
func ordinals(obj *unstructured.Unstructured) (*lifecycle.Ordinals, error) {
	replicas, found, err := unstructured.NestedInt64(obj.Object, "spec", "replicas")
	if err != nil {
		return nil, err
	}
	if !found {
		replicas = 1
	}
	start, _, err := unstructured.NestedInt64(obj.Object, "spec", "ordinals", "start")
	if err != nil {
		return nil, err
	}
	reserved, _, err := unstructured.NestedSlice(obj.Object, "spec", "reserveOrdinals")
	if err != nil {
		return nil, err
	}
	o := &lifecycle.Ordinals{Start: start, Replicas: replicas}
	for _, r := range reserved {
		numbers, err := reservedOrdinals(r)
		if err != nil {
			return nil, err
		}
		o.Reserved = append(o.Reserved, numbers...)
	}
	return o, nil
}

// maxReserved bounds how long a range of reserved ordinals may be.
const maxReserved = 10000

// reservedOrdinals reads a number, also as text, or a range "from-to".
func reservedOrdinals(v any) ([]int64, error) {
	if n, ok := v.(int64); ok {
		return []int64{n}, nil
	}
	text, _ := v.(string)
	from, to, ranged := strings.Cut(text, "-")
	if !ranged {
		to = from
	}
	first, err := strconv.ParseInt(strings.TrimSpace(from), 10, 32)
	if err != nil {
		return nil, err
	}
	last, err := strconv.ParseInt(strings.TrimSpace(to), 10, 32)
	if err != nil {
		return nil, err
	}
	if last-first > maxReserved {
		return nil, strconv.ErrRange
	}
	var out []int64
	for n := first; n <= last; n++ {
		out = append(out, n)
	}
	return out, nil
}

// templateNetworks reads in which subnets the pods of a StatefulSet are to be: those that the template names, else for
// the default network those of the namespace. A template that asks for addresses or a pool decides by these.
func (k *Keeper) templateNetworks(ctx context.Context, obj *unstructured.Unstructured) (*lifecycle.Networks, error) {
	an, _, err := unstructured.NestedStringMap(obj.Object, "spec", "template", "metadata", "annotations")
	if err != nil {
		return nil, err
	}
	out := &lifecycle.Networks{Subnets: map[string][]string{}}
	for key, value := range an {
		if provider, suffix, ok := network.SplitKey(key); ok && suffix == network.SuffixSubnet && strings.TrimSpace(value) != "" {
			out.Subnets[provider] = []string{strings.TrimSpace(value)}
		}
	}
	if _, named := out.Subnets[network.DefaultProvider]; named {
		return out, nil
	}
	for _, suffix := range []string{network.SuffixAddress, network.SuffixPool, network.SuffixVip} {
		if an[network.Key(network.DefaultProvider, suffix)] != "" {
			return out, nil
		}
	}
	var ns corev1.Namespace
	if err := k.live.Get(ctx, client.ObjectKey{Name: obj.GetNamespace()}, &ns); err != nil {
		return out, client.IgnoreNotFound(err)
	}
	var names []string
	for name := range strings.SplitSeq(ns.Annotations[network.Key(network.DefaultProvider, network.SuffixSubnet)], ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		out.Subnets[network.DefaultProvider] = names
	}
	return out, nil
}

// machineNetworks reads which attachments a virtual machine, or an instance, has. A spec that isn't understood says
// nothing.
func (k *Keeper) machineNetworks(ctx context.Context, obj *unstructured.Unstructured) *lifecycle.Networks {
	spec, found, err := unstructured.NestedMap(obj.Object, "spec", "template", "spec")
	if !found && err == nil && obj.GetKind() == kindVMI {
		spec, found, err = unstructured.NestedMap(obj.Object, "spec")
	}
	if err != nil || !found {
		return &lifecycle.Networks{}
	}
	absent, ok := absentInterfaces(spec)
	networks, _, err := unstructured.NestedSlice(spec, "networks")
	if err != nil || !ok {
		return &lifecycle.Networks{}
	}
	out := &lifecycle.Networks{Providers: []string{}}
	for _, n := range networks {
		entry, ok := n.(map[string]any)
		if !ok {
			return &lifecycle.Networks{}
		}
		name, _, _ := unstructured.NestedString(entry, "name")
		nad, _, err := unstructured.NestedString(entry, "multus", "networkName")
		switch {
		case err != nil:
			return &lifecycle.Networks{}
		case nad == "" || absent[name]:
			continue
		}
		p := k.provider(ctx, obj.GetNamespace(), nad)
		out.Providers = append(out.Providers, p.provider)
		out.Vague = out.Vague || p.vague
	}
	return out
}

// absentInterfaces are those that are to be unplugged.
func absentInterfaces(spec map[string]any) (map[string]bool, bool) {
	list, _, err := unstructured.NestedSlice(spec, "domain", "devices", "interfaces")
	if err != nil {
		return nil, false
	}
	out := map[string]bool{}
	for _, i := range list {
		entry, ok := i.(map[string]any)
		if !ok {
			return nil, false
		}
		name, _, _ := unstructured.NestedString(entry, "name")
		if state, _, _ := unstructured.NestedString(entry, "state"); state == "absent" {
			out[name] = true
		}
	}
	return out, true
}

// provider tells that of an attachment. One that is gone, or tells none, has by convention its own names.
func (k *Keeper) provider(ctx context.Context, namespace, nad string) provided {
	key := client.ObjectKey{Namespace: namespace, Name: nad}
	if ns, name, ok := strings.Cut(nad, "/"); ok {
		key = client.ObjectKey{Namespace: ns, Name: name}
	}
	if p, ok := k.attachments[key]; ok {
		return p
	}
	p := provided{provider: key.Name + "." + key.Namespace}
	var obj netv1.NetworkAttachmentDefinition
	switch err := k.live.Get(ctx, key, &obj); {
	case err == nil:
		a := catalog.AttachmentOf(&obj)
		if p.vague = a.Err != nil; a.Provider != "" {
			p.provider = a.Provider
		}
	case !apierrors.IsNotFound(err):
		p.vague = true
	}
	k.attachments[key] = p
	return p
}

// splitOrdinal splits the name of a StatefulSet's pod.
func splitOrdinal(pod string) (set string, ordinal int64, ok bool) {
	i := strings.LastIndexByte(pod, '-')
	if i <= 0 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(pod[i+1:], 10, 32)
	if err != nil || n < 0 {
		return "", 0, false
	}
	return pod[:i], n, true
}
