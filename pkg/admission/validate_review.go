package admission

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// Kinds that are validated, as metrics name them. All others are let through.
const (
	kindSubnet    = "Subnet"
	kindPool      = "IPPool"
	kindVip       = "Vip"
	kindNamespace = "Namespace"
	kindOther     = "other"
)

func validatedKinds() []string { return []string{kindSubnet, kindPool, kindVip, kindNamespace} }

// change is a request about a kind of any sort, with the objects as they came.
type change struct {
	request
	Name      string          `json:"name"`
	Object    json.RawMessage `json:"object"`
	OldObject json.RawMessage `json:"oldObject"`
}

// decodeChange reads a review; its errors are the caller's fault.
func decodeChange(body []byte) (*change, error) {
	var r struct {
		APIVersion string  `json:"apiVersion"`
		Kind       string  `json:"kind"`
		Request    *change `json:"request"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &r); err != nil {
		return nil, fmt.Errorf("the body is not an AdmissionReview: %w", err)
	}
	var asked *request
	if r.Request != nil {
		asked = &r.Request.request
	}
	if err := understood(r.APIVersion, r.Kind, asked); err != nil {
		return nil, err
	}
	return r.Request, nil
}

func (c *change) deletes() bool { return c.Operation == admissionv1.Delete }

// kind is kindOther for what is not validated: other resources, other operations, and all subresources.
func (c *change) kind() string {
	switch c.Operation {
	case admissionv1.Create, admissionv1.Update, admissionv1.Delete:
	default:
		return kindOther
	}
	if c.SubResource != "" {
		return kindOther
	}
	switch c.Resource.Group + "/" + c.Resource.Resource {
	case "kubeovn.io/subnets":
		return kindSubnet
	case "kubeovn.io/ippools":
		return kindPool
	case "kubeovn.io/vips":
		return kindVip
	case "/namespaces":
		return kindNamespace
	}
	return kindOther
}

// subject is the change of one object, and how it is judged.
type subject struct {
	// matters is false for a change of nothing that is judged.
	matters func() bool
	// subnets are those whose leases decide.
	subnets  func() []string
	validate func(network.World) ([]string, field.ErrorList)
}

// subject reads the objects. A kind that is read here but not understood is no fault of its author's: the API server has
// accepted it.
func (c *change) subject() (subject, error) {
	switch c.kind() {
	case kindSubnet:
		now, old, err := both[kubeovnv1.Subnet](c)
		return subject{
			matters:  func() bool { return now == nil || old == nil || !network.SameSubnet(now, old) },
			subnets:  func() []string { return leased(old, func(s *kubeovnv1.Subnet) string { return s.Name }) },
			validate: func(w network.World) ([]string, field.ErrorList) { return network.ValidateSubnet(now, old, w) }}, err
	case kindPool:
		now, old, err := both[kubeovnv1.IPPool](c)
		return subject{matters: func() bool { return now == nil || old == nil || !reflect.DeepEqual(now.Spec, old.Spec) },
			subnets: func() []string {
				return leased(cmp.Or(old, now), func(p *kubeovnv1.IPPool) string { return p.Spec.Subnet })
			},
			validate: func(w network.World) ([]string, field.ErrorList) { return network.ValidatePool(now, old, w) }}, err
	case kindVip:
		now, old, err := both[kubeovnv1.Vip](c)
		return subject{matters: func() bool { return now == nil || old == nil || !reflect.DeepEqual(now.Spec, old.Spec) },
			subnets: func() []string {
				of := func(v *kubeovnv1.Vip) string { return v.Spec.Subnet }
				return append(leased(old, of), leased(now, of)...)
			},
			validate: func(w network.World) ([]string, field.ErrorList) { return network.ValidateVip(now, old, w) }}, err
	default:
		now, old, err := both[metav1.PartialObjectMetadata](c)
		return subject{matters: func() bool { return now != nil && now.DeletionTimestamp == nil },
			subnets: func() []string { return nil }, // nothing is refused for its leases
			validate: func(w network.World) ([]string, field.ErrorList) {
				return network.ValidateNamespace(namespaceOf(now), namespaceOf(old), w)
			}}, err
	}
}

// both reads the object as it is to be and as it was; nil where there is none.
func both[T any](c *change) (now, old *T, err error) {
	if now, err = object[T](c.Object); err != nil {
		return nil, nil, fmt.Errorf("reading the object of %s %s: %w", c.kind(), c.Name, err)
	}
	if old, err = object[T](c.OldObject); err != nil {
		return nil, nil, fmt.Errorf("reading the former object of %s %s: %w", c.kind(), c.Name, err)
	}
	if c.deletes() {
		now = nil
	}
	if c.Operation == admissionv1.Create {
		old = nil
	}
	if c.deletes() && old == nil || !c.deletes() && now == nil || c.Operation == admissionv1.Update && old == nil {
		return nil, nil, fmt.Errorf("the request about %s %s lacks an object", c.kind(), c.Name)
	}
	return now, old, nil
}

func object[T any](raw json.RawMessage) (*T, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	out := new(T)
	return out, kjson.UnmarshalCaseSensitivePreserveInts(raw, out)
}

// leased names the subnet of an object, if there is one.
func leased[T any](obj *T, subnet func(*T) string) []string {
	if obj == nil || subnet(obj) == "" {
		return nil
	}
	return []string{subnet(obj)}
}

func namespaceOf(m *metav1.PartialObjectMetadata) *network.Namespace {
	if m == nil {
		return nil
	}
	return &network.Namespace{Name: m.Name, Labels: m.Labels, Annotations: m.Annotations}
}
