package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const auditText = `{"verb":"create","requestURI":"/api/v1/namespaces/bench/pods?timeout=1s","userAgent":"bench","user":{"username":"admin"},"objectRef":{"resource":"pods"},"responseStatus":{"code":201}}
{"verb":"create","requestURI":"/api/v1/namespaces/bench/pods?dryRun=All","userAgent":"bench","user":{"username":"admin"},"objectRef":{"resource":"pods"},"responseStatus":{"code":201}}
{"verb":"patch","requestURI":"/x","userAgent":"finalizer-worker/v0.0.0","user":{"username":"system:serviceaccount:berth-system:berth-worker"},"objectRef":{"resource":"pods"},"responseStatus":{"code":200}}
{"verb":"patch","requestURI":"/x","userAgent":"finalizer-worker/v0.0.0","user":{"username":"system:serviceaccount:berth-system:berth-worker"},"objectRef":{"resource":"pods"},"responseStatus":{"code":409}}
{"verb":"update","requestURI":"/x","userAgent":"webhook/v0","user":{"username":"system:serviceaccount:berth-system:berth-webhook"},"objectRef":{"resource":"addressblocks"},"responseStatus":{"code":200}}
{"verb":"create","requestURI":"/x","userAgent":"finalizer-worker/v0.0.0","user":{"username":"system:serviceaccount:berth-system:berth-worker"},"objectRef":{"resource":"ips"},"responseStatus":{"code":201}}
{"verb":"create","requestURI":"/x","userAgent":"bench","user":{"username":"admin"},"objectRef":{"resource":"pods","subresource":"binding"},"responseStatus":{"code":201}}
`

func TestParseAudit(t *testing.T) {
	got, read, err := ParseAudit(strings.NewReader(auditText + `{"verb":"upd`))
	if err != nil || read != int64(len(auditText)) {
		t.Fatalf("%d of %d bytes, %v", read, len(auditText), err)
	}
	want := []Write{
		{Author: "bench", Verb: "create", Resource: "pods", Count: 1}, {Author: "bench", Verb: "create", Resource: "pods/binding", Count: 1},
		{Author: "webhook", Verb: "update", Resource: "addressblocks", Count: 1},
		{Author: "worker", Verb: "create", Resource: "ips", Count: 1}, {Author: "worker", Verb: "patch", Resource: "pods", Count: 1, Failed: 1},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if n, m := by(got, ours), by(got, oursWithoutRecords); n != 3 || m != 2 {
		t.Errorf("%d of ours, %d without records", n, m)
	}
	if _, _, err := ParseAudit(strings.NewReader("nonsense\n")); err == nil {
		t.Error("nonsense was read")
	}
}

func TestParseProcess(t *testing.T) {
	cpu, err := parseCPU("42 (a) b (c)) S 1 42 42 0 -1 4194560 1 0 0 0 150 25 0 0 20 0 1 0 98765 0 0 0")
	if err != nil || cpu != 1.75 {
		t.Errorf("%v s, %v", cpu, err)
	}
	for _, bad := range []string{"", "42 nothing", "42 (a) S 1 2", "42 (a) S 1 42 42 0 -1 4194560 1 0 0 0 x 25 0"} {
		if _, err := parseCPU(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	now, peak, err := parseMemory([]byte("Name:\tx\nVmPeak:\t 9999 kB\nVmHWM:\t    4096 kB\nVmRSS:\t    1024 kB\n"))
	if err != nil || now != 1 || peak != 4 {
		t.Errorf("%v, %v MiB, %v", now, peak, err)
	}
	for _, bad := range []string{"", "VmRSS: 1024 kB\n", "VmRSS: x kB\nVmHWM: 1 kB\n"} {
		if _, _, err := parseMemory([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	if up, err := parseUptime("12.50 99.0\n"); err != nil || up != 12500*time.Millisecond {
		t.Errorf("%v, %v", up, err)
	}
	if _, err := parseUptime("long"); err == nil {
		t.Error("no number was read")
	}
}

func TestUsed(t *testing.T) {
	got := used([]Usage{{Process: "a", CPU: 2, MiB: 5}, {Process: "b", CPU: 9}}, []Usage{{Process: "a", CPU: 3.5, MiB: 6, PeakMiB: 7}, {Process: "b", CPU: 1}, {Process: "c", CPU: 4}})
	want := []Usage{{Process: "a", CPU: 1.5, MiB: 6, PeakMiB: 7}, {Process: "b", CPU: 1}, {Process: "c", CPU: 4}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestProcessor(t *testing.T) {
	for text, want := range map[string]string{"processor\t: 0\nmodel name\t: A B @ 2 GHz\nmodel name\t: other\n": "A B @ 2 GHz", "": "unknown processor"} {
		if got := processor([]byte(text)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestTightSubnet(t *testing.T) {
	for n, want := range map[int]subnetRange{
		1:     {CIDR: "10.65.0.0/30"},
		2:     {CIDR: "10.65.0.0/29", Exclude: "10.65.0.4..10.65.0.6"},
		5:     {CIDR: "10.65.0.0/29"},
		1000:  {CIDR: "10.65.0.0/22", Exclude: "10.65.3.234..10.65.3.254"},
		1021:  {CIDR: "10.65.0.0/22"},
		65533: {CIDR: "10.65.0.0/16"},
	} {
		got, err := tightSubnet(n)
		if err != nil || got != want {
			t.Errorf("%d: %+v %v, want %+v", n, got, err, want)
		}
	}
	for _, n := range []int{0, -1, 65534} {
		if got, err := tightSubnet(n); err == nil {
			t.Errorf("%d: %+v", n, got)
		}
	}
}
