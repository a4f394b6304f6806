package network

import "testing"

// Who waits for an address is said by the pod, else by its namespace, else by the first subnet that says something; and
// unless somebody does, pods of controllers wait.
func TestWaits(t *testing.T) {
	says := func(words ...string) Planned {
		var p Planned
		for _, word := range words {
			s := subnet("s", "10.1.0.0/24")
			if word != "" {
				annotate(WhenUnavailableKey, word)(s)
			}
			p.Interfaces = append(p.Interfaces, Interface{Candidates: []Candidate{{Subnet: NewSubnet(s, Around{})}}})
		}
		return p
	}
	bare := func(word string) Pod { return annotated(WhenUnavailableKey, word) }
	of := func(p Pod) Pod { return controlled(p, "apps/v1", "ReplicaSet", "web") }
	preset := func(p Pod) Pod {
		p.NodeName = "n"
		return p
	}
	cases := map[string]struct {
		pod       Pod
		namespace string
		plan      Planned
		want      bool
	}{
		"a bare pod":                         {annotated(), "", says(""), false},
		"a controller's":                     {of(annotated()), "", says(""), true},
		"a bare pod that says so":            {bare(Wait), "", says(""), true},
		"a controller's that says not":       {of(bare(Refuse)), "", says(""), false},
		"by the namespace":                   {annotated(), Wait, says(""), true},
		"by the namespace, not":              {of(annotated()), Refuse, says(""), false},
		"the pod before the namespace":       {bare(Refuse), Wait, says(Wait), false},
		"the namespace before the subnet":    {annotated(), Wait, says(Refuse), true},
		"by the subnet":                      {annotated(), "", says(Wait), true},
		"by the subnet, not":                 {of(annotated()), "", says(Refuse), false},
		"by the second network's subnet":     {annotated(), "", says("", Wait), true},
		"the first subnet before the next":   {annotated(), "", says(Refuse, Wait), false},
		"what nobody understands":            {of(annotated()), "perhaps", says("maybe"), true},
		"nobody's word, and then a subnet's": {annotated(), "perhaps", says(Wait), true},
		"no network":                         {of(annotated()), "", Planned{}, true},
		"on a preset node":                   {preset(of(bare(Wait))), Wait, says(Wait), false},
	}
	for name, c := range cases {
		ns := Namespace{Name: "default"}
		if c.namespace != "" {
			ns.Annotations = map[string]string{WhenUnavailableKey: c.namespace}
		}
		if got := Waits(c.pod, ns, c.plan); got != c.want {
			t.Errorf("%s: waits: %v", name, got)
		}
	}
}
