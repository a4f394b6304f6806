package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// startControlPlane starts etcd, the API server, the controller manager and the scheduler. All listen on the host's
// address on the machine network, which no other cluster has, so their ports are the usual ones.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	if err := c.startControllerManager(); err != nil {
		return err
	}
	if err := c.startScheduler(); err != nil {
		return err
	}
	return c.awaitControllerManager(ctx)
}

func (c *Cluster) awaitControllerManager(ctx context.Context) error {
	// The controller manager works when it has published the authority and the first service account.
	return c.await(ctx, "kube-controller-manager", func(ctx context.Context) error {
		_, err := c.client.CoreV1().ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, err = c.client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func (c *Cluster) tool(name string) string { return filepath.Join(c.ToolsDir, name) }

func (c *Cluster) startEtcd(ctx context.Context) error {
	client, peer := "http://"+c.at(2379), "http://"+c.at(2380)
	err := c.start("etcd", nil, c.tool("etcd"), "--name=one", "--data-dir="+filepath.Join(c.Dir, "etcd"),
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=one="+peer,
		"--unsafe-no-fsync", "--log-level=warn")
	if err != nil {
		return err
	}
	return c.await(ctx, "etcd", func(ctx context.Context) error { return get(ctx, http.DefaultClient, client+"/readyz") })
}

func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(url + ": " + resp.Status)
	}
	return nil
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	services, _ := c.Family.ranges()
	args := []string{
		c.tool("kube-apiserver"),
		"--etcd-servers=http://" + c.at(2379),
		"--bind-address=" + c.hostIP(), "--advertise-address=" + c.hostIP(), "--secure-port=6443",
		"--tls-cert-file=" + c.pki("apiserver.crt"), "--tls-private-key-file=" + c.pki("apiserver.key"), "--cert-dir=" + c.pki(""),
		"--token-auth-file=" + c.pki("tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.pki("sa.key"), "--service-account-signing-key-file=" + c.pki("sa.key"),
		"--service-cluster-ip-range=" + services,
		"--authorization-mode=RBAC",
		// Pods of a namespace that was just made would be refused until its service account is there.
		"--disable-admission-plugins=ServiceAccount",
		"--allow-privileged=true",
		// There is no kube-proxy: webhooks behind a Service are called by the addresses of its EndpointSlices.
		"--enable-aggregator-routing=true",
	}
	if err := c.start("kube-apiserver", nil, append(args, c.APIServerArgs...)...); err != nil {
		return err
	}
	return c.await(ctx, "kube-apiserver", func(ctx context.Context) error {
		return c.client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

func (c *Cluster) startControllerManager(more ...string) error {
	args := []string{
		c.tool("kube-controller-manager"),
		"--kubeconfig=" + c.componentKubeconfig("system:kube-controller-manager"),
		"--service-account-private-key-file=" + c.pki("sa.key"), "--root-ca-file=" + c.pki("ca.crt"),
		"--allocate-node-cidrs=false", "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=500", "--kube-api-burst=1000", "--use-service-account-credentials=false",
	}
	return c.start("kube-controller-manager", nil, append(args, more...)...)
}

func (c *Cluster) startScheduler() error {
	config := filepath.Join(c.Dir, "scheduler.yaml")
	text := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 500, burst: 1000}
`, c.componentKubeconfig("system:kube-scheduler"))
	if err := write(config, []byte(text)); err != nil {
		return err
	}
	return c.start("kube-scheduler", nil, c.tool("kube-scheduler"), "--config="+config, "--secure-port=0")
}

// runMap is the mapping of images to programs, as a flag of the node agent.
func (c *Cluster) runMap() string {
	pairs := []string{WebhookImage + "=" + c.WebhookBin, WorkerImage + "=" + c.WorkerBin}
	for image, program := range c.Run {
		pairs = append(pairs, image+"="+program)
	}
	return strings.Join(pairs, ",")
}
