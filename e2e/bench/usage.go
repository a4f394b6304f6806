package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// clockTicks is how many ticks the kernel counts in a second of a process's time: the same on every Linux that Go knows.
const clockTicks = 100

// Usage is what a process, or several of one kind, took.
type Usage struct {
	Process string `json:"process"`
	// CPU in seconds; MiB that it has now, and that it had at most.
	CPU     float64 `json:"cpuSeconds"`
	MiB     float64 `json:"mib"`
	PeakMiB float64 `json:"peakMib"`
}

// parseCPU reads the seconds that a process has taken out of its stat line.
func parseCPU(line string) (float64, error) {
	end := strings.LastIndexByte(line, ')') // the name before it may hold anything
	fields := strings.Fields(line[end+1:])
	if end < 0 || len(fields) < 13 {
		return 0, fmt.Errorf("process status %q is too short", line)
	}
	ticks := 0.0
	for _, f := range fields[11:13] { // user and system time
		n, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return 0, fmt.Errorf("process status %q has no times: %w", line, err)
		}
		ticks += n
	}
	return ticks / clockTicks, nil
}

// parseMemory reads the MiB that a process has and had at most out of its status.
func parseMemory(text []byte) (now, peak float64, err error) {
	found := 0
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		to := map[string]*float64{"VmRSS": &now, "VmHWM": &peak}[name]
		if to == nil {
			continue
		}
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		if err != nil {
			return 0, 0, fmt.Errorf("process status %q: %w", lines.Text(), err)
		}
		*to = kib / 1024
		found++
	}
	if found != 2 {
		return 0, 0, fmt.Errorf("process status tells no memory")
	}
	return now, peak, nil
}

// usageOf reads what a process has taken so far.
func usageOf(pid int) (Usage, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return Usage{}, fmt.Errorf("process %d: %w", pid, err)
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return Usage{}, fmt.Errorf("process %d: %w", pid, err)
	}
	var u Usage
	if u.CPU, err = parseCPU(string(stat)); err != nil {
		return u, err
	}
	u.MiB, u.PeakMiB, err = parseMemory(status)
	return u, err
}

// used gives what processes took between two readings, in the order of the later one. A process that was not there before
// has taken all of it since.
func used(before, after []Usage) []Usage {
	was := map[string]float64{}
	for _, u := range before {
		was[u.Process] = u.CPU
	}
	out := make([]Usage, len(after))
	for i, u := range after {
		u.CPU = Grown(was[u.Process], u.CPU)
		out[i] = u
	}
	return out
}
