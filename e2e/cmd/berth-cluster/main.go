// Command berth-cluster starts and stops a local Kubernetes cluster with OVN and Berth on this machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-net/berth/e2e/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := command().ExecuteContext(ctx)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-cluster:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	o := cluster.Options{}
	root := &cobra.Command{
		Use: "berth-cluster", Short: "A local Kubernetes cluster with OVN and Berth", SilenceUsage: true, SilenceErrors: true,
		TraverseChildren: true,
	}
	root.PersistentFlags().StringVar(&o.Dir, "dir", cluster.DefaultDir, "directory of the cluster's state and logs")
	root.AddCommand(up(&o), down(&o), env(&o), kubectl(&o))
	return root
}

func up(o *cluster.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "up", Short: "Start the cluster and wait until it is ready", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			began := time.Now()
			o.Progress = cmd.ErrOrStderr()
			c, err := cluster.Start(cmd.Context(), *o)
			var running *cluster.AlreadyRunningError
			if errors.As(err, &running) {
				cmd.PrintErrln(running)
				c, err = cluster.Load(o.Dir)
			} else if err == nil {
				cmd.PrintErrf("ready after %.1f s\n", time.Since(began).Seconds())
			}
			if err != nil {
				return err
			}
			return printEnv(cmd, c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Name, "name", "", "prefix of network namespaces and links; empty makes one from the directory")
	f.StringVar(&o.Repo, "repo", "", "root of the work tree; empty looks upwards from here")
	f.IntVar(&o.Nodes, "nodes", 2, "number of nodes")
	f.StringVar((*string)(&o.Family), "family", string(cluster.Dual), "addresses: dual, or v6 for a cluster without any IPv4")
	f.IntVar(&o.NorthboundServers, "northbound-servers", 1, "servers of the northbound database: 1, or 3 or 5 of which one leads")
	f.StringVar(&o.ToolsDir, "tools-dir", "", "directory of etcd, kube-apiserver and so on; empty takes what hack/tools.sh builds")
	f.StringVar(&o.WebhookBin, "webhook-bin", "", "the webhook (default bin/webhook)")
	f.StringVar(&o.WorkerBin, "worker-bin", "", "the worker (default bin/finalizer-worker)")
	f.StringVar(&o.NodeBin, "node-bin", "", "the node agent (default bin/node-agent)")
	f.BoolVar(&o.WithoutBerth, "without-berth", false, "leave Berth's own pods and webhook out")
	f.BoolVar(&o.BindHook, "bind-hook", false, "have the API server ask the worker about bindings")
	f.StringToStringVar(&o.Run, "run", nil, "image=program: really run this program for containers of this image")
	f.StringArrayVar(&o.APIServerArgs, "apiserver-arg", nil, "one more flag of kube-apiserver")
	f.StringArrayVar(&o.NodeArgs, "node-arg", nil, "one more flag of the node agents")
	return cmd
}

func down(o *cluster.Options) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "down", Short: "Stop the cluster and remove all of it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name != "" {
				return cluster.Cleanup(cmd.Context(), name)
			}
			c, err := cluster.Load(o.Dir)
			var none *cluster.NotFoundError
			if errors.As(err, &none) {
				cmd.PrintErrln(none)
				return nil
			}
			if err != nil {
				return err
			}
			return c.Down(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "remove only what carries this name: for a cluster whose directory is lost")
	return cmd
}

func env(o *cluster.Options) *cobra.Command {
	return &cobra.Command{
		Use: "env", Short: "Print the shell's variables for this cluster", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cluster.Load(o.Dir)
			if err != nil {
				return err
			}
			return printEnv(cmd, c)
		},
	}
}

func printEnv(cmd *cobra.Command, c *cluster.Cluster) error {
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "export KUBECONFIG=%s\nexport OVN_NB_DB=%s\nexport OVN_SB_DB=%s\nexport KUBECTL=%s\n",
		c.Kubeconfig(), c.NBSocket(), c.SBSocket(), c.Kubectl())
	return err
}

func kubectl(o *cluster.Options) *cobra.Command {
	return &cobra.Command{
		Use: "kubectl", Short: "Run kubectl on this cluster", DisableFlagParsing: true,
		Long: "Run kubectl on this cluster. Give --dir before the word kubectl.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cluster.Load(o.Dir)
			if err != nil {
				return err
			}
			k := exec.CommandContext(cmd.Context(), c.Kubectl(), args...)
			k.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig())
			k.Stdin, k.Stdout, k.Stderr = os.Stdin, os.Stdout, os.Stderr
			return k.Run()
		},
	}
}
