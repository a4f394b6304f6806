package node

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestExpand(t *testing.T) {
	known := map[string]string{"A": "1", "B": "$(A)"}
	for text, want := range map[string]string{
		"": "", "plain": "plain", "$(A)": "1", "x$(A)y$(A)": "x1y1", "$(NONE)": "$(NONE)", "$$(A)": "$(A)", "$$": "$", "$": "$", "a$": "a$",
		"$(A": "$(A", "$A": "$A", "$(B)": "$(A)", "$()": "$()", "$$$(A)": "$1",
	} {
		if got := Expand(text, known); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func field(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func TestEnvAndArgs(t *testing.T) {
	pod := podWith(map[string]string{"team.example/name": "net"})
	pod.Spec.NodeName = "node-1"
	pod.Status.PodIP = "10.16.0.5"
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.16.0.5"}, {IP: "fd00::5"}}
	yes := true
	c := &corev1.Container{
		Command: []string{"ignored", "--first"},
		Args:    []string{"--addr=$(WHERE)", "$(UNKNOWN)"},
		Env: []corev1.EnvVar{
			field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"), field("POD_IP", "status.podIP"),
			field("POD_IPS", "status.podIPs"), field("NODE", "spec.nodeName"), field("SA", "spec.serviceAccountName"),
			field("TEAM", "metadata.annotations['team.example/name']"),
			{Name: "WHERE", Value: "$(POD_IP):80"},
			{Name: "OPTIONAL", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Optional: &yes}}},
		},
	}
	env, err := Env(pod, c)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"POD_NAME=web-0", "POD_NAMESPACE=shop", "POD_IP=10.16.0.5", "POD_IPS=10.16.0.5,fd00::5", "NODE=node-1", "SA=default",
		"TEAM=net", "WHERE=10.16.0.5:80"}
	if d := cmp.Diff(want, env); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"--first", "--addr=10.16.0.5:80", "$(UNKNOWN)"}, Args(c, env)); d != "" {
		t.Error(d)
	}
}

func TestEnvRefuses(t *testing.T) {
	for _, e := range []corev1.EnvVar{
		field("X", "spec.unknown"),
		{Name: "X", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}},
	} {
		_, err := Env(podWith(), &corev1.Container{Env: []corev1.EnvVar{e}})
		var wrong *EnvError
		if !errors.As(err, &wrong) {
			t.Errorf("%v: %v", e, err)
		}
	}
}
