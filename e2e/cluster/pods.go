package cluster

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/e2e/node"
	"github.com/berth-net/berth/e2e/proc"
)

// PodNetns is the name of a pod's network namespace, by the pod's present incarnation.
func (c *Cluster) PodNetns(ctx context.Context, namespace, pod string) (string, error) {
	p, err := c.client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("find pod %s/%s: %w", namespace, pod, err)
	}
	return node.PodNetns(c.Name, p.UID), nil
}

// Exec runs a program of this machine in a pod's network and returns what it says.
func (c *Cluster) Exec(ctx context.Context, namespace, pod string, command ...string) (string, error) {
	netns, err := c.PodNetns(ctx, namespace, pod)
	if err != nil {
		return "", err
	}
	return proc.Run(ctx, "", "nsenter", append([]string{"--net=/run/netns/" + netns}, command...)...)
}

// NodeExec runs a program of this machine in a node's network and returns what it says.
func (c *Cluster) NodeExec(ctx context.Context, name string, command ...string) (string, error) {
	return proc.Run(ctx, "", "nsenter", append([]string{"--net=/run/netns/" + c.nodeNetns(name)}, command...)...)
}

// OVSDB is a node's switch database, as ovs-vsctl's --db.
func (c *Cluster) OVSDB(node string) string { return c.nodeOVSDB(node) }

// Containers lists the containers that really run from an image.
func (c *Cluster) Containers(image string) ([]node.Record, error) {
	var found []node.Record
	for _, n := range c.NodeNames() {
		all, err := node.Records(c.nodeDir(n))
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			if r.Image == image && r.Process.Alive() {
				found = append(found, r)
			}
		}
	}
	return found, nil
}

// KillWorker sends a signal to every running worker; the nodes start it again.
func (c *Cluster) KillWorker(sig syscall.Signal) error { return c.kill(WorkerImage, sig) }

// KillWebhook sends a signal to every running webhook; the nodes start it again.
func (c *Cluster) KillWebhook(sig syscall.Signal) error { return c.kill(WebhookImage, sig) }

func (c *Cluster) kill(image string, sig syscall.Signal) error {
	list, err := c.Containers(image)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return fmt.Errorf("no container of %s runs: wait until its pods are ready", image)
	}
	errs := make([]error, len(list))
	for n, r := range list {
		errs[n] = r.Process.Signal(sig)
	}
	return errors.Join(errs...)
}
