//go:build e2e

package ledger

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// What a taker writes down. Intentions come before the call, answers after it and before anything else is done.
const (
	drew    = "draw"    // a claim was drawn
	takes   = "take"    // leases are about to be asked for
	taken   = "taken"   // they are held
	refused = "refused" // they can't be had
	failed  = "failed"  // the call failed, its outcome is unknown
	frees   = "free"    // leases are about to be given back
	freed   = "freed"   // they are
	lost    = "lost"    // a lease that was held is not there
	found   = "found"   // leases of a call that a kill interrupted are there
)

// event is one line of a diary.
type event struct {
	// At is the machine's monotonic clock, in nanoseconds: all processes read the same.
	At   int64  `json:"t"`
	Kind string `json:"k"`
	// Claim of the leases; Asked is the claim that the call was made with.
	Claim string `json:"c,omitempty"`
	Asked string `json:"q,omitempty"`
	// Leases are what was taken or is freed, as subnet/address, or domain/MAC; of a take, the subnets asked.
	Leases []string `json:"l,omitempty"`
	// Owner is set when the leases are a sticky owner's.
	Owner string `json:"o,omitempty"`
	// Full is the subnet and family that a refusal calls exhausted.
	Full string `json:"f,omitempty"`
	// Text is for people.
	Text string `json:"e,omitempty"`
}

// now reads the machine's monotonic clock.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// diary is a file to which lines are added. Every line is one write, so that a killed process leaves whole lines, and
// at worst a torn last one that counts as not written.
type diary struct{ file *os.File }

func openDiary(name string) (*diary, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o644)
	return &diary{f}, err
}

// say adds a line, with the present time.
func (d *diary) say(e event) error {
	e.At = now()
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = d.file.Write(append(line, '\n'))
	return err
}

// chapter is what one life of one process wrote down.
type chapter struct {
	Process, Life int
	// Killed tells that the life ended by a kill.
	Killed bool
	Events []event
}

func chapterFile(dir string, process, life int) string {
	return filepath.Join(dir, fmt.Sprintf("%d-%d.log", process, life))
}

// readChapter reads a diary; of a torn last line nothing is kept.
func readChapter(dir string, process, life int) (chapter, error) {
	c := chapter{Process: process, Life: life}
	text, err := os.ReadFile(chapterFile(dir, process, life))
	if err != nil {
		return c, err
	}
	lines := bytes.Split(text, []byte("\n"))
	for n, line := range lines[:len(lines)-1] {
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return c, fmt.Errorf("line %d of diary %d-%d: %w", n+1, process, life, err)
		}
		c.Events = append(c.Events, e)
	}
	return c, nil
}

// readLives reads the lives of a process before the given one. A life that ended before it wrote is empty.
func readLives(dir string, process, before int) ([]chapter, error) {
	var cs []chapter
	for life := range before {
		c, err := readChapter(dir, process, life)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		cs = append(cs, c)
	}
	return cs, nil
}

// notedRandom writes every claim down that the ledger draws, before it is used.
type notedRandom struct {
	io.Reader
	say func(event) error
}

// Read draws; what has a claim's size is one.
func (r notedRandom) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err != nil || n != 16 {
		return n, err
	}
	return n, r.say(event{Kind: drew, Claim: hex.EncodeToString(b)})
}
