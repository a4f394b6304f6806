package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/berth-net/berth/pkg/network"
)

// review is the part of an AdmissionReview that is read.
type review struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Request    *request `json:"request"`
}

type request struct {
	UID         types.UID                   `json:"uid"`
	Resource    metav1.GroupVersionResource `json:"resource"`
	SubResource string                      `json:"subResource"`
	Namespace   string                      `json:"namespace"`
	Operation   admissionv1.Operation       `json:"operation"`
	DryRun      bool                        `json:"dryRun"`
	Object      *podInput                   `json:"object"`
}

// podInput is the part of a pod that is read.
type podInput struct {
	Metadata *struct {
		Name            string                  `json:"name"`
		GenerateName    string                  `json:"generateName"`
		UID             string                  `json:"uid"`
		Labels          map[string]string       `json:"labels"`
		Annotations     map[string]string       `json:"annotations"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
		Finalizers      []string                `json:"finalizers"`
		ManagedFields   []struct {
			Time string `json:"time"`
		} `json:"managedFields"`
	} `json:"metadata"`
	Spec struct {
		HostNetwork     bool              `json:"hostNetwork"`
		NodeName        string            `json:"nodeName"`
		NodeSelector    map[string]string `json:"nodeSelector"`
		SchedulingGates []struct {
			Name string `json:"name"`
		} `json:"schedulingGates"`
	} `json:"spec"`
}

// decode reads a review of a pod; its errors are the caller's fault.
func decode(body []byte) (*request, error) {
	var r review
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &r); err != nil {
		return nil, fmt.Errorf("the body is not an AdmissionReview of a pod: %w", err)
	}
	if err := understood(r.APIVersion, r.Kind, r.Request); err != nil {
		return nil, err
	}
	if r.Request.creates() && (r.Request.Object == nil || r.Request.Object.Metadata == nil) {
		return nil, errors.New("the request has no pod with metadata")
	}
	return r.Request, nil
}

// understood refuses other versions of reviews, and those that ask nothing or can't be answered.
func understood(apiVersion, kind string, r *request) error {
	switch {
	case apiVersion != admissionv1.SchemeGroupVersion.String() || kind != "AdmissionReview":
		return fmt.Errorf("%s of %q is not understood: list v1 in admissionReviewVersions", kind, apiVersion)
	case r == nil:
		return errors.New("the review has no request")
	case r.UID == "":
		return errors.New("the request has no uid")
	}
	return nil
}

// creates tells whether the request is one to answer by more than "allowed".
func (r *request) creates() bool {
	return r.Operation == admissionv1.Create && r.Resource.Group == "" && r.Resource.Resource == "pods" && r.SubResource == ""
}

// pod reduces the request's pod; the namespace is the request's, which is set when the object's is not.
func (r *request) pod() network.Pod {
	m, spec := r.Object.Metadata, r.Object.Spec
	p := network.Pod{Namespace: r.Namespace, Name: m.Name, GenerateName: m.GenerateName, UID: m.UID, Labels: m.Labels,
		Annotations: m.Annotations, OwnerReferences: m.OwnerReferences, Finalizers: m.Finalizers,
		HostNetwork: spec.HostNetwork, NodeName: spec.NodeName, NodeSelector: spec.NodeSelector}
	for _, g := range spec.SchedulingGates {
		p.SchedulingGates = append(p.SchedulingGates, g.Name)
	}
	return p
}

// moment is when the creation began, by the API server's clock and in whole seconds: it notes then who manages the
// pod's fields. The zero value: the review doesn't tell.
func (r *request) moment() time.Time {
	var latest time.Time
	for _, m := range r.Object.Metadata.ManagedFields {
		if t, err := time.Parse(time.RFC3339, m.Time); err == nil && t.After(latest) {
			latest = t
		}
	}
	return latest
}

// encode writes the answer.
func (d *decision) encode(uid types.UID) ([]byte, error) {
	d.bound()
	resp := &admissionv1.AdmissionResponse{UID: uid, Allowed: d.status == nil, Result: d.status, Warnings: d.warnings, AuditAnnotations: d.audit}
	if len(d.patch) > 0 {
		patch, err := json.Marshal(d.patch)
		if err != nil {
			return nil, fmt.Errorf("writing the patch: %w", err)
		}
		kind := admissionv1.PatchTypeJSONPatch
		resp.Patch, resp.PatchType = patch, &kind
	}
	out, err := json.Marshal(admissionv1.AdmissionReview{Response: resp,
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"}})
	if err != nil {
		return nil, fmt.Errorf("writing the answer: %w", err)
	}
	return out, nil
}
