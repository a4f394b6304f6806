// Package render builds the kustomizations of manifests.
//
// Invariant: what is shipped in other forms, install files and chart, is made of what this package returns, and of
// nothing else.
package render

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// Object is one object of the API, as decoded from YAML.
type Object map[string]any

// Kind is the object's kind.
func (o Object) Kind() string { return text(o, "kind") }

// Name is the object's name.
func (o Object) Name() string { return text(o, "metadata", "name") }

// Namespace is the object's namespace, empty for none.
func (o Object) Namespace() string { return text(o, "metadata", "namespace") }

// Key names the object among all others.
func (o Object) Key() string {
	group, _, _ := strings.Cut(text(o, "apiVersion"), "/")
	return strings.Join([]string{group, o.Kind(), o.Namespace(), o.Name()}, "/")
}

func text(o Object, path ...string) string {
	var at any = map[string]any(o)
	for _, p := range path {
		m, ok := at.(map[string]any)
		if !ok {
			return ""
		}
		at = m[p]
	}
	s, _ := at.(string)
	return s
}

// Overlay builds manifests/overlays/NAME of a work tree, with more components of manifests/components.
func Overlay(repo, name string, components ...string) ([]Object, error) {
	if len(components) == 0 {
		return Build(filepath.Join(repo, "manifests", "overlays", name))
	}
	dir, err := os.MkdirTemp("", "berth-ship-")
	if err != nil {
		return nil, fmt.Errorf("directory of a kustomization: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // it is of no use to anybody
	var out bytes.Buffer
	out.WriteString("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n")
	if err := entry(&out, dir, repo, "overlays", name); err != nil {
		return nil, err
	}
	out.WriteString("components:\n")
	for _, c := range components {
		if err := entry(&out, dir, repo, "components", c); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), out.Bytes(), 0o600); err != nil {
		return nil, fmt.Errorf("write a kustomization: %w", err)
	}
	return Build(dir)
}

// entry lists a directory of the manifests: kustomize takes relative paths only.
func entry(out *bytes.Buffer, dir, repo, kind, name string) error {
	from, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("directory of a kustomization: %w", err)
	}
	at, err := filepath.Abs(filepath.Join(repo, "manifests", kind, name))
	if err != nil {
		return fmt.Errorf("directory of the manifests: %w", err)
	}
	rel, err := filepath.Rel(from, at)
	if err != nil {
		return fmt.Errorf("way to the manifests: %w", err)
	}
	fmt.Fprintf(out, "- %q\n", rel)
	return nil
}

// Build builds a kustomization, in the order in which kubectl applies it.
func Build(dir string) ([]Object, error) {
	o := krusty.MakeDefaultOptions()
	o.Reorder = krusty.ReorderOptionLegacy
	m, err := krusty.MakeKustomizer(o).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", dir, err)
	}
	all, err := m.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("write %s as YAML: %w", dir, err)
	}
	return Decode(all)
}

// Decode reads the objects of a stream of YAML documents.
func Decode(stream []byte) ([]Object, error) {
	var out []Object
	for _, doc := range bytes.Split(append([]byte("\n"), stream...), []byte("\n---")) {
		var o Object
		if err := yaml.Unmarshal(doc, &o); err != nil {
			return nil, fmt.Errorf("decode an object: %w", err)
		}
		if len(o) == 0 {
			continue
		}
		if o.Kind() == "" || o.Name() == "" {
			return nil, errors.New("an object has no kind or no name:\n" + string(doc))
		}
		out = append(out, o)
	}
	return out, nil
}

// Encode writes objects as a stream of YAML documents.
func Encode(objects []Object) ([]byte, error) {
	var out bytes.Buffer
	for n, o := range objects {
		if n > 0 {
			out.WriteString("---\n")
		}
		doc, err := yaml.Marshal(o)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", o.Key(), err)
		}
		out.Write(doc)
	}
	return out.Bytes(), nil
}

// Sorted returns the objects by key.
func Sorted(objects []Object) []Object {
	return slices.SortedFunc(slices.Values(objects), func(a, b Object) int { return cmp.Compare(a.Key(), b.Key()) })
}
