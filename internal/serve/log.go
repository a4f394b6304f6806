package serve

import (
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strconv"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// NewLogger returns a logger of the given level and format ("json" or "text"). logr's V(n) is slog's level -n, so
// level debug shows V(4) and below.
func NewLogger(w io.Writer, level, format string) (logr.Logger, error) {
	var l slog.Level
	if n, err := strconv.Atoi(level); err == nil {
		l = slog.Level(n)
	} else if err := l.UnmarshalText([]byte(level)); err != nil {
		return logr.Discard(), fmt.Errorf("log level %q is unknown: use debug, info, warn, error or a number: %w", level, err)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch format {
	case "json":
		return logr.FromSlogHandler(slog.NewJSONHandler(w, opts)), nil
	case "text":
		return logr.FromSlogHandler(slog.NewTextHandler(w, opts)), nil
	default:
		return logr.Discard(), fmt.Errorf("log format %q is unknown: use json or text", format)
	}
}

// ProcessLogger makes the logger that the flags ask for, and has controller-runtime log to it. That has one for the whole
// process: whoever runs several programs in one sets it himself.
func (f *Flags) ProcessLogger(w io.Writer) (logr.Logger, error) {
	log, err := NewLogger(w, f.LogLevel, f.LogFormat)
	if err == nil {
		ctrllog.SetLogger(log)
	}
	return log, err
}

func splitList(paths string) []string { return filepath.SplitList(paths) }
