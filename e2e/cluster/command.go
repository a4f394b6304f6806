package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-net/berth/e2e/proc"
)

// each runs commands one after the other.
func each(ctx context.Context, commands ...[]string) error {
	for _, c := range commands {
		if _, err := proc.Run(ctx, "", c[0], c[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// words splits a command line at spaces; no word here has any inside.
func words(format string, args ...any) []string { return strings.Fields(fmt.Sprintf(format, args...)) }

// tools finds the control plane's programs and OVN's.
func (o *Options) tools(ctx context.Context) error {
	script := filepath.Join(o.Repo, "hack", "tools.sh")
	run := func(what string) (string, error) {
		cmd := exec.CommandContext(ctx, script, what)
		cmd.Stderr = o.Progress
		if o.Progress == nil {
			cmd.Stderr = os.Stderr
		}
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("get the programs of the cluster, run '%s %s' and see why: %w", script, what, err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	if !o.ControlPlaneOnly {
		if _, err := run("ovn"); err != nil {
			return err
		}
	}
	if o.ToolsDir != "" {
		dir, err := filepath.Abs(o.ToolsDir)
		o.ToolsDir = dir
		return err
	}
	dir, err := run("cluster")
	o.ToolsDir = dir
	return err
}
