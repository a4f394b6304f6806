// Command node-agent plays one node of the local cluster: kubelet and network daemon. It runs in the node's network
// namespace; berth-cluster starts it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-net/berth/e2e/node"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "node-agent:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	cfg := node.DefaultConfig()
	var kubeconfig string
	cmd := &cobra.Command{
		Use: "node-agent", Short: "Play one node: kubelet and network daemon", Args: cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Name == "" || cfg.IP == "" || cfg.Dir == "" || cfg.OVSDB == "" || kubeconfig == "" {
				return errors.New("--name, --ip, --dir, --ovsdb and --kubeconfig are needed")
			}
			rc, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return fmt.Errorf("read %s, pass the kubeconfig that berth-cluster wrote: %w", kubeconfig, err)
			}
			rc.QPS, rc.Burst, rc.UserAgent = 500, 1000, "berth-node-agent"
			agent, err := node.New(cfg, rc, slog.New(slog.NewTextHandler(os.Stderr, nil)))
			if err != nil {
				return err
			}
			return agent.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Name, "name", "", "name of the node")
	f.StringVar(&cfg.IP, "ip", "", "the node's address on the machine network")
	f.StringVar(&cfg.Cluster, "cluster", "berth", "prefix of network namespaces")
	f.StringVar(&cfg.Dir, "dir", "", "directory of the node's state")
	f.StringVar(&cfg.LogDir, "log-dir", "logs", "directory of the logs of pods that really run")
	f.StringVar(&cfg.OVSDB, "ovsdb", "", "the switch's database, like unix:/path/db.sock")
	f.StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API server")
	f.IntVar(&cfg.MTU, "mtu", cfg.MTU, "MTU of pods whose subnet doesn't say another")
	f.IntVar(&cfg.Slots, "slots", cfg.Slots, "pods whose network is changed at once")
	f.IntVar(&cfg.PodAPIPort, "pod-api-port", 0, "port by which programs of pods reach the API server, 0: its own")
	f.StringToStringVar(&cfg.Run, "run", nil, "image=program: really run this program for containers of this image")
	f.DurationVar(&cfg.InstalledTimeout, "installed-timeout", cfg.InstalledTimeout, "how long OVN may take to install a port")
	f.DurationVar(&cfg.GatewayTimeout, "gateway-timeout", cfg.GatewayTimeout, "how long a gateway may stay silent")
	f.DurationVar(&cfg.RecordTimeout, "record-timeout", cfg.RecordTimeout, "how long a missing IP record is waited for")
	return cmd
}
