// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/json"
	"net/netip"
	"strings"
)

// families are the IP families of addresses.
type families struct{ v4, v6 bool }

func (f *families) add(addr netip.Addr) {
	if addr.Unmap().Is4() {
		f.v4 = true
	} else {
		f.v6 = true
	}
}

// addFrom adds what a part of a configuration tells: the addresses and networks
// in it, wherever they are, but not where routes lead or who the gateway is.
func (f *families) addFrom(raw json.RawMessage) {
	var value any
	if err := json.Unmarshal(raw, &value); err == nil {
		f.walk(value)
	}
}

func (f *families) walk(value any) {
	switch v := value.(type) {
	case string:
		if prefix, err := netip.ParsePrefix(v); err == nil {
			f.add(prefix.Addr())
		} else if addr, err := netip.ParseAddr(v); err == nil {
			f.add(addr)
		}
	case []any:
		for _, item := range v {
			f.walk(item)
		}
	case map[string]any:
		for key, item := range v {
			switch strings.ToLower(key) {
			case "routes", "gateway", "dns":
			default:
				f.walk(item)
			}
		}
	}
}

// resultFamilies are those of a result's addresses.
func resultFamilies(result json.RawMessage) (f families) {
	var parts struct {
		IPs json.RawMessage `json:"ips"`
		IP4 json.RawMessage `json:"ip4"` // up to 0.2.0
		IP6 json.RawMessage `json:"ip6"`
	}
	if err := json.Unmarshal(result, &parts); err == nil {
		for _, part := range []json.RawMessage{parts.IPs, parts.IP4, parts.IP6} {
			f.addFrom(part)
		}
	}
	return f
}
