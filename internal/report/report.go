// Package report turns what is known of the cluster into views for operators: rows with stable field names, as table,
// JSON or YAML.
//
// Invariant: a view depends on its arguments alone, rows stand in a fixed order, and a field that was once written is
// neither renamed nor given another meaning. It reads nothing and changes nothing.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"
)

// Version of the views, in their apiVersion.
const Version = "report.berth.dev/v1"

// Format is how a view is written.
type Format string

// The formats.
const (
	Table Format = "table"
	Wide  Format = "wide"
	JSON  Format = "json"
	YAML  Format = "yaml"
)

// Formats returns all formats.
func Formats() []string { return []string{string(Table), string(Wide), string(JSON), string(YAML)} }

// ParseFormat reads a format; empty means Table.
func ParseFormat(s string) (Format, error) {
	switch f := Format(s); f {
	case "":
		return Table, nil
	case Table, Wide, JSON, YAML:
		return f, nil
	}
	return "", fmt.Errorf("output format %q is unknown: use one of %s", s, strings.Join(Formats(), ", "))
}

// Head tells what a view is.
type Head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func head(kind string) Head { return Head{APIVersion: Version, Kind: kind} }

// View is something that can be written.
type View interface {
	// table writes the view for people.
	table(w *writer)
}

// Write writes a view. now is what ages are counted from.
func Write(out io.Writer, f Format, now time.Time, v View) error {
	if f == JSON || f == YAML {
		raw, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return fmt.Errorf("write %T: %w", v, err)
		}
		raw = append(raw, '\n')
		if f == YAML {
			if raw, err = yaml.JSONToYAML(raw); err != nil {
				return fmt.Errorf("write %T: %w", v, err)
			}
		}
		_, err = out.Write(raw)
		return err
	}
	w := &writer{Writer: tabwriter.NewWriter(out, 0, 8, 3, ' ', 0), wide: f == Wide, now: now}
	v.table(w)
	return w.Flush()
}

// writer writes tables. What goes wrong is told by Flush: a tabwriter keeps nothing back from the caller for good.
type writer struct {
	*tabwriter.Writer
	wide bool
	now  time.Time
	err  error
}

// row writes cells; empty ones as a dash.
func (w *writer) row(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	w.text("%s", strings.Join(cells, "\t"))
}

// text writes one line.
func (w *writer) text(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.Writer, format+"\n", args...)
	}
}

// section begins another part: a blank line and a title.
func (w *writer) section(title string) {
	w.end()
	w.text("")
	w.text("%s", title)
}

// end closes the columns: what follows has its own.
func (w *writer) end() {
	if w.err == nil {
		w.err = w.Writer.Flush()
	}
}

// Flush writes what is left.
func (w *writer) Flush() error {
	w.end()
	return w.err
}

// age tells how long ago something was.
func (w *writer) age(at *time.Time) string {
	if at == nil || at.IsZero() {
		return ""
	}
	return duration.HumanDuration(w.now.Sub(*at))
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
