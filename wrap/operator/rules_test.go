// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	accept  = "-A FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD"
	isolate = "-A FORWARD -m comment --comment 'CNI firewall plugin rules (ingressPolicy: same-bridge)' -j CNI-ISOLATION-STAGE-1"
	docker  = "-A FORWARD -j DOCKER-USER"
	masq    = "-A POSTROUTING -m comment --comment 'CNI portfwd requiring masquerade' -j CNI-HOSTPORT-MASQ"
)

// Whatever races have left: after the commands every rule of a CNI plugin is
// there once, others are as they were, and isolation comes before acceptance.
func TestJudge(t *testing.T) {
	tests := []struct {
		name, table string
		rules, want []string
		worst       severity
	}{
		{"nothing", "filter", nil, nil, fine},
		{"as it should be", "filter", []string{isolate, accept, docker}, []string{isolate, accept, docker}, fine},
		{"others' duplicates", "filter", []string{docker, accept, docker}, []string{docker, accept, docker}, fine},
		{"twice", "nat", []string{masq, docker, masq}, []string{docker, masq}, warn},
		{"thirteen times", "nat", slices.Repeat([]string{masq}, 13), []string{masq}, warn},
		{"acceptance on both sides", "filter", []string{accept, isolate, accept}, []string{isolate, accept}, fail},
		{"isolation on both sides", "filter", []string{isolate, accept, isolate}, []string{isolate, accept}, warn},
		{"isolation lost", "filter", []string{docker, accept, isolate}, []string{isolate, docker, accept}, fail},
		{"isolation lost, duplicates", "filter", []string{accept, isolate, accept, accept, isolate}, []string{isolate, accept}, fail},
		{"Nomad's", "filter", []string{"-A CNI-FORWARD -j NOMAD-ADMIN", "-A CNI-FORWARD -j NOMAD-ADMIN"}, []string{"-A CNI-FORWARD -j NOMAD-ADMIN"}, warn},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			listing := listed(append([]string{"-P FORWARD ACCEPT", "-N CNI-FORWARD"}, tt.rules...))
			f := judge("iptables", tt.table, listing)
			if f.worst() != tt.worst {
				t.Errorf("it is %s, not %s", f.worst(), tt.worst)
			}
			rules := slices.Clone(tt.rules)
			for _, each := range f {
				for _, command := range each.Commands {
					rules = execute(t, rules, tt.table, command)
				}
			}
			if diff := cmp.Diff(tt.want, rules); diff != "" {
				t.Errorf("%v\n%s", f, diff)
			}
			if again := judge("iptables", tt.table, listed(rules)); len(again) > 0 {
				t.Errorf("afterwards: %v", again)
			}
		})
	}
}

// listed are rules as iptables lists them: with quotes of its own.
func listed(rules []string) string { return strings.ReplaceAll(strings.Join(rules, "\n"), "'", `"`) }

func TestForShell(t *testing.T) {
	for line, want := range map[string]string{
		`-A F ! -d 10.0.0.0/8 -p tcp -m multiport --dports 80,443 -j X`: `-A F ! -d 10.0.0.0/8 -p tcp -m multiport --dports 80,443 -j X`,
		`--comment "CNI $(reboot) it's"`:                                `--comment 'CNI $(reboot) it'\''s'`,
		"--comment \"a\\\"b\\\\c`d`\"":                                  "--comment 'a\"b\\c`d`'",
		`--comment "" -j X`:                                             `--comment '' -j X`,
		`--comment a;b`:                                                 `--comment 'a;b'`,
		`-d *`:                                                          `-d '*'`,
	} {
		if got, ok := forShell(line); !ok || got != want {
			t.Errorf("%s\ngives %s, %v\nwant  %s", line, got, ok, want)
		}
	}
	if got, ok := forShell(`--comment "no end`); ok {
		t.Errorf("no end gives %s", got)
	}
}

// execute does to a listing what iptables does to a table.
func execute(t *testing.T, rules []string, table, command string) []string {
	t.Helper()
	rule, ok := strings.CutPrefix(command, "iptables -t "+table+" -D ")
	if ok {
		i := slices.Index(rules, "-A "+rule)
		if i < 0 {
			t.Fatalf("%s: no such rule", command)
		}
		return slices.Delete(rules, i, i+1)
	}
	rule, ok = strings.CutPrefix(command, "iptables -t "+table+" -I FORWARD 1 ")
	if !ok {
		t.Fatalf("what is %s?", command)
	}
	return slices.Insert(rules, 0, "-A FORWARD "+rule)
}

func TestFold(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"short", "ok    a: b", "ok    a: b\n"},
		{"80 columns", strings.Repeat("x ", 39) + "yy", strings.Repeat("x ", 39) + "yy\n"},
		{"81 columns", strings.Repeat("x ", 39) + "yyy", strings.Repeat("x ", 38) + "x\n      yyy\n"},
		{"characters, not bytes", strings.Repeat("é ", 39) + "éé", strings.Repeat("é ", 39) + "éé\n"},
		{"a word that is too long", "fail  /" + strings.Repeat("x", 90) + ": is no file", "fail  /" + strings.Repeat("x", 90) + ":\n      is no file\n"},
		{"only that", strings.Repeat("x", 90), strings.Repeat("x", 90) + "\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, fold(tt.text, "      ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOlderThan(t *testing.T) {
	for release, want := range map[string]bool{
		"v0.8.3": true, "v0.8.4": false, "v0.8.4-rc1": false, "v0.8.2+dirty": true, "v0.10.0": false, "v1.10.0": false, "": false, "unknown": false,
	} {
		if got := olderThan(release, "0.8.4"); got != want {
			t.Errorf("%s before v0.8.4: %v", release, got)
		}
	}
}
