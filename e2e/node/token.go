package node

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenLife is what is asked for; the token is replaced after four fifths of what is granted.
const tokenLife = time.Hour

// credentials writes a kubeconfig with a token of the pod's service account, and keeps the token fresh while the pod
// lives. It waits for the service account, as the mount of a token would.
func (a *Agent) credentials(ctx context.Context, p *podActor, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the pod's directory: %w", err)
	}
	var expiry time.Time
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		var err error
		if expiry, err = a.token(ctx, p, dir); err != nil {
			p.log.Warn("no token for the pod's service account yet", "error", err)
		}
		return err == nil, nil
	})
	if err != nil {
		return err
	}
	if err := a.kubeconfig(dir); err != nil {
		return err
	}
	a.wg.Go(func() {
		for {
			timer := time.NewTimer(max(time.Until(expiry)*4/5, 10*time.Second))
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			if fresh, err := a.token(ctx, p, dir); err == nil {
				expiry = fresh
			} else {
				p.log.Warn("can't refresh the pod's token, trying again", "error", err)
			}
		}
	})
	return nil
}

// token asks for a token bound to the pod and puts it into place.
func (a *Agent) token(ctx context.Context, p *podActor, dir string) (time.Time, error) {
	pod := p.latest()
	seconds := int64(tokenLife.Seconds())
	t, err := a.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, cmp.Or(pod.Spec.ServiceAccountName, "default"),
		&authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef:    boundTo(pod.Spec.ServiceAccountName, pod.Name, p),
		}}, metav1.CreateOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("token for service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, err)
	}
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file+".tmp", []byte(t.Status.Token), 0o600); err != nil {
		return time.Time{}, fmt.Errorf("write token: %w", err)
	}
	return t.Status.ExpirationTimestamp.Time, os.Rename(file+".tmp", file)
}

// boundTo ties the token to the pod's life; a pod that names no service account can't be named in a token.
func boundTo(account, pod string, p *podActor) *authv1.BoundObjectReference {
	if account == "" {
		return nil
	}
	return &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod, UID: p.uid}
}

func (a *Agent) kubeconfig(dir string) error {
	server, err := onPort(a.rest.Host, a.cfg.PodAPIPort)
	if err != nil {
		return err
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["cluster"] = &clientcmdapi.Cluster{
		Server: server, CertificateAuthority: a.rest.CAFile, CertificateAuthorityData: a.rest.CAData,
	}
	cfg.AuthInfos["pod"] = &clientcmdapi.AuthInfo{TokenFile: filepath.Join(dir, "token")}
	cfg.Contexts["pod"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "pod"}
	cfg.CurrentContext = "pod"
	if err := clientcmd.WriteToFile(*cfg, filepath.Join(dir, "kubeconfig")); err != nil {
		return fmt.Errorf("write the pod's kubeconfig: %w", err)
	}
	return nil
}

// onPort is the same server on another port; 0 leaves it as it is.
func onPort(server string, port int) (string, error) {
	if port == 0 {
		return server, nil
	}
	u, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("address of the API server: %w", err)
	}
	u.Host = net.JoinHostPort(u.Hostname(), strconv.Itoa(port))
	return u.String(), nil
}
