package faults

import (
	"os"
	"strconv"
	"testing"
	"time"
)

const (
	// seedsVariable is how many seeds the long test plays, and seedVariable the first of them; alone, the only one.
	seedsVariable = "BERTH_SEEDS"
	seedVariable  = "BERTH_SEED"
	// kindsVariable chooses kinds of faults, joined by commas; unset are all.
	kindsVariable = "BERTH_FAULTS"
	// secondsVariable is how long each schedule lasts.
	secondsVariable = "BERTH_FAULTS_SECONDS"
	// reportVariable is the file that the reports go to, as JSON.
	reportVariable = "BERTH_FAULTS_REPORT"
)

// number reads a number from the environment.
func number(t *testing.T, variable string, fallback uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// fresh is a seed that nobody has had yet.
func fresh() uint64 { return uint64(time.Now().UnixNano() & 0xffffff) }

// kinds are those that the environment chooses out of the known.
func kinds(t *testing.T, known []Kind) []Kind {
	t.Helper()
	list, err := ParseKinds(os.Getenv(kindsVariable), known)
	if err != nil {
		t.Fatal(err)
	}
	return list
}
