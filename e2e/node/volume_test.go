package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestMounted(t *testing.T) {
	secret := corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}
	p := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "tls", VolumeSource: secret}, {Name: "other"}}}}
	c := &corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "tls", MountPath: "/var/run/tls"}, {Name: "other", MountPath: "/other"}}}
	got := mounted(p, c, "/pods/1", []string{"--dir=/var/run/tls", "/var/run/tls/tls.crt", "--other=/other", "plain"})
	want := []string{"--dir=/pods/1/volumes/tls", "/pods/1/volumes/tls/tls.crt", "--other=/other", "plain"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
}

func TestLay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "v")
	for version, data := range map[string]map[string][]byte{"1": {"a": []byte("one"), "b": []byte("two")}, "2": {"a": []byte("three")}} {
		if same(dir, data) {
			t.Error("nothing, or something else, is the same")
		}
		if err := lay(dir, version, data); err != nil {
			t.Fatal(err)
		}
		if !same(dir, data) {
			t.Error("what was laid down is not there")
		}
		for name, want := range data {
			got, err := os.ReadFile(filepath.Join(dir, name))
			if diff := cmp.Diff(string(want), string(got)); diff != "" || err != nil {
				t.Errorf("%s: %v %s", name, err, diff)
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "..[0-9]*"))
	if err != nil || len(left) != 1 {
		t.Errorf("%v are left, %v", left, err)
	}
}
