package network

import (
	"encoding/json"
	"fmt"
	"strings"
)

// parseRequested reads the value of RequestedKey: for each provider the values by suffix.
func parseRequested(text string) (map[string]map[string]string, error) {
	var out map[string]map[string]string
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return nil, fmt.Errorf("it is not what was written here: remove it, and ask by %s and its like: %w",
			Key(DefaultProvider, SuffixAddress), err)
	}
	return out, nil
}

// requestedValue is the value of RequestedKey for an interface; empty when nothing was asked for.
func requestedValue(i Interface, subnet string) string {
	asked := map[string]string{}
	set := func(suffix, value string) {
		if value != "" {
			asked[suffix] = value
		}
	}
	set(SuffixSubnet, strings.TrimSpace(subnet))
	set(SuffixAddress, join(i.Addresses))
	set(SuffixMAC, i.MAC.String())
	set(SuffixNICType, i.NICType)
	if len(asked) == 0 {
		return ""
	}
	text, err := json.Marshal(map[string]map[string]string{i.Provider: asked})
	if err != nil { // maps of strings can always be written
		return ""
	}
	return string(text)
}
