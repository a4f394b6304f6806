package faults

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/internal/sampler"
)

func TestReportPutsLossesBesideTheirFaults(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000, 0).Add(time.Duration(s) * time.Second) }
	events := []event{
		{step: Step{Kind: EtcdKilled}, begin: at(0), end: at(5)},
		{step: Step{Kind: AnswerLost}, begin: at(20), end: at(30)},
		{step: Step{Kind: AnswerLost}, begin: at(50), end: at(60)},
		{step: Step{Kind: WebhookKilled}, begin: at(21), end: at(21), missed: true},
	}
	v := sampler.Violation{Rule: sampler.OneLeaseOnePod, Subject: "10.0.0.5", Detail: "two", Since: at(38)}
	var r Report
	r.fill(events, func(k Kind) int { return map[Kind]int{AnswerLost: 7}[k] }, []sampler.Violation{v})
	want := []Line{
		{Kind: AnswerLost, Injected: 2, Seconds: 20, Requests: 7, Lost: []string{v.String()}},
		{Kind: EtcdKilled, Injected: 1, Seconds: 5, Lost: []string{}},
		{Kind: WebhookKilled, Missed: 1, Lost: []string{}},
	}
	if d := cmp.Diff(want, r.Faults); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if r.Passed() {
		t.Error("it passed, with something broken")
	}
	var b strings.Builder
	if err := r.Print(&b); err != nil || !strings.Contains(b.String(), "LOST: one lease, one pod: 10.0.0.5") || !strings.Contains(b.String(), "BROKEN") {
		t.Errorf("it says %v %q", err, b.String())
	}
}

func TestReportPasses(t *testing.T) {
	r := &Report{Seed: 3, Broken: []string{}}
	if !r.Passed() {
		t.Error("nothing is broken, and it did not pass")
	}
	if left := (&Report{Left: Accounts{Ports: 1}}); left.Passed() {
		t.Error("a port is left, and it passed")
	}
	var b strings.Builder
	if err := Write(&b, []*Report{r}); err != nil {
		t.Fatal(err)
	}
	var back []*Report
	if err := json.Unmarshal([]byte(b.String()), &back); err != nil || !cmp.Equal([]*Report{r}, back) {
		t.Errorf("it is read back as %v, %v", back, err)
	}
}
