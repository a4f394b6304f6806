//go:build e2e

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-net/berth/e2e/proc"
)

// TestLife brings a cluster up without Berth, plays webhook and worker by hand for one pod per node, and sees their
// packets cross the tunnel, an agent come back, and nothing be left at the end. Needs root.
func TestLife(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "bc") // t.TempDir's paths are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	agent := filepath.Join(t.TempDir(), "node-agent")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", agent, "../cmd/node-agent").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	o := Options{Dir: dir, NodeBin: agent, WithoutBerth: true, NodeArgs: []string{"--record-timeout=0s"}, Progress: os.Stderr}
	c, err := Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Down(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
		out, err := proc.Run(context.WithoutCancel(ctx), "", "ip", "netns")
		if err != nil || strings.Contains(out, c.Name) {
			t.Errorf("left behind: %s %v", out, err)
		}
	})
	if _, err := Start(ctx, o); !errors.As(err, new(*AlreadyRunningError)) {
		t.Errorf("a second start: %v", err)
	}
	nb(ctx, t, c, "ls-add ovn-default -- lr-add ovn-cluster -- lrp-add ovn-cluster r 0a:00:00:00:00:01 10.16.0.1/16 fd00:10:16::1/112 "+
		"-- lsp-add ovn-default s -- lsp-set-type s router -- lsp-set-addresses s router -- lsp-set-options s router-port=r")
	for n, node := range c.NodeNames() {
		wire(ctx, t, c, fmt.Sprintf("p%d", n), node, 10+n)
	}
	for n := range c.NodeNames() {
		ready(ctx, t, c, fmt.Sprintf("p%d", n))
	}
	for _, address := range []string{"10.16.0.11", "fd00:10:16::b"} {
		if out, err := c.Exec(ctx, "demo", "p0", "ping", "-n", "-c", "2", "-W", "2", address); err != nil {
			t.Errorf("across nodes to %s: %v %s", address, err, out)
		}
	}
	restartAgent(ctx, t, c)
}

func nb(ctx context.Context, t *testing.T, c *Cluster, line string) {
	t.Helper()
	args := append([]string{"--db=" + c.NBSocket(), "--timeout=10"}, strings.Fields(line)...)
	if _, err := proc.Run(ctx, "", "ovn-nbctl", args...); err != nil {
		t.Fatal(err)
	}
}

// wire makes a pod, its northbound row and its annotations.
func wire(ctx context.Context, t *testing.T, c *Cluster, name, node string, last int) {
	t.Helper()
	v4, v6, mac := fmt.Sprintf("10.16.0.%d", last), fmt.Sprintf("fd00:10:16::%x", last), fmt.Sprintf("0a:58:0a:10:00:%02x", last)
	if _, err := proc.Run(ctx, "", "ovn-nbctl", "--db="+c.NBSocket(), "lsp-add", "ovn-default", name+".demo",
		"--", "lsp-set-addresses", name+".demo", mac+" "+v4+" "+v6); err != nil {
		t.Fatal(err)
	}
	const p = "ovn.kubernetes.io/"
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "demo", Annotations: map[string]string{
			p + "ip_address": v4 + "," + v6, p + "mac_address": mac, p + "cidr": "10.16.0.0/16,fd00:10:16::/112",
			p + "gateway": "10.16.0.1,fd00:10:16::1", p + "logical_switch": "ovn-default",
		}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	if _, err := c.Client().CoreV1().Pods("demo").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Client().CoreV1().Pods("demo").Patch(ctx, name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"ovn.kubernetes.io/routed":"true"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func ready(ctx context.Context, t *testing.T, c *Cluster, name string) {
	t.Helper()
	var pod *corev1.Pod
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		var err error
		pod, err = c.Client().CoreV1().Pods("demo").Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning && len(pod.Status.PodIPs) == 2, err
	})
	if err != nil {
		t.Fatalf("pod %s: %v, status %+v", name, err, pod.Status)
	}
}

// restartAgent kills a node's agent, deletes its pod meanwhile, and expects the new agent to finish the job.
func restartAgent(ctx context.Context, t *testing.T, c *Cluster) {
	t.Helper()
	agent, err := c.Process("node-1-agent")
	if err != nil {
		t.Fatal(err)
	}
	netns, err := c.PodNetns(ctx, "demo", "p0")
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	now := int64(0)
	if err := c.Client().CoreV1().Pods("demo").Delete(ctx, "p0", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/run/netns/" + netns); err != nil {
		t.Fatalf("the pod's network went away without an agent: %v", err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		_, err := os.Stat("/run/netns/" + netns)
		return os.IsNotExist(err), nil
	})
	if err != nil {
		t.Errorf("the new agent leaves the sandbox of a pod that is gone: %v", err)
	}
}
