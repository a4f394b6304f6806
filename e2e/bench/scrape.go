package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Sample is one value of a metric.
type Sample struct {
	Name   string
	Labels map[string]string
	Value  float64
}

// Samples are what a program told at one moment.
type Samples []Sample

// ParseMetrics reads the text form of metrics.
func ParseMetrics(text []byte) (Samples, error) {
	var out Samples
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		s, err := parseSample(line)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, lines.Err()
}

// parseSample reads a line like name{label="value",...} 12.
func parseSample(line string) (Sample, error) {
	s := Sample{Labels: map[string]string{}}
	end := strings.IndexAny(line, "{ ")
	if end <= 0 {
		return s, fmt.Errorf("metric %q has no value", line)
	}
	s.Name = line[:end]
	rest := line[end:]
	if rest[0] == '{' {
		rest = rest[1:]
		for !strings.HasPrefix(rest, "}") {
			name, after, ok := strings.Cut(rest, "=")
			quoted, err := strconv.QuotedPrefix(after)
			if !ok || err != nil {
				return s, fmt.Errorf("metric %q has labels that can't be read", line)
			}
			value, err := strconv.Unquote(quoted)
			if err != nil {
				return s, fmt.Errorf("metric %q has a label that can't be read: %w", line, err)
			}
			s.Labels[name] = value
			rest = strings.TrimPrefix(after[len(quoted):], ",")
		}
		rest = rest[1:]
	}
	value, _, _ := strings.Cut(strings.TrimSpace(rest), " ") // a time may follow
	v, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return s, fmt.Errorf("metric %q has no number: %w", line, err)
	}
	s.Value = v
	return s, nil
}

// Sum adds the values of a metric, of those samples that have these labels.
func (ss Samples) Sum(name string, labels map[string]string) float64 {
	sum := 0.0
next:
	for _, s := range ss {
		if s.Name != name {
			continue
		}
		for k, v := range labels {
			if s.Labels[k] != v {
				continue next
			}
		}
		sum += s.Value
	}
	return sum
}

// Grown is by how much a counter has grown; one that is lower than before has begun anew.
func Grown(before, after float64) float64 {
	if after < before {
		return after
	}
	return after - before
}
