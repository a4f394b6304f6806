package proc

import (
	"context"
	"strconv"
	"strings"
	"syscall"
)

// KillNetns kills every process in a network namespace. That some, or the namespace itself, are gone already is fine.
func KillNetns(ctx context.Context, netns string) {
	out, err := Run(ctx, "", "ip", "netns", "pids", netns)
	if err != nil {
		return
	}
	for _, word := range strings.Fields(out) {
		if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
