// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Table 3.1 of the CNI semantics, row by row.
func TestSharedChains(t *testing.T) {
	filter := func(names ...string) (out []Chain) {
		for _, n := range names {
			out = append(out, Chain{"filter", n})
		}
		return out
	}
	nat := func(names ...string) (out []Chain) {
		for _, n := range names {
			out = append(out, Chain{"nat", n})
		}
		return out
	}
	const ports = `"runtimeConfig": {"portMappings": [{"hostPort": 1}]}`
	tests := []struct {
		name, plugin, config string
		want                 []Chain
	}{
		{"firewall", "firewall", `{}`, filter("CNI-FORWARD", "CNI-ADMIN")},
		{"firewall iptables", "firewall", `{"backend": "iptables"}`, filter("CNI-FORWARD", "CNI-ADMIN")},
		{"firewall of Nomad", "firewall", `{"backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN"}`, filter("CNI-FORWARD", "NOMAD-ADMIN")},
		{"firewall with an option for a name", "firewall", `{"iptablesAdminChainName": "-F"}`, filter("CNI-FORWARD")},
		{"firewall firewalld", "firewall", `{"backend": "firewalld"}`, nil},
		{"firewall firewalld isolated", "firewall", `{"backend": "firewalld", "ingressPolicy": "isolated"}`, filter("CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2")},
		{"firewall same-bridge", "firewall", `{"ingressPolicy": "same-bridge"}`, filter("CNI-FORWARD", "CNI-ADMIN", "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2")},
		{"firewall open", "firewall", `{"ingressPolicy": "open"}`, filter("CNI-FORWARD", "CNI-ADMIN")},
		{"portmap", "portmap", `{` + ports + `}`, nat("CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ")},
		{"portmap snat", "portmap", `{"snat": true, "markMasqBit": 5, ` + ports + `}`, nat("CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ")},
		{"portmap no snat", "portmap", `{"snat": false, ` + ports + `}`, nat("CNI-HOSTPORT-DNAT")},
		{"portmap another owner's mark chain", "portmap", `{"externalSetMarkChain": "KUBE-MARK-MASQ", ` + ports + `}`, nat("CNI-HOSTPORT-DNAT")},
		{"portmap without ports", "portmap", `{"runtimeConfig": {"portMappings": []}}`, nil},
		{"portmap without runtimeConfig", "portmap", `{}`, nil},
		{"portmap nftables", "portmap", `{"backend": "nftables", ` + ports + `}`, nil},
		{"portmap that can't be read", "portmap", `{"snat": "yes", ` + ports + `}`, nil},
		{"bridge", "bridge", `{"ipMasq": true}`, nil},
		{"another", "my-firewall", `{}`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var config map[string]json.RawMessage
			if err := json.Unmarshal([]byte(tt.config), &config); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, sharedChains(tt.plugin, config)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFamilies(t *testing.T) {
	tests := []struct {
		name, ipam string
		want       families
	}{
		{"host-local", `{"ranges": [[{"subnet": "10.0.0.0/24"}]], "routes": [{"dst": "::/0"}]}`, families{v4: true}},
		{"host-local dual stack", `{"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]}`, families{v4: true, v6: true}},
		{"host-local old", `{"subnet": "fd00::/64", "gateway": "10.0.0.1"}`, families{v6: true}},
		{"static", `{"addresses": [{"address": "10.0.0.2/24", "gateway": "fe80::1"}]}`, families{v4: true}},
		{"dhcp", `{"type": "dhcp", "daemonSocketPath": "/run/x"}`, families{}},
		{"none", `null`, families{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got families
			got.addFrom(json.RawMessage(tt.ipam))
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestResultFamilies(t *testing.T) {
	for result, want := range map[string]families{
		`{"ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}, {"address": "fd00::2/64"}], "dns": {}}`: {v4: true, v6: true},
		`{"ip4": {"ip": "10.0.0.2/24", "routes": [{"dst": "::/0"}]}}`:                                        {v4: true},
		`{"ip6": {"ip": "fd00::2/64"}}`:          {v6: true},
		`{"dns": {"nameservers": ["10.0.0.1"]}}`: {},
		``:                                       {},
		`{"ips": [{"address": "::ffff:10.0.0.2/120"}]}`: {v4: true},
	} {
		if got := resultFamilies(json.RawMessage(result)); got != want {
			t.Errorf("%s: got %+v, want %+v", result, got, want)
		}
	}
}

// fakeIptables answers as told and fails the test on a surprise.
type fakeIptables struct {
	t       *testing.T
	answers []answer
}

type answer struct {
	call   string
	err    error
	exists bool
}

func (f *fakeIptables) next(call string) answer {
	f.t.Helper()
	if len(f.answers) == 0 || f.answers[0].call != call {
		f.t.Fatalf("unexpected call %q, expected %v", call, f.answers)
	}
	a := f.answers[0]
	f.answers = f.answers[1:]
	return a
}

func (f *fakeIptables) ListChains(table string) ([]string, error) {
	return nil, f.next("-t " + table + " -S").err
}

func (f *fakeIptables) NewChain(table, chain string) error {
	return f.next("-t " + table + " -N " + chain).err
}

func (f *fakeIptables) ChainExists(table, chain string) (bool, error) {
	a := f.next("-t " + table + " -S " + chain + " 1")
	return a.exists, a.err
}

func TestEnsureChain(t *testing.T) {
	const make, look = "-t nat -N X", "-t nat -S X 1"
	existsLegacy := errors.New("exit status 1: iptables: Chain already exists.")
	existsNFT := errors.New("exit status 4: CHAIN_USER_ADD failed (File exists): chain X")
	busy := errors.New("exit status 4: iptables: Resource temporarily unavailable.")
	wrongTable := errors.New("exit status 1: table `nat' is incompatible, use 'nft' tool.")
	tests := []struct {
		name    string
		answers []answer
		want    error
	}{
		{"made", []answer{{call: make}}, nil},
		{"exists, legacy", []answer{{call: make, err: existsLegacy}, {call: look, exists: true}}, nil},
		{"exists, nft (nomad#8838)", []answer{{call: make, err: existsNFT}, {call: look, exists: true}}, nil},
		{"the text of exists, but it doesn't", []answer{{call: make, err: existsNFT}, {call: look}, {call: make}}, nil},
		{"busy for a moment (go-cni#60)", []answer{{call: make, err: busy}, {call: look, err: busy}, {call: make}}, nil},
		{"never (podman#5446)", []answer{
			{call: make, err: wrongTable}, {call: look, err: wrongTable},
			{call: make, err: wrongTable}, {call: look, err: wrongTable},
			{call: make, err: wrongTable}, {call: look, err: wrongTable}}, wrongTable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fake := &fakeIptables{t, tt.answers}
			if err := ensureChain(fake, "nat", "X", time.Now().Add(time.Minute)); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if len(fake.answers) > 0 {
				t.Errorf("did not call %v", fake.answers)
			}
		})
	}
}

func TestEnsureChain_deadline(t *testing.T) {
	busy := errors.New("busy")
	fake := &fakeIptables{t, []answer{{call: "-t nat -N X", err: busy}}} // and no more: it may have been killed
	if err := ensureChain(fake, "nat", "X", time.Now()); !errors.Is(err, busy) {
		t.Errorf("got %v", err)
	}
}

// A delegate that runs next must not race with a call of lockwrap's own.
func TestStoppableMaker(t *testing.T) {
	var stopped atomic.Bool
	client := func() (chainMaker, error) {
		return stoppableMaker{&fakeIptables{t, []answer{{call: "-t nat -S"}}}, &stopped}, nil
	}
	maker, _ := client()
	if _, err := maker.ListChains("nat"); err != nil {
		t.Fatal(err)
	}
	stopped.Store(true)
	if err := ensureChains(client, "nat", []string{"X", "Y"}); !errors.Is(err, errGivenUp) {
		t.Errorf("got %v", err)
	}
}
