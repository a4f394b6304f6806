package network

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/berth-net/berth/pkg/ipam"
)

// askable are the suffixes of output annotations by which users ask, too. RequestedKey keeps what they asked.
func askable() []string { return []string{SuffixSubnet, SuffixAddress, SuffixMAC, SuffixNICType} }

// parseRequested reads the value of RequestedKey: for each provider the values by suffix.
func parseRequested(text string) (map[string]map[string]string, error) {
	var out map[string]map[string]string
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return nil, fmt.Errorf("it is not what was written here: remove it, and ask by %s and its like: %w",
			Key(DefaultProvider, SuffixAddress), err)
	}
	return out, nil
}

// requestedOf gives what was asked for by a network's own annotations, by suffix, canonical.
func requestedOf(own map[string]string) map[string]string {
	out := map[string]string{}
	for _, s := range askable() {
		text := strings.TrimSpace(own[s])
		switch s {
		case SuffixAddress:
			if as, err := ParseAddresses(text); err == nil {
				text = join(as)
			}
		case SuffixMAC:
			if m, err := ipam.ParseMAC(text); err == nil {
				text = m.String()
			}
		}
		if text != "" {
			out[s] = text
		}
	}
	return out
}

// requestedValue is the value of RequestedKey; empty when nothing was asked for.
func requestedValue(requested map[string]map[string]string) string {
	if len(requested) == 0 {
		return ""
	}
	text, err := json.Marshal(requested)
	if err != nil { // maps of strings can always be written
		return ""
	}
	return string(text)
}
