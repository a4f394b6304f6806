// Package image builds the image of Berth's programs as an OCI layout, without a container engine.
//
// Invariant: the same work tree and toolchain give the same digest. The image holds the programs and nothing else: no
// shell, no package, no file that anybody could write.
package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user runs the programs: nobody's number, as in the manifests.
const user = "65532:65532"

// Programs are the commands of the image, each at the root under its name.
func Programs() []string { return []string{"webhook", "finalizer-worker", "kubectl-berth"} }

// Options of Build.
type Options struct {
	// Repo is the work tree.
	Repo string
	// Out is where the layout is written. What is there is replaced.
	Out string
	// Tag names the image in the layout.
	Tag string
	// Architectures are those of Go; all of Linux.
	Architectures []string
	// Log gets one line for each program.
	Log io.Writer
}

// Build builds the programs and writes the layout. It returns the digest of the image's index.
func Build(ctx context.Context, o Options) (v1.Hash, error) {
	if o.Tag == "" || o.Out == "" || len(o.Architectures) == 0 {
		return v1.Hash{}, errors.New("an image needs a tag, a directory and an architecture")
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range o.Architectures {
		img, err := o.image(ctx, arch)
		if err != nil {
			return v1.Hash{}, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	if err := os.RemoveAll(o.Out); err != nil {
		return v1.Hash{}, fmt.Errorf("replace the layout: %w", err)
	}
	path, err := layout.Write(o.Out, empty.Index)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("begin the layout: %w", err)
	}
	tag := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": o.Tag})
	if err := path.AppendIndex(index, tag); err != nil {
		return v1.Hash{}, fmt.Errorf("write the layout: %w", err)
	}
	return index.Digest()
}

// image is that of one architecture.
func (o Options) image(ctx context.Context, arch string) (v1.Image, error) {
	dir, err := os.MkdirTemp("", "berth-image-")
	if err != nil {
		return nil, fmt.Errorf("directory of the programs: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // the layer has them
	img := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	// A layer for each program: whoever pulls a new release of one gets only that.
	for _, name := range Programs() {
		if err := o.compile(ctx, arch, name, filepath.Join(dir, name)); err != nil {
			return nil, err
		}
		layer, err := programLayer(name, filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		img, err = mutate.Append(img, mutate.Addendum{Layer: layer, MediaType: types.OCILayer,
			History: v1.History{CreatedBy: "go build ./cmd/" + name, Created: v1.Time{Time: epoch()}}})
		if err != nil {
			return nil, fmt.Errorf("add %s to the image: %w", name, err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("configuration of the image: %w", err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: epoch()}
	config.Config = v1.Config{User: user, WorkingDir: "/", Env: []string{"PATH=/"}, Cmd: []string{"/" + Programs()[0]},
		Labels: map[string]string{"org.opencontainers.image.title": "berth", "org.opencontainers.image.version": o.Tag,
			"org.opencontainers.image.source": "https://github.com/berth-net/berth", "org.opencontainers.image.licenses": "Apache-2.0"}}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, fmt.Errorf("configure the image: %w", err)
	}
	return img, nil
}

// epoch is when everything was made: the hour of a build is nobody's business.
func epoch() time.Time { return time.Unix(0, 0).UTC() }

func (o Options) compile(ctx context.Context, arch, name, to string) error {
	if o.Log != nil {
		if _, err := fmt.Fprintf(o.Log, "building %s for %s\n", name, arch); err != nil {
			return fmt.Errorf("tell what is built: %w", err)
		}
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", to, "./cmd/"+name)
	cmd.Dir = o.Repo
	for _, e := range os.Environ() {
		// What the shell sets for its own builds must not change these.
		if !strings.HasPrefix(e, "GOFLAGS=") && !strings.HasPrefix(e, "GOEXPERIMENT=") && !strings.HasPrefix(e, "GOAMD64=") && !strings.HasPrefix(e, "GOARM64=") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s: %w\n%s", name, arch, err, out)
	}
	return nil
}

// programLayer is a layer of one program, owned by root and read only.
func programLayer(name, path string) (v1.Layer, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	head := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(body)), Mode: 0o555, ModTime: epoch(), Format: tar.FormatUSTAR}
	if err := errors.Join(w.WriteHeader(head), write(w, body), w.Close()); err != nil {
		return nil, fmt.Errorf("pack %s: %w", name, err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("make a layer of %s: %w", name, err)
	}
	return layer, nil
}

func write(w io.Writer, body []byte) error {
	_, err := w.Write(body)
	return err
}
