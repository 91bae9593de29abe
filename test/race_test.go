// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockwrap/lockwrap/test/rig"
)

// nomad#6567, nomad#8838: many containers start at once on a cold host.
func TestRace(t *testing.T) {
	eachHost(t, func(t *testing.T, h *rig.Host) {
		want := sharedRules(t, h, (*rig.Host).Usual)
		ok(t, h.Wrapped(h.Usual()...))
		for _, problem := range race(t, h, 12, want) {
			t.Error(problem)
		}
	})
}

// The same assertions on the bare list: if they held there, TestRace would show nothing.
func TestRace_bare(t *testing.T) {
	eachHost(t, func(t *testing.T, h *rig.Host) {
		want := sharedRules(t, h, (*rig.Host).Usual)
		const rounds = 5
		for range rounds {
			h := newHost(t, h.Set, h.Backend)
			ok(t, h.Bare(h.Usual()...))
			if problems := race(t, h, 8, want); len(problems) > 0 {
				t.Logf("%d problems, the first: %s", len(problems), problems[0])
				return
			}
		}
		t.Errorf("the bare list raced %d times without a failed ADD or a duplicated rule", rounds)
	})
}

// With ingressPolicy the order of the jumps in FORWARD is what isolates the bridges: CNI-ISOLATION-STAGE-1 has to be
// above CNI-FORWARD. One late insert of CNI-FORWARD by another ADD turns it off for all.
func TestRace_ingressPolicy(t *testing.T) {
	for _, backend := range []string{rig.NFT, rig.Legacy} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, rig.New, backend)
			plugins := func(h *rig.Host) []rig.Plugin {
				return []rig.Plugin{
					h.Bridge(rig.Net4, rig.Net6), rig.Firewall().With("ingressPolicy", "same-bridge"), rig.Portmap(),
				}
			}
			want := sharedRules(t, h, plugins)
			for _, cmd := range []string{"iptables", "ip6tables"} {
				got := targets(want[cmd+" -t filter FORWARD"])
				if diff := cmp.Diff([]string{"CNI-ISOLATION-STAGE-1", "CNI-FORWARD"}, got); diff != "" {
					t.Fatalf("one ADD alone, jumps of FORWARD, %s (-want +got):\n%s", cmd, diff)
				}
			}
			ok(t, h.Wrapped(plugins(h)...))
			for _, problem := range race(t, h, 8, want) {
				t.Error(problem)
			}
		})
	}
}

// sharedRules are the shared rules, by chain and in order, that one container of this list makes on a cold host.
func sharedRules(t *testing.T, like *rig.Host, plugins func(*rig.Host) []rig.Plugin) map[string][]string {
	t.Helper()
	h := newHost(t, like.Set, like.Backend)
	ok(t, h.Bare(plugins(h)...))
	must(t, "one ADD alone", h.Add(newContainer(t, h)))
	s := stateOf(t, h)
	if twice := s.Duplicates(); len(twice) > 0 {
		t.Fatalf("one ADD alone duplicates rules: %q", twice)
	}
	return s.SharedRules()
}

// race adds n containers at once, then deletes them at once, and returns what went wrong.
func race(t *testing.T, h *rig.Host, n int, want map[string][]string) (problems []string) {
	t.Helper()
	containers := newContainers(t, h, n)
	runs, _ := rig.All(containers, h.Add)
	for i, run := range runs {
		if !run.OK() {
			problems = append(problems, fmt.Sprintf("ADD %d of %d: %v", i+1, n, run))
		}
	}
	for _, twice := range stateOf(t, h).Duplicates() {
		problems = append(problems, "duplicated: "+twice)
	}
	if diff := cmp.Diff(want, stateOf(t, h).SharedRules()); diff != "" {
		problems = append(problems, "shared rules after the ADDs (-want +got):\n"+diff)
	}
	runs, _ = rig.All(containers, h.Del)
	for i, run := range runs {
		if !run.OK() {
			problems = append(problems, fmt.Sprintf("DEL %d of %d: %v", i+1, n, run))
		}
	}
	if err := stateOf(t, h).Gone(); err != nil {
		problems = append(problems, fmt.Sprintf("after DEL of all: %v", err))
	}
	if diff := cmp.Diff(want, stateOf(t, h).SharedRules()); diff != "" {
		problems = append(problems, "shared rules after the DELs (-want +got):\n"+diff)
	}
	return problems
}

func targets(rules []string) (names []string) {
	for _, rule := range rules {
		names = append(names, rig.Target(rule))
	}
	return names
}
