// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/coreos/go-iptables/iptables"
	"github.com/google/go-cmp/cmp"
)

// legacyEntry is an entry as the kernel hands it out: a head, a target of that name, its argument.
func legacyEntry(proto iptables.Protocol, target, argument string) []byte {
	head := 112
	if proto == iptables.ProtocolIPv6 {
		head = 168
	}
	e := make([]byte, head+32+32)
	offsets := map[iptables.Protocol]int{iptables.ProtocolIPv4: 88, iptables.ProtocolIPv6: 140}[proto]
	binary.NativeEndian.PutUint16(e[offsets:], uint16(head))
	binary.NativeEndian.PutUint16(e[offsets+2:], uint16(len(e)))
	copy(e[head+2:head+31], target)
	copy(e[head+32:], argument)
	return e
}

func TestLegacyChains(t *testing.T) {
	for name, proto := range map[string]iptables.Protocol{"IPv4": iptables.ProtocolIPv4, "IPv6": iptables.ProtocolIPv6} {
		t.Run(name, func(t *testing.T) {
			var table []byte
			for _, e := range [][2]string{
				{"", "\x01"}, {"ERROR", "CNI-FORWARD"}, {"MARK", "CNI-ADMIN"}, {"", ""},
				{"ERROR", "a-name-of-twenty-eight-bytes"}, {"ERROR", "ERROR"},
			} {
				table = append(table, legacyEntry(proto, e[0], e[1])...)
			}
			got, err := legacyChains(table, proto)
			if diff := cmp.Diff([]string{"CNI-FORWARD", "a-name-of-twenty-eight-bytes", "ERROR"}, got); diff != "" || err != nil {
				t.Errorf("%v, chains (-want +got):\n%s", err, diff)
			}
			for _, cut := range []int{1, 31, 100, len(table) - 1} {
				if got, err := legacyChains(table[:cut], proto); !errors.Is(err, errCutOff) {
					t.Errorf("of %d bytes: %q, %v", cut, got, err)
				}
			}
		})
	}
	if got, err := legacyChains(nil, iptables.ProtocolIPv4); len(got) > 0 || err != nil {
		t.Errorf("of nothing: %q, %v", got, err)
	}
}

// What the kernel says is believed to be a table of entries, and no more.
func FuzzLegacyChains(f *testing.F) {
	f.Add(append(legacyEntry(iptables.ProtocolIPv4, "ERROR", "CNI-FORWARD"), legacyEntry(iptables.ProtocolIPv4, "", "")...), false)
	f.Add(legacyEntry(iptables.ProtocolIPv6, "ERROR", "CNI-FORWARD"), true)
	f.Fuzz(func(t *testing.T, table []byte, ipv6 bool) {
		proto := iptables.ProtocolIPv4
		if ipv6 {
			proto = iptables.ProtocolIPv6
		}
		chains, err := legacyChains(table, proto)
		if err != nil && chains != nil {
			t.Errorf("%q and %v", chains, err)
		}
		for _, chain := range chains {
			if len(chain) > 32 {
				t.Errorf("a chain of %d bytes: %q", len(chain), chain)
			}
		}
	})
}

func TestIsChainName(t *testing.T) {
	for name, want := range map[string]bool{
		"CNI-FORWARD": true, "a": true, "_x": true, ".x": true, "7": true, "Ketten-ä": true,
		"1234567890123456789012345678": true, "12345678901234567890123456789": false,
		"": false, "-N": false, "!x": false, "a b": false, "a\tb": false, "a\nb": false, "a\x00b": false, "äx": false,
	} {
		if got := isChainName(name); got != want {
			t.Errorf("%q: got %v", name, got)
		}
	}
}
