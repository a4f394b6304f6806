package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const repo = "../../.."

func architectures() []string { return []string{"amd64", "arm64"} }

// TestImage builds the image twice: both times it is the same one, for both architectures, with the programs and nothing
// else in it, and its programs run where nothing else is.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	build := func(name string) v1.Hash {
		t.Helper()
		digest, err := Build(t.Context(), Options{Repo: repo, Out: filepath.Join(dir, name), Tag: "v0", Architectures: architectures(), Log: os.Stderr})
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	first, second := build("a"), build("b")
	if first != second {
		t.Errorf("digests differ: %s, then %s", first, second)
	}
	index := read(t, filepath.Join(dir, "a"), first)
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != len(architectures()) {
		t.Fatalf("manifests %v", manifest.Manifests)
	}
	for n, arch := range architectures() {
		d := manifest.Manifests[n]
		if d.Platform.OS != "linux" || d.Platform.Architecture != arch || d.MediaType != types.OCIManifestSchema1 {
			t.Errorf("manifest %v, want linux/%s", d, arch)
		}
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkConfig(t, img, arch)
		root := unpack(t, img)
		for _, name := range Programs() {
			checkProgram(t, filepath.Join(root, name), arch)
		}
		if arch == runtime.GOARCH {
			checkRuns(t, root)
		}
	}
}

// read is the index of a layout, which has to be the only thing in it.
func read(t *testing.T, dir string, digest v1.Hash) v1.ImageIndex {
	t.Helper()
	outer, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := outer.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].Digest != digest || manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v0" {
		t.Fatalf("the layout has %v", manifest.Manifests)
	}
	index, err := outer.ImageIndex(digest)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func checkConfig(t *testing.T, img v1.Image, arch string) {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c.OS != "linux" || c.Architecture != arch || c.Config.User != "65532:65532" || c.Created.Unix() != 0 || len(c.Config.Entrypoint) != 0 {
		t.Errorf("configuration %+v", c)
	}
}

// unpack writes the image's files into a directory, and checks that there are the programs only, which nobody can write.
func unpack(t *testing.T, img v1.Image) string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	root, names := t.TempDir(), []string(nil)
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for files := tar.NewReader(r); ; {
			h, err := files.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Typeflag != tar.TypeReg || h.Mode != 0o555 || h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 || strings.Contains(h.Name, "/") {
				t.Errorf("file %+v", h)
			}
			names = append(names, h.Name)
			var body bytes.Buffer
			if _, err := io.Copy(&body, files); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, filepath.Base(h.Name)), body.Bytes(), 0o555); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(Programs(), names); d != "" {
		t.Error(d)
	}
	return root
}

// checkProgram wants a program of its architecture that needs no library.
func checkProgram(t *testing.T, path, arch string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; f.Machine != want {
		t.Errorf("%s is for %s", path, f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s wants a loader", path)
		}
	}
}

// checkRuns starts each program with nothing in its environment.
func checkRuns(t *testing.T, root string) {
	t.Helper()
	for name, want := range map[string]string{"webhook": "--webhook-port", "finalizer-worker": "--ovn-nb-addr", "kubectl-berth": "uninstall"} {
		if out, err := inside(t, root, name, "--help").CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s --help: %v\n%s", name, err, out)
		}
	}
	// Without a cluster it says so and ends, instead of hanging.
	if out, err := inside(t, root, "webhook", "--replica=a").CombinedOutput(); err == nil || !strings.Contains(string(out), "no API server known") {
		t.Errorf("webhook without a cluster: %v\n%s", err, out)
	}
}

// inside is a program with nothing but the image around it, as the image's user: where the test may do that.
func inside(t *testing.T, root, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, name), args...)
	if os.Getuid() == 0 {
		cmd = exec.CommandContext(t.Context(), "/"+name, args...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	}
	cmd.Env = []string{"PATH=/"}
	return cmd
}
