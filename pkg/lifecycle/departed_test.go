package lifecycle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestDepartedInUse(t *testing.T) {
	lost := node("Unknown", corev1.TaintNodeOutOfService)
	for name, c := range map[string]struct {
		in   Departed
		want bool
	}{
		"came to no node":               {Departed{Watched: true}, false},
		"seen to run":                   {Departed{Seen: true, NodeName: "n", Node: node("True"), Watched: true}, true},
		"seen to run, node unknown":     {Departed{Seen: true, NodeName: "n"}, true},
		"seen to run, out of service":   {Departed{Seen: true, NodeName: "n", Node: lost}, false},
		"seen to run, node gone":        {Departed{Seen: true, NodeName: "n", NodeGone: true}, false},
		"seen to have stopped":          {Departed{Seen: true, Stopped: true, NodeName: "n", Node: node("Unknown")}, false},
		"unseen, node ready":            {Departed{NodeName: "n", Node: node("True"), Watched: true}, false},
		"unseen, node ready, too early": {Departed{NodeName: "n", Node: node("True")}, true},
		"unseen, node not ready":        {Departed{NodeName: "n", Node: node("Unknown"), Watched: true}, true},
		"unseen, node says nothing":     {Departed{NodeName: "n", Node: &corev1.Node{}, Watched: true}, true},
		"unseen, node unknown":          {Departed{NodeName: "n", Watched: true}, true},
		"unseen, out of service":        {Departed{NodeName: "n", Node: lost}, false},
		"unseen, node gone":             {Departed{NodeName: "n", NodeGone: true}, false},
		"heir, seen to run":             {Departed{Heir: true, Seen: true, NodeName: "n", Node: node("True"), Watched: true}, false},
		"heir, seen to run, too early":  {Departed{Heir: true, Seen: true, NodeName: "n", Node: node("True")}, true},
		"heir, seen, node not ready":    {Departed{Heir: true, Seen: true, NodeName: "n", Node: node("Unknown"), Watched: true}, true},
		"heir, seen, out of service":    {Departed{Heir: true, Seen: true, NodeName: "n", Node: lost}, false},
		"heir, seen to have stopped":    {Departed{Heir: true, Seen: true, Stopped: true, NodeName: "n", Node: node("Unknown")}, false},
	} {
		if got := c.in.InUse(); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
