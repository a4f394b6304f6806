package lifecycle

import (
	"testing"

	"github.com/berth-net/berth/pkg/ipam"
)

func TestKeeps(t *testing.T) {
	set := func(change ...func(*OwnerFacts)) OwnerFacts {
		o := OwnerFacts{Found: Yes, UID: "set-1", Ordinals: &Ordinals{Replicas: 2}}
		for _, c := range change {
			c(&o)
		}
		return o
	}
	owned := func(uid string) func(*ipam.Held) { return func(h *ipam.Held) { h.OwnerUID = uid } }
	of := func(provider string) func(*ipam.Held) { return func(h *ipam.Held) { h.Provider = provider } }
	machine := func(n Networks) OwnerFacts { return OwnerFacts{Found: Yes, Networks: &n} }
	nics := machine(Networks{Providers: []string{"n1.ns.ovn"}})
	for name, c := range map[string]struct {
		lease  ipam.Held
		owner  OwnerFacts
		number int64
		want   Answer
	}{
		"nobody knows":                   {lease(sticky), OwnerFacts{}, 0, Unknown},
		"gone":                           {lease(sticky), OwnerFacts{Found: No}, 0, No},
		"there":                          {lease(sticky, owned("set-1")), set(), 1, Yes},
		"there, controller unknown":      {lease(sticky), set(), 1, Yes},
		"being deleted":                  {lease(sticky), set(func(o *OwnerFacts) { o.Deleting = true }), 0, No},
		"another of that name":           {lease(sticky, owned("set-0")), set(), 0, No},
		"scaled away":                    {lease(sticky, owned("set-1")), set(), 2, No},
		"before the start":               {lease(sticky), set(func(o *OwnerFacts) { o.Ordinals.Start = 5 }), 4, No},
		"after the start":                {lease(sticky), set(func(o *OwnerFacts) { o.Ordinals.Start = 5 }), 6, Yes},
		"scaled to nothing":              {lease(sticky), set(func(o *OwnerFacts) { o.Ordinals.Replicas = 0 }), 0, No},
		"reserved":                       {lease(sticky), set(func(o *OwnerFacts) { o.Ordinals.Reserved = []int64{1} }), 1, No},
		"after a reserved one":           {lease(sticky), set(func(o *OwnerFacts) { o.Ordinals.Reserved = []int64{1, 1} }), 2, Yes},
		"beyond, in spite of reserved":   {lease(sticky), set(func(o *OwnerFacts) { o.Ordinals.Reserved = []int64{1, 9} }), 3, No},
		"template names another subnet":  {lease(sticky, of("ovn")), machine(Networks{Subnets: map[string][]string{"ovn": {"t"}}}), 0, No},
		"template names the subnet":      {lease(sticky, of("ovn")), machine(Networks{Subnets: map[string][]string{"ovn": {"t", "s"}}}), 0, Yes},
		"template of another network":    {lease(sticky, of("x.ns.ovn")), machine(Networks{Subnets: map[string][]string{"ovn": {"t"}}}), 0, Yes},
		"machine, default network":       {lease(vm, of("ovn")), nics, 0, Yes},
		"machine, NIC in its spec":       {lease(vm, of("n1.ns.ovn")), nics, 0, Yes},
		"machine, one of several of one": {lease(vm, of("n1.ns.ovn.net2")), nics, 0, Yes},
		"machine, NIC taken out":         {lease(vm, of("n2.ns.ovn")), nics, 0, No},
		"machine, NIC of a like name":    {lease(vm, of("n1.ns.ovnx")), nics, 0, No},
		"machine, no NICs":               {lease(vm, of("n1.ns.ovn")), machine(Networks{Providers: []string{}}), 0, No},
		"machine, spec not understood":   {lease(vm, of("n1.ns.ovn")), machine(Networks{}), 0, Yes},
		"machine, network not readable":  {lease(vm, of("x.y")), machine(Networks{Providers: []string{}, Vague: true}), 0, Unknown},
		"machine, made anew":             {lease(vm, owned("instance")), OwnerFacts{Found: Yes}, 0, Yes},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Keeps(c.lease, c.owner, c.number); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}
