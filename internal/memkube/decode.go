package memkube

import (
	"fmt"
	"io"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// maxBody is the API server's limit of a request body.
const maxBody = 3 << 20

func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body could not be read: %v", err))
	}
	if len(body) > maxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	return body, nil
}

// decodeObject reads an object of the expected kind out of the body, as JSON, YAML or, for built-in kinds, protobuf.
// Fields that no Go type knows are kept, except in protobuf.
func decodeObject(r *http.Request, want schema.GroupVersionKind) (map[string]any, error) {
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	obj, err := decode(r.Header.Get("Content-Type"), body)
	if err != nil {
		return nil, err
	}
	version, kind := want.GroupVersion().String(), want.Kind
	if got, _ := obj["apiVersion"].(string); got != "" && got != version {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", got, version))
	}
	if got, _ := obj["kind"].(string); got != "" && got != kind {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the kind in the data (%s) does not match the expected kind (%s)", got, kind))
	}
	obj["apiVersion"], obj["kind"] = version, kind
	return obj, nil
}

func decode(contentType string, body []byte) (map[string]any, error) {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		media = "application/json"
	}
	switch media {
	case "application/json":
		return decodeJSON(body)
	case "application/yaml":
		raw, err := yaml.YAMLToJSON(body)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return decodeJSON(raw)
	case runtime.ContentTypeProtobuf:
		return decodeProtobuf(body)
	}
	return nil, unsupportedMediaType(media)
}

func decodeJSON(body []byte) (map[string]any, error) {
	var obj map[string]any
	if err := utiljson.Unmarshal(body, &obj); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is no JSON object: %v", err))
	}
	if obj == nil {
		return nil, apierrors.NewBadRequest("the body is empty, send an object")
	}
	return obj, nil
}

func decodeProtobuf(body []byte) (map[string]any, error) {
	typed, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body is no known protobuf message, send JSON: %v", err))
	}
	obj, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	obj["apiVersion"], obj["kind"] = gvk.GroupVersion().String(), gvk.Kind
	return obj, nil
}

// decodeDeleteOptions reads them from the body, or from the query when there is no body.
func decodeDeleteOptions(r *http.Request) (*metav1.DeleteOptions, error) {
	opts := &metav1.DeleteOptions{}
	body, err := readBody(r)
	if err != nil {
		return nil, err
	}
	if len(body) == 0 {
		if err := metav1.ParameterCodec.DecodeParameters(r.URL.Query(), schema.GroupVersion{Version: "v1"}, opts); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return opts, nil
	}
	obj, err := decode(r.Header.Get("Content-Type"), body)
	if err != nil {
		return nil, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj, opts); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return opts, nil
}

func unsupportedMediaType(media string) error {
	return apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "", schema.GroupResource{}, "",
		fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: "+
			"application/json, application/yaml, not %s", media), 0, true)
}

func isDryRun(r *http.Request) bool { return r.URL.Query().Get("dryRun") == metav1.DryRunAll }
