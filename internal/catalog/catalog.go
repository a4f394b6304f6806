// Package catalog reads from the API server what a plan of a pod's network needs, for webhook and worker alike.
//
// Invariant: what it gives is one consistent view of the cache. A subnet is worked out anew only when something that
// it depends on has changed, so that the ledger meets the same value again and again.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"sync"

	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// AddToScheme registers the kinds that a catalog reads.
func AddToScheme(s *runtime.Scheme) error {
	return errors.Join(corev1.AddToScheme(s), kubeovnv1.AddToScheme(s), netv1.AddToScheme(s))
}

// Kinds are those that must be in the cache that a catalog reads from.
func Kinds() []client.Object {
	return []client.Object{&corev1.Namespace{}, &corev1.Node{}, &kubeovnv1.Subnet{}, &kubeovnv1.Vpc{}, &kubeovnv1.Vlan{},
		&kubeovnv1.ProviderNetwork{}, &kubeovnv1.IPPool{}, &kubeovnv1.Vip{}, &kubeovnv1.SecurityGroup{}, &kubeovnv1.IP{}}
}

// Options of a Catalog.
type Options struct {
	// Cache reads Kinds. What it gives is shared, and never changed here.
	Cache client.Reader
	// Live reads what is looked up for single pods: network attachments and StatefulSets.
	Live client.Reader
	// EIPs are the kinds of external addresses that Cache reads as well: see ServedEIPs.
	EIPs []schema.GroupVersionKind
	// Changes counts the changes of the cache of Kinds; nil: everything is worked out anew each time.
	Changes func() uint64
}

// Catalog gives pods, namespaces and topology as values. It is safe for concurrent use.
type Catalog struct {
	Options
	mu   sync.Mutex
	at   uint64
	last *network.Catalog
	memo map[string]worked

	live liveReads
}

// New makes a catalog.
func New(o Options) *Catalog {
	return &Catalog{Options: o, memo: map[string]worked{}, live: liveReads{turn: make(chan struct{}, 1)}}
}

// View is all that a plan of one pod needs.
type View struct {
	Pod       network.Pod
	Namespace network.Namespace
	Catalog   network.Catalog
}

// For gives the view for a pod: the pod with its attachments read, its namespace, and the topology. It may be late by what
// the cache lags behind: what it refuses is to be planned again with ForLive.
func (c *Catalog) For(ctx context.Context, pod network.Pod) (View, error) {
	var ns corev1.Namespace
	err := c.Cache.Get(ctx, client.ObjectKey{Name: pod.Namespace}, &ns)
	if apierrors.IsNotFound(err) { // a pod in it is being made
		err = c.Live.Get(ctx, client.ObjectKey{Name: pod.Namespace}, &ns)
	}
	if err != nil {
		return View{}, fmt.Errorf("reading namespace %s: %w", pod.Namespace, err)
	}
	cat, err := c.Topology(ctx)
	if err != nil {
		return View{}, err
	}
	return c.view(ctx, pod, &ns, cat)
}

// view puts the parts together, with what is looked up for the pod alone.
func (c *Catalog) view(ctx context.Context, pod network.Pod, ns *corev1.Namespace, cat network.Catalog) (View, error) {
	v := View{Pod: readNetworks(pod), Namespace: network.Namespace{Name: ns.Name, Labels: ns.Labels, Annotations: ns.Annotations}, Catalog: cat}
	var err error
	if v.Catalog.Attachments, err = c.attachments(ctx, v.Pod); err != nil {
		return View{}, err
	}
	if network.NeedsOrdinalStart(v.Pod) {
		if v.Pod.OrdinalStart, err = c.ordinalStart(ctx, v.Pod); err != nil {
			return View{}, err
		}
	}
	return v, nil
}

// ordinalStart reads the first ordinal of the pod's StatefulSet.
func (c *Catalog) ordinalStart(ctx context.Context, pod network.Pod) (int, error) {
	ref, ok := pod.Controller()
	if !ok {
		return 0, nil
	}
	var set unstructured.Unstructured
	set.SetGroupVersionKind(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
	err := c.Live.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: ref.Name}, &set)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading %s %s/%s: %w", ref.Kind, pod.Namespace, ref.Name, err)
	}
	start, _, err := unstructured.NestedInt64(set.Object, "spec", "ordinals", "start")
	if err != nil {
		return 0, fmt.Errorf("%s %s/%s: %w", ref.Kind, pod.Namespace, ref.Name, err)
	}
	return int(start), nil
}

// attachments reads the NetworkAttachmentDefinitions that the pod names.
func (c *Catalog) attachments(ctx context.Context, pod network.Pod) (map[string]network.Attachment, error) {
	named := pod.Networks
	if pod.DefaultNetwork != nil {
		named = append([]network.Selection{*pod.DefaultNetwork}, named...)
	}
	out := make(map[string]network.Attachment, len(named))
	for _, s := range named {
		if _, ok := out[s.String()]; ok {
			continue
		}
		var nad netv1.NetworkAttachmentDefinition
		err := c.Live.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Name}, &nad)
		switch {
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		case err != nil:
			return nil, fmt.Errorf("reading NetworkAttachmentDefinition %s: %w", s, err)
		default:
			out[s.String()] = readAttachment(nad.Spec.Config)
		}
	}
	return out, nil
}
