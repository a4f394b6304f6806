package report

import (
	"strconv"
	"strings"
)

// Step is one change.
type Step struct {
	// Action is what is done: lease, replace, patch, mark, fence, unfence, label, record, free and the like.
	Action    string `json:"action"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Detail    string `json:"detail,omitempty"`
}

// Trouble is an object that something is wrong with, and what to do.
type Trouble struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Text      string `json:"text"`
}

// Migration is what rebuild, adopt or handback did, or would do.
type Migration struct {
	Head
	// Action is rebuild, adopt or handback.
	Action string `json:"action"`
	// Written tells that the steps were taken; otherwise they only would be.
	Written bool   `json:"written"`
	Steps   []Step `json:"items"`
	// Problems stop everything; Skipped objects are left out.
	Problems []Trouble `json:"problems,omitempty"`
	Skipped  []Trouble `json:"skipped,omitempty"`
	// Failed steps are tried again by another run.
	Failed []string `json:"failed,omitempty"`
	// Next tells what is left to do by hand.
	Next []string `json:"next,omitempty"`
}

// MigrationOf begins the answer of a command.
func MigrationOf(action string) *Migration {
	return &Migration{Head: head("Migration"), Action: action, Steps: []Step{}}
}

// Step adds one.
func (m *Migration) Step(action, kind, namespace, name, detail string) {
	m.Steps = append(m.Steps, Step{Action: action, Kind: kind, Namespace: namespace, Name: name, Detail: detail})
}

func (m *Migration) table(w *writer) {
	verb := "would be taken"
	if m.Written {
		verb = "were taken"
	}
	if len(m.Steps) == 0 {
		w.text("%s: there is nothing to do.", m.Action)
	} else {
		w.text("%s: %d steps %s.", m.Action, len(m.Steps), verb)
	}
	m.steps(w)
	troubles(w, "Problems, for which nothing is written:", m.Problems)
	troubles(w, "Left out:", m.Skipped)
	for _, l := range []struct {
		title string
		lines []string
	}{{"Failed, run it again:", m.Failed}, {"Next:", m.Next}} {
		if len(l.lines) == 0 {
			continue
		}
		w.section(l.title)
		for _, line := range l.lines {
			w.text("  %s", line)
		}
	}
}

// steps writes all with -o wide, and else counts them.
func (m *Migration) steps(w *writer) {
	if len(m.Steps) == 0 {
		return
	}
	w.end()
	if w.wide {
		w.row("ACTION", "KIND", "OBJECT", "DETAIL")
		for _, s := range m.Steps {
			w.row(s.Action, s.Kind, object(s.Namespace, s.Name), s.Detail)
		}
		return
	}
	w.row("ACTION", "KIND", "COUNT")
	var order []string
	count := map[string]int{}
	for _, s := range m.Steps {
		key := s.Action + "\t" + s.Kind
		if count[key]++; count[key] == 1 {
			order = append(order, key)
		}
	}
	for _, key := range order {
		action, kind, _ := strings.Cut(key, "\t")
		w.row(action, kind, strconv.Itoa(count[key]))
	}
}

func troubles(w *writer, title string, list []Trouble) {
	if len(list) == 0 {
		return
	}
	w.section(title)
	for _, t := range list {
		w.text("  %s %s: %s", t.Kind, object(t.Namespace, t.Name), t.Text)
	}
}

func object(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}
