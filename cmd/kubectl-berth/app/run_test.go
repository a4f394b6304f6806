package app

import (
	"slices"
	"strings"
	"testing"
)

func TestExitCodes(t *testing.T) {
	w := shop(t)
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no command":           {nil, ExitFine, ""},
		"help":                 {[]string{"who", "--help"}, ExitFine, ""},
		"fine":                 {[]string{"leases"}, ExitFine, ""},
		"no such command":      {[]string{"whom"}, ExitUsage, "--help"},
		"no such flag":         {[]string{"leases", "--sub=x"}, ExitUsage, "--help"},
		"no such format":       {[]string{"leases", "-o", "xml"}, ExitUsage, "table, wide, json, yaml"},
		"argument missing":     {[]string{"who"}, ExitUsage, "who ADDRESS|MAC"},
		"argument too many":    {[]string{"status", "x"}, ExitUsage, "1 arguments given, 0 wanted"},
		"no address":           {[]string{"who", "web-0"}, ExitUsage, "10.16.0.7"},
		"bad remote":           {[]string{"audit", "--northbound", "here", "--settle=0s"}, ExitUsage, "--northbound"},
		"negative time":        {[]string{"audit", "--settle=-1s"}, ExitUsage, "0s or more"},
		"for whom":             {[]string{"reserve", "ovn-default", "10.16.0.60"}, ExitUsage, "--for"},
		"no name":              {[]string{"reserve", "ovn-default", "10.16.0.60", "--for", "A B"}, ExitUsage, "no object can have"},
		"not sure":             {[]string{"uninstall", "--strip-finalizers"}, ExitUsage, "--yes"},
		"nothing to do":        {[]string{"uninstall", "--yes"}, ExitUsage, "--strip-finalizers"},
		"adopt what":           {[]string{"adopt"}, ExitUsage, "--all"},
		"adopt both":           {[]string{"adopt", "--all", "--subnet=tiny"}, ExitUsage, "--all"},
		"adopt nowhere":        {[]string{"adopt", "--subnet=nowhere"}, ExitError, "kubectl berth subnets"},
		"hand back what":       {[]string{"handback"}, ExitUsage, "--subnet"},
		"rebuild nowhere":      {[]string{"rebuild", "nowhere"}, ExitError, "kubectl berth subnets"},
		"rebuild broken":       {[]string{"rebuild", "broken"}, ExitError, "nonsense"},
		"no such pod":          {[]string{"why", "nobody", "-n", "shop"}, ExitError, "--namespace"},
		"database unreachable": {[]string{"audit", "--northbound", "unix:/nowhere", "--northbound-timeout=50ms"}, ExitError, "leave --northbound away"},
		"nobody":               {[]string{"who", "10.16.0.99"}, ExitFound, ""},
		"findings":             {[]string{"audit", "--settle=0s"}, ExitFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := w.run(c.args...)
			if code != c.code || !strings.Contains(errs, c.says) || (c.says == "") != (errs == "") {
				t.Errorf("exit code %d, want %d; it says %q, want %q", code, c.code, errs, c.says)
			}
			if (c.code == ExitUsage || c.code == ExitError) && out != "" {
				t.Errorf("beside the error it answers %q", out)
			}
		})
	}
}

// What only looks sends no writes.
func TestLookingWritesNothing(t *testing.T) {
	w := shop(t)
	w.kube.ResetRequests()
	for _, args := range [][]string{{"status"}, {"subnets"}, {"leases"}, {"who", "10.16.0.20"}, {"why", "web-0", "-n", "shop"}, {"audit", "--settle=0s"}} {
		if code, _, errs := w.run(args...); code == ExitError || code == ExitUsage {
			t.Errorf("%v: %s", args, errs)
		}
	}
	requests := w.kube.Requests()
	if len(requests) == 0 {
		t.Error("nothing was read")
	}
	for r := range requests {
		if verb, _, _ := strings.Cut(r, " "); verb != "get" && verb != "list" {
			t.Errorf("sent %s", r)
		}
	}
}

func TestCompletion(t *testing.T) {
	w := shop(t)
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"commands": {[]string{"re"}, []string{"rebuild", "release", "reserve"}},
		"pods":     {[]string{"why", "-n", "shop", "w"}, []string{"web-0", "web-1"}},
		"one pod":  {[]string{"why", "-n", "shop", "web-0", ""}, nil},
		"subnets":  {[]string{"reserve", "o"}, []string{"ovn-default"}},
		"released": {[]string{"release", "t"}, []string{"tiny"}},
		"flag":     {[]string{"leases", "--subnet", "b"}, []string{"broken"}},
		"formats":  {[]string{"leases", "-o", ""}, []string{"json", "table", "wide", "yaml"}},
		"spaces":   {[]string{"leases", "-n", "pl"}, []string{"plain"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"__complete", "--kubeconfig=" + w.kubeconfig}, c.args...)
			code, out, errs := w.raw(args...)
			if code != ExitFine {
				t.Fatal(errs)
			}
			var got []string
			for line := range strings.Lines(out) {
				if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(word, ":") {
					got = append(got, word)
				}
			}
			if slices.Sort(got); !slices.Equal(got, c.want) {
				t.Errorf("offers %q, want %q", got, c.want)
			}
		})
	}
}
