package app

import (
	"testing"
)

// Of a flag that is given twice the last counts, as it does for the program that is started so.
func TestLastArgumentCounts(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"none":    {nil, ""},
		"once":    {[]string{"--topology=ensure"}, "ensure"},
		"twice":   {[]string{"--topology=ensure", "--topology=external"}, "external"},
		"as word": {[]string{"--topology=ensure", "--topology", "external"}, "external"},
		"another": {[]string{"--topology-x=ensure"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := argument(deployment("berth-system", workerName, 1, c.args...), "topology"); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
