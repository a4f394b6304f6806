package memkube

import (
	"net/http"
	"runtime"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// serveMeta answers discovery, version and health.
func (s *Server) serveMeta(w http.ResponseWriter, r *http.Request) {
	switch path := strings.TrimSuffix(r.URL.Path, "/"); path {
	case "/healthz", "/livez", "/readyz":
		_, _ = w.Write([]byte("ok")) // the client may be gone
	case "/version":
		writeJSON(w, http.StatusOK, version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.2+memkube",
			GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH})
	case "/api":
		writeJSON(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case "/apis":
		writeJSON(w, http.StatusOK, s.groups())
	default:
		gv, ok := strings.CutPrefix(path, "/apis/")
		if !ok {
			gv = strings.TrimPrefix(path, "/api/")
		}
		for _, g := range s.groups().Groups {
			if g.Name == gv {
				g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
				writeJSON(w, http.StatusOK, g)
				return
			}
		}
		if list := s.resources(gv); len(list.APIResources) > 0 {
			writeJSON(w, http.StatusOK, list)
			return
		}
		http.NotFound(w, r)
	}
}

func (s *Server) groups() metav1.APIGroupList {
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, k := range s.kinds {
		if k.Group == "" {
			continue
		}
		gv := metav1.GroupVersionForDiscovery{GroupVersion: k.apiVersion(), Version: k.Version}
		i := slices.IndexFunc(list.Groups, func(g metav1.APIGroup) bool { return g.Name == k.Group })
		if i < 0 {
			list.Groups = append(list.Groups, metav1.APIGroup{Name: k.Group,
				Versions: []metav1.GroupVersionForDiscovery{gv}, PreferredVersion: gv})
			continue
		}
		if !slices.Contains(list.Groups[i].Versions, gv) {
			list.Groups[i].Versions = append(list.Groups[i].Versions, gv)
		}
	}
	return list
}

func (s *Server) resources(gv string) metav1.APIResourceList {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv}
	for _, k := range s.kinds {
		if k.apiVersion() != gv {
			continue
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: k.Resource, SingularName: strings.ToLower(k.Kind), Namespaced: k.Namespaced, Kind: k.Kind, ShortNames: k.Short,
			Verbs: metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
		})
		if k.Status {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: k.Resource + "/status",
				Namespaced: k.Namespaced, Kind: k.Kind, Verbs: metav1.Verbs{"get", "patch", "update"}})
		}
		if k.isPod() {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: "pods/binding", Namespaced: true,
				Kind: "Binding", Verbs: metav1.Verbs{"create"}})
		}
	}
	slices.SortFunc(list.APIResources, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// groupKind is for errors.
func groupKind(k Kind) schema.GroupKind { return k.gvk().GroupKind() }
