package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// volumePeriod is how often mounted Secrets are looked at; a kubelet takes up to a minute.
const volumePeriod = time.Second

// dataLink is what a kubelet switches over when the content of a volume changes; the files are links through it.
const dataLink = "..data"

// volumeDir is where the content of a pod's volume lies.
func volumeDir(podDir, volume string) string { return filepath.Join(podDir, "volumes", volume) }

// mounted replaces, in a program's arguments, the paths at which the container mounts Secrets by where their content lies:
// there is no mount namespace.
func mounted(pod *corev1.Pod, c *corev1.Container, podDir string, words []string) []string {
	var pairs []string
	for _, v := range pod.Spec.Volumes {
		for _, m := range c.VolumeMounts {
			if v.Secret != nil && m.Name == v.Name {
				pairs = append(pairs, m.MountPath, volumeDir(podDir, v.Name))
			}
		}
	}
	replace := strings.NewReplacer(pairs...)
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = replace.Replace(w)
	}
	return out
}

// volumes lays down the Secrets that a pod mounts, waiting for those that are not there yet, and follows their changes
// while the pod lives.
func (a *Agent) volumes(ctx context.Context, p *podActor, podDir string) error {
	for _, v := range p.latest().Spec.Volumes {
		if v.Secret == nil {
			continue
		}
		err := wait.PollUntilContextCancel(ctx, volumePeriod, true, func(ctx context.Context) (bool, error) {
			err := a.project(ctx, p, v.Secret.SecretName, volumeDir(podDir, v.Name))
			if err != nil {
				p.log.Warn("no content for a volume of the pod yet", "volume", v.Name, "error", err)
			}
			return err == nil, nil
		})
		if err != nil {
			return err
		}
		a.wg.Go(func() {
			tick := time.NewTicker(volumePeriod)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
				if err := a.project(ctx, p, v.Secret.SecretName, volumeDir(podDir, v.Name)); err != nil && ctx.Err() == nil {
					p.log.Warn("can't renew a volume of the pod, trying again", "volume", v.Name, "error", err)
				}
			}
		})
	}
	return nil
}

// project reads a Secret and lays it down where it has changed.
func (a *Agent) project(ctx context.Context, p *podActor, secret, dir string) error {
	s, err := a.client.CoreV1().Secrets(p.latest().Namespace).Get(ctx, secret, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read Secret %s: %w", secret, err)
	}
	if same(dir, s.Data) {
		return nil
	}
	return lay(dir, s.ResourceVersion, s.Data)
}

// same tells whether a volume holds this content.
func same(dir string, data map[string][]byte) bool {
	have, err := os.ReadDir(filepath.Join(dir, dataLink))
	if err != nil || len(have) != len(data) {
		return false
	}
	for name, want := range data {
		got, err := os.ReadFile(filepath.Join(dir, dataLink, name))
		if err != nil || !bytes.Equal(got, want) {
			return false
		}
	}
	return true
}

// lay writes a volume's content as a kubelet does: into a directory of its own, to which one link is switched over, so
// that nobody sees half of it.
func lay(dir, version string, data map[string][]byte) error {
	fresh := filepath.Join(dir, ".."+version)
	if err := os.MkdirAll(fresh, 0o755); err != nil {
		return fmt.Errorf("make the directory of a volume: %w", err)
	}
	for name, content := range data {
		if err := os.WriteFile(filepath.Join(fresh, name), content, 0o600); err != nil {
			return fmt.Errorf("write a volume: %w", err)
		}
	}
	old, _ := os.Readlink(filepath.Join(dir, dataLink))
	next := filepath.Join(dir, dataLink+"_tmp")
	if err := errors.Join(ignore(os.Remove(next), fs.ErrNotExist), os.Symlink(filepath.Base(fresh), next), os.Rename(next, filepath.Join(dir, dataLink))); err != nil {
		return fmt.Errorf("switch a volume over: %w", err)
	}
	for name := range data {
		if err := ignore(os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name)), fs.ErrExist); err != nil {
			return fmt.Errorf("link a volume's file: %w", err)
		}
	}
	if old == "" || old == filepath.Base(fresh) {
		return nil
	}
	return os.RemoveAll(filepath.Join(dir, old))
}

func ignore(err, harmless error) error {
	if errors.Is(err, harmless) {
		return nil
	}
	return err
}
