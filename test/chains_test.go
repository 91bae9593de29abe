// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockwrap/lockwrap/test/rig"
)

var (
	forward   = []string{"filter CNI-ADMIN", "filter CNI-FORWARD"}
	isolation = []string{"filter CNI-ISOLATION-STAGE-1", "filter CNI-ISOLATION-STAGE-2"}
	dnat      = []string{"nat CNI-HOSTPORT-DNAT"}
	masq      = []string{"nat CNI-HOSTPORT-MASQ", "nat CNI-HOSTPORT-SETMARK"}
)

// in4 and in46 are chains of one family and of both, as chainsOf lists them.
func in4(sets ...[]string) []string { return inFamilies([]string{"iptables"}, sets) }
func in46(sets ...[]string) []string {
	return inFamilies([]string{"iptables", "ip6tables"}, sets)
}

func inFamilies(cmds []string, sets [][]string) []string {
	var all []string
	for _, cmd := range cmds {
		for _, set := range sets {
			for _, chain := range set {
				all = append(all, cmd+" "+chain)
			}
		}
	}
	slices.Sort(all)
	return all
}

// The shared chains that exist after one ADD on a cold host are those that the delegates' configuration implies
// (table 3.1 of the CNI semantics), for the families of their addresses.
func TestChains(t *testing.T) {
	firewall, portmap := rig.Firewall, rig.Portmap
	for _, tt := range []struct {
		name    string
		plugins func(h *rig.Host) []rig.Plugin
		chains  []map[string]string // key of the lockwrap entry
		noPorts bool
		// What it takes to run it with the real firewall and portmap is not there.
		onlyPass bool
		prepare  []string // arguments of an iptables call
		want     []string
	}{
		{name: "IPv4", plugins: (*rig.Host).Usual, want: in4(forward, dnat, masq)},
		{name: "dual stack", plugins: (*rig.Host).Dual, want: in46(forward, dnat, masq)},
		{
			name:    "IPv6",
			plugins: func(h *rig.Host) []rig.Plugin { return []rig.Plugin{h.Bridge(rig.Net6), firewall(), portmap()} },
			want:    inFamilies([]string{"ip6tables"}, [][]string{forward, dnat, masq}),
		},
		{name: "no port mappings", plugins: (*rig.Host).Usual, noPorts: true, want: in4(forward)},
		{
			name:    "bridge alone",
			plugins: func(h *rig.Host) []rig.Plugin { return []rig.Plugin{h.Bridge(rig.Net4)} },
		},
		{
			name: "snat false",
			plugins: func(h *rig.Host) []rig.Plugin {
				return []rig.Plugin{h.Bridge(rig.Net4), portmap().With("snat", false)}
			},
			want: in4(dnat),
		},
		{
			// kube-proxy's chain; an empty one would hide that kube-proxy has not made it (cri-o#6772).
			name: "externalSetMarkChain",
			plugins: func(h *rig.Host) []rig.Plugin {
				return []rig.Plugin{h.Bridge(rig.Net4), portmap().With("externalSetMarkChain", "KUBE-MARK-MASQ")}
			},
			prepare: []string{"-t", "nat", "-N", "KUBE-MARK-MASQ"},
			want:    in4(dnat, []string{"nat KUBE-MARK-MASQ"}),
		},
		{
			name: "externalSetMarkChain missing",
			plugins: func(h *rig.Host) []rig.Plugin {
				return []rig.Plugin{h.Bridge(rig.Net4), portmap().With("externalSetMarkChain", "KUBE-MARK-MASQ")}
			},
			onlyPass: true,
			want:     in4(dnat),
		},
		{
			name: "markMasqBit",
			plugins: func(h *rig.Host) []rig.Plugin {
				return []rig.Plugin{h.Bridge(rig.Net4), portmap().With("markMasqBit", 5)}
			},
			want: in4(dnat, masq),
		},
		{
			name: "portmap nftables",
			plugins: func(h *rig.Host) []rig.Plugin {
				return []rig.Plugin{h.Bridge(rig.Net4), portmap().With("backend", "nftables")}
			},
			onlyPass: true,
		},
		{
			name: "firewall firewalld",
			plugins: func(h *rig.Host) []rig.Plugin {
				return []rig.Plugin{h.Bridge(rig.Net4), firewall().With("backend", "firewalld")}
			},
			onlyPass: true,
		},
		{
			name: "firewall without backend, no firewalld",
			plugins: func(h *rig.Host) []rig.Plugin {
				return []rig.Plugin{h.Bridge(rig.Net4), {"type": "firewall"}}
			},
			want: in4(forward),
		},
		{
			name: "admin chain",
			plugins: func(h *rig.Host) []rig.Plugin {
				return []rig.Plugin{h.Bridge(rig.Net4), firewall().With("iptablesAdminChainName", "NOMAD-ADMIN")}
			},
			want: in4([]string{"filter CNI-FORWARD", "filter NOMAD-ADMIN"}),
		},
		{
			name: "ingressPolicy",
			plugins: func(h *rig.Host) []rig.Plugin {
				return []rig.Plugin{h.Bridge(rig.Net4, rig.Net6), firewall().With("ingressPolicy", "same-bridge")}
			},
			want: in46(forward, isolation),
		},
		{
			name:    "chains",
			plugins: (*rig.Host).Usual,
			chains:  []map[string]string{{"table": "nat", "name": "MY-CHAIN"}},
			want:    in4(forward, dnat, masq, []string{"nat MY-CHAIN"}),
		},
	} {
		for _, backend := range []string{rig.NFT, rig.Legacy} {
			// With delegates that do nothing it is lockwrap's chains that are seen. With the real ones nothing may
			// be there besides what these make themselves.
			for _, delegates := range []string{"pass", "real"} {
				if delegates == "real" && (tt.onlyPass || backend != rig.NFT) {
					continue
				}
				t.Run(tt.name+"/"+backend+"/"+delegates, func(t *testing.T) {
					t.Parallel()
					h := newHost(t, rig.New, backend)
					ok(t, h.Wrapped(tt.plugins(h)...))
					if tt.chains != nil {
						ok(t, h.Edit(func(entry rig.Plugin) { entry["chains"] = tt.chains }))
					}
					if delegates == "pass" {
						pass(t, h, "firewall", "portmap")
					}
					if tt.prepare != nil {
						must(t, "prepare", h.Exec("iptables-"+backend, tt.prepare...))
					}
					c := newContainer(t, h)
					if tt.noPorts {
						c.Ports = "{}"
					}
					must(t, "ADD", h.Add(c))
					if diff := cmp.Diff(tt.want, chainsOf(t, h)); diff != "" {
						t.Errorf("chains (-want +got):\n%s", diff)
					}
				})
			}
		}
	}
}

var ownChain = regexp.MustCompile(` CNI-(DN-)?[0-9a-f]{20,}$`)

// chainsOf are all chains on the host but those of single containers.
func chainsOf(t *testing.T, h *rig.Host) []string {
	t.Helper()
	var all []string
	for _, chain := range stateOf(t, h).Chains() {
		if !ownChain.MatchString(chain) {
			all = append(all, chain)
		}
	}
	return all
}

// lockwrap's own iptables calls: at most one listing per table and family when all chains exist, none when no chain is
// needed (plugins#510).
func TestChains_calls(t *testing.T) {
	for _, tt := range []struct {
		name     string
		plugins  func(h *rig.Host) []rig.Plugin
		listings int
	}{
		{"IPv4", (*rig.Host).Usual, 2},
		{"dual stack", (*rig.Host).Dual, 4},
		{"bridge alone", func(h *rig.Host) []rig.Plugin { return []rig.Plugin{h.Bridge(rig.Net4)} }, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, rig.New, rig.NFT)
			ok(t, h.Wrapped(tt.plugins(h)...))
			must(t, "the first ADD", h.Add(newContainer(t, h)))
			ok(t, h.IPTables(`[ "$caller" = lockwrap ] && echo "${0##*/} $*" >>"$dir/calls"`))
			c := newContainer(t, h)
			must(t, "the second ADD", h.Add(c))
			must(t, "DEL", h.Del(c))

			data, err := os.ReadFile(filepath.Join(h.Dir, "calls"))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			listings, families := map[string]int{}, map[string]int{}
			for call := range strings.Lines(string(data)) {
				call = strings.TrimSpace(call)
				cmd, args, _ := strings.Cut(call, " ")
				switch {
				case args == "--version": // go-iptables asks it to know its options
					families[cmd]++
				case strings.Contains(args, "-S"):
					listings[call]++
				default:
					t.Errorf("a call that was not needed: %s", call)
				}
			}
			for call, n := range listings {
				if n > 1 {
					t.Errorf("%d x %s", n, call)
				}
			}
			for cmd, n := range families {
				if n > 1 {
					t.Errorf("%d x %s --version", n, cmd)
				}
			}
			if len(listings) > tt.listings || tt.listings == 0 && len(families) > 0 {
				t.Errorf("want at most %d listings, got these calls:\n%s", tt.listings, data)
			}
		})
	}
}

// On a host where all chains exist, no iptables is run to find that out; where one is missing, or is there only for the
// other kind of iptables, it is made. Firewalld and operators remove chains at any time (plugins#512).
func TestChains_lookUp(t *testing.T) {
	for backend, other := range map[string]string{rig.NFT: rig.Legacy, rig.Legacy: rig.NFT} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, rig.New, backend)
			ok(t, h.Wrapped(h.Dual()...))
			log := filepath.Join(h.Dir, "log")
			ok(t, h.Edit(func(entry rig.Plugin) { entry["logLevel"], entry["logFile"] = "debug", log }))
			pass(t, h, "firewall", "portmap") // make no chains
			add := func(what string) (looked []string) {
				t.Helper()
				if err := os.Remove(log); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
				must(t, "ADD, "+what, h.Add(newContainer(t, h)))
				if diff := cmp.Diff(in46(forward, dnat, masq), chainsOf(t, h)); diff != "" {
					t.Errorf("chains after the ADD, %s (-want +got):\n%s", what, diff)
				}
				data, err := os.ReadFile(log)
				ok(t, err)
				for _, m := range regexp.MustCompile(`msg="chains are there" .* ipv6=(\S+) table=(\S+)`).FindAllStringSubmatch(string(data), -1) {
					looked = append(looked, map[string]string{"false": "IPv4 ", "true": "IPv6 "}[m[1]]+m[2])
				}
				slices.Sort(looked)
				return looked
			}
			all := []string{"IPv4 filter", "IPv4 nat", "IPv6 filter", "IPv6 nat"}

			for _, chain := range append(slices.Clone(forward), append(dnat, masq...)...) {
				table, name, _ := strings.Cut(chain, " ")
				for _, cmd := range []string{"iptables-", "ip6tables-"} {
					must(t, "a chain of the other kind", h.Exec(cmd+other, "-t", table, "-N", name))
				}
			}
			if got := add("the other kind has all chains"); len(got) > 0 {
				t.Errorf("chains were taken to be there: %q", got)
			}
			for _, cmd := range []string{"iptables-", "ip6tables-"} {
				for _, table := range []string{"filter", "nat"} {
					must(t, "flush", h.Exec(cmd+other, "-t", table, "-X"))
				}
			}
			if diff := cmp.Diff(all, add("all chains exist")); diff != "" {
				t.Errorf("chains found without iptables (-want +got):\n%s", diff)
			}
			must(t, "remove", h.Exec("iptables-"+backend, "-t", "nat", "-X", "CNI-HOSTPORT-MASQ"))
			must(t, "remove", h.Exec("ip6tables-"+backend, "-X", "CNI-ADMIN"))
			if diff := cmp.Diff([]string{"IPv4 filter", "IPv6 nat"}, add("two are missing")); diff != "" {
				t.Errorf("chains found without iptables (-want +got):\n%s", diff)
			}
		})
	}
}

// However iptables answers lockwrap, the ADD goes on: the delegates decide.
func TestChains_iptablesFails(t *testing.T) {
	for _, tt := range []struct {
		name, script string
	}{
		// nomad#8838: somebody without lockwrap's lock was faster.
		{"exists, nft", `"$real" "$@"; echo "iptables v1.8.9 (nf_tables):  CHAIN_USER_ADD failed (File exists): chain $4" >&2; exit 4`},
		{"exists, legacy", `"$real" "$@"; echo "iptables: Chain already exists." >&2; exit 1`},
		// go-cni#60
		{"unavailable", `echo "iptables: Resource temporarily unavailable." >&2; exit 4`},
		// podman#5446: exit status 1, the same as for "exists".
		{"incompatible", "echo \"iptables v1.8.9 (nf_tables): table \\`nat' is incompatible, use 'nft' tool.\" >&2; exit 1"},
	} {
		for _, times := range []string{"once", "always"} {
			t.Run(tt.name+"/"+times, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, rig.New, rig.NFT)
				ok(t, h.Wrapped(h.Dual()...))
				once := `[ -e "$dir/failed" ] && exec "$real" "$@"`
				if times == "always" {
					once = ""
				}
				ok(t, h.IPTables(`
case "$caller $*" in "lockwrap "*"-N CNI-"*)
	`+once+`
	: >"$dir/failed"
	`+tt.script+`
esac`))
				c := newContainer(t, h)
				must(t, "ADD", h.Add(c))
				if _, err := os.Stat(filepath.Join(h.Dir, "failed")); err != nil {
					t.Errorf("no call of lockwrap failed: %v", err)
				}
				if diff := cmp.Diff(in46(forward, dnat, masq), chainsOf(t, h)); diff != "" {
					t.Errorf("chains (-want +got):\n%s", diff)
				}
				must(t, "DEL", h.Del(c))
				mustBeGone(t, h, "after DEL")
			})
		}
	}
}
