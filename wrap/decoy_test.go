// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestMasquerades(t *testing.T) {
	for config, want := range map[string]bool{`{"ipMasq": true}`: true, `{"ipMasq": false}`: false, `{}`: false, `{"ipMasq": "yes"}`: false} {
		var c map[string]json.RawMessage
		if err := json.Unmarshal([]byte(config), &c); err != nil {
			t.Fatal(err)
		}
		if got := masquerades("bridge", c); got != want {
			t.Errorf("bridge %s: got %v", config, got)
		}
		if masquerades("firewall", c) {
			t.Errorf("firewall %s masquerades", config)
		}
	}
}

func TestAttribute(t *testing.T) {
	got := attribute(3, []byte("lo\x00"))
	if len(got)%4 != 0 || len(got) != 8 {
		t.Errorf("got % x", got)
	}
}

func TestDecoy(t *testing.T) {
	addrs := []netip.Prefix{netip.MustParsePrefix("10.9.8.7/24"), netip.MustParsePrefix("fd00::7/64")}
	path, done, err := newDecoy("eth0", addrs)
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs root")
	}
	if err != nil {
		t.Fatal(err)
	}
	if present, err := hasInterface(path, "eth0"); !present || err != nil {
		t.Errorf("no interface in it: %v", err)
	}
	if present, err := hasInterface(path, "eth1"); present || err != nil {
		t.Errorf("another interface in it, or %v", err)
	}
	done()
}

func TestResultAddresses(t *testing.T) {
	got := resultAddresses(json.RawMessage(`{"ips": [{"address": "10.0.0.2/24"}, {"address": "x"}, {"address": "fd00::2/64"}]}`))
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("fd00::2/64")}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}
