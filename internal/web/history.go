package web

import (
	"time"

	"github.com/berth-net/berth/internal/report"
)

// Bounds of what is remembered.
const (
	sampleEvery = 30 * time.Second
	samplesKept = 120
	maxSeries   = 1024
)

// Sample is how many addresses were leased at a moment, in Unix seconds.
type Sample struct {
	At       int64 `json:"at"`
	Bound    int   `json:"bound"`
	Pending  int   `json:"pending"`
	Reserved int   `json:"reserved"`
}

// Usage is the last hour of one family of a subnet, as far back as this process remembers.
type Usage struct {
	Subnet  string   `json:"subnet"`
	Family  string   `json:"family"`
	Samples []Sample `json:"samples"`
}

type seriesKey struct{ subnet, family string }

// history remembers the last hour. The zero value remembers nothing yet.
type history map[seriesKey][]Sample

// add takes a sample of each subnet, and forgets subnets that are gone. What is beyond maxSeries is not remembered.
func (h history) add(now time.Time, subnets *report.Subnets) {
	there := make(map[seriesKey]bool, len(subnets.Items))
	for _, s := range subnets.Items {
		if s.Figures == nil || len(there) == maxSeries {
			continue
		}
		k := seriesKey{s.Name, s.Family}
		there[k] = true
		list := h[k]
		if len(list) >= samplesKept {
			list = append(list[:0], list[len(list)-samplesKept+1:]...)
		}
		h[k] = append(list, Sample{At: now.Unix(), Bound: s.Bound, Pending: s.Pending, Reserved: s.Reserved})
	}
	for k := range h {
		if !there[k] {
			delete(h, k)
		}
	}
}

// of gives what is remembered of one.
func (h history) of(subnet, family string) *Usage {
	return &Usage{Subnet: subnet, Family: family, Samples: append([]Sample{}, h[seriesKey{subnet, family}]...)}
}
