package network

import "testing"

// The nodes' daemon reads the list of the default network again beside the subnet's CIDR. What it refuses is refused here,
// or the pod would be let in and never be plugged in.
func TestListsThatTheDaemonRefuses(t *testing.T) {
	refused := func(subnet string) result {
		return result{Errors: []string{"an address of subnet " + subnet + " between any two semicolons"}}
	}
	beside := func(r result) result {
		r.Warnings = []string{"was ignored: " + ip + " names an address"}
		return r
	}
	taken := func(network string) result { return result{Networks: []string{network}} }
	both := func(list string) world {
		w := usually(annotated(poolKey, list))
		w.ns.Annotations = map[string]string{ls: "ovn-default,dual"}
		return w
	}
	cases := map[string]struct {
		world
		want result
	}{
		"an entry of another subnet":    {usually(member("web", "web-0", poolKey, "10.16.0.5;10.99.0.6")), refused("ovn-default")},
		"that entry behind a comma":     {usually(member("web", "web-0", poolKey, "10.16.0.5,10.99.0.6")), taken("ovn from ovn-default, asks 10.16.0.5")},
		"an empty entry, last":          {usually(annotated(poolKey, "10.16.0.5;10.16.0.6;")), refused("ovn-default")},
		"an empty entry, between":       {usually(annotated(poolKey, "10.16.0.5;;10.16.0.6")), refused("ovn-default")},
		"a blank in an entry":           {usually(annotated(poolKey, "10.16.0.5; 10.16.0.6")), refused("ovn-default")},
		"a blank behind a comma":        {usually(annotated(poolKey, "10.16.0.5, 10.16.0.6")), taken("ovn from ovn-default, asks 10.16.0.5;10.16.0.6")},
		"blanks everywhere":             {usually(annotated(poolKey, " 10.16.0.5, 10.16.0.6")), refused("ovn-default")},
		"an empty word, first":          {usually(annotated(poolKey, ",10.16.0.5")), refused("ovn-default")},
		"an empty word, last":           {usually(annotated(poolKey, "10.16.0.5,")), taken("ovn from ovn-default, asks 10.16.0.5")},
		"a mask, first":                 {usually(annotated(poolKey, "10.16.0.5/16,10.16.0.6")), refused("ovn-default")},
		"IPv4 written as IPv6":          {usually(annotated(poolKey, "::ffff:10.16.0.5;10.16.0.6")), taken("ovn from ovn-default, asks 10.16.0.5;10.16.0.6")},
		"of two subnets, by commas":     {both("10.17.0.5,10.16.0.5"), taken("ovn from ovn-default dual, asks 10.17.0.5;10.16.0.5")},
		"of two subnets, by semicolons": {both("10.17.0.5;10.16.0.5"), refused("ovn-default, dual")},
		"of two, one with a blank":      {both("10.16.0.5, 10.17.0.5"), refused("dual")},
		"pairs of one of two subnets":   {both("10.17.0.5,fd00:17::5;10.17.0.6,fd00:17::6"), taken("ovn from dual, asks 10.17.0.5,fd00:17::5;10.17.0.6,fd00:17::6")},
		"unused beside an address":      {usually(annotated(poolKey, "10.99.0.6", ip, "10.16.0.5")), beside(refused("ovn-default"))},
		"unread beside an address":      {usually(annotated(poolKey, "x,10.16.0.5", ip, "10.16.0.5")), beside(refused("ovn-default"))},
		"a pool's name and blanks":      {pooled(annotated(poolKey, " p "), pool(1, "p", "red", "", "10.18.0.8")), taken("ovn from red/p")},
		"of an attachment, unread there": {attached(annotated("n1.default.ovn.kubernetes.io/ip_pool", "10.30.0.5; 10.30.0.6;"), nad("n1")),
			result{Networks: []string{"ovn from ovn-default", "n1.default.ovn from s1, asks 10.30.0.5;10.30.0.6"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}

// The daemon reads that list of every pod that Kube-OVN plugs in, also where the default network is another one.
func TestListOfAReplacedDefaultNetwork(t *testing.T) {
	replaced := func(list string, s Selection) world {
		w := attached(annotated(poolKey, list))
		w.pod.DefaultNetwork = &s
		return w
	}
	ignored := result{Networks: []string{"n1.default.ovn from s1"}, Warnings: []string{poolKey + ` is for the network "ovn"`}}
	refused := result{Errors: []string{poolKey + "]: Invalid value"}}
	cases := map[string]struct {
		world
		want result
	}{
		"addresses":          {replaced("10.99.0.5, 10.98.0.6;fd00::5", nad("n1")), ignored},
		"a pool's name":      {replaced("anything", nad("n1")), ignored},
		"one that is none":   {replaced("10.16.0.5,x", nad("n1")), refused},
		"a mask":             {replaced("10.16.0.5/16;10.16.0.6/16", nad("n1")), refused},
		"a zone":             {replaced("fe80::1%eth0,fe80::2", nad("n1")), refused},
		"an empty entry":     {replaced("10.16.0.5;", nad("n1")), refused},
		"only another CNI's": {replaced("10.16.0.5,x", nad("foreign")), result{Warnings: ignored.Warnings}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}
