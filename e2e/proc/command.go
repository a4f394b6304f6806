package proc

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// CommandError is a program that failed.
type CommandError struct {
	Command string
	Output  string
	Err     error
}

// Error shows the command and what it said.
func (e *CommandError) Error() string {
	return fmt.Sprintf("run by hand what failed: %s: %v: %s", e.Command, e.Err, strings.TrimSpace(e.Output))
}

// Unwrap returns the cause.
func (e *CommandError) Unwrap() error { return e.Err }

// Run executes a program with the given standard input and returns its output.
func Run(ctx context.Context, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, all bytes.Buffer
	cmd.Stdout = &out
	cmd.Stderr = &all
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		said := all.String() + out.String()
		if stdin != "" {
			said += " (input: " + strings.ReplaceAll(strings.TrimSpace(stdin), "\n", "; ") + ")"
		}
		return "", &CommandError{Command: name + " " + strings.Join(args, " "), Output: said, Err: err}
	}
	return out.String(), nil
}
