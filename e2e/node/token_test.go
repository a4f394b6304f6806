package node

import "testing"

func TestOnPort(t *testing.T) {
	for server, want := range map[string]string{
		"https://172.30.0.1:6443":      "https://172.30.0.1:7000",
		"https://[fd00:172:30::1]:643": "https://[fd00:172:30::1]:7000",
	} {
		if got, err := onPort(server, 7000); err != nil || got != want {
			t.Errorf("%s becomes %s, %v, want %s", server, got, err, want)
		}
		if got, err := onPort(server, 0); err != nil || got != server {
			t.Errorf("without a port %s becomes %s, %v", server, got, err)
		}
	}
	if got, err := onPort("https://%zz", 7000); err == nil {
		t.Errorf("an address that is none becomes %s", got)
	}
}
