package ovn

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseEndpoints(t *testing.T) {
	cases := map[string]struct {
		in   string
		want []string
		bad  bool
	}{
		"one":               {in: "tcp:[10.0.0.1]:6641", want: []string{"tcp:10.0.0.1:6641"}},
		"three":             {in: "tcp:[10.0.0.1]:6641, tcp:[fd00::1]:6641,ssl:nb.example:6641", want: []string{"tcp:10.0.0.1:6641", "tcp:[fd00::1]:6641", "ssl:nb.example:6641"}},
		"socket":            {in: "unix:/run/ovn/ovnnb_db.sock", want: []string{"unix:/run/ovn/ovnnb_db.sock"}},
		"comma at the end":  {in: "unix:/a,", want: []string{"unix:/a"}},
		"nothing":           {in: " ,", bad: true},
		"no scheme":         {in: "/run/ovn/ovnnb_db.sock", bad: true},
		"unknown scheme":    {in: "udp:10.0.0.1:6641", bad: true},
		"no port":           {in: "tcp:10.0.0.1", bad: true},
		"port out of range": {in: "tcp:10.0.0.1:66410", bad: true},
		"port zero":         {in: "tcp:10.0.0.1:0", bad: true},
		"no host":           {in: "tcp::6641", bad: true},
		"IPv6 bare":         {in: "tcp:fd00::1:6641", bad: true},
		"relative path":     {in: "unix:nb.sock", bad: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseEndpoints(tc.in)
			if (err != nil) != tc.bad {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConnectRefusesABadConfiguration(t *testing.T) {
	cases := map[string]Config{
		"no endpoint":  {},
		"bad endpoint": {Endpoints: []string{"nowhere"}},
	}
	for name, cfg := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := Connect(t.Context(), cfg); err == nil {
				t.Error("no error")
			}
		})
	}
}
