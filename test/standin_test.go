// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockwrap/lockwrap/test/rig"
)

// nomadLists are the lists that are compiled into Nomad v0.10 and Nomad 2: nobody can edit them.
var nomadLists = map[string]func(*rig.Host) []rig.Plugin{
	"v0.10": func(h *rig.Host) []rig.Plugin {
		return []rig.Plugin{
			h.Bridge("172.26.64.0/20"),
			rig.Firewall().With("iptablesAdminChainName", "NOMAD-ADMIN"),
			rig.Portmap(),
		}
	},
	"v2": func(h *rig.Host) []rig.Plugin {
		return []rig.Plugin{
			{"type": "loopback"},
			h.Bridge("172.26.64.0/20"),
			rig.Firewall().With("iptablesAdminChainName", "NOMAD-ADMIN"),
			rig.Portmap(),
		}
	},
}

// nomadHost is a cold host with that list and no lockwrap yet.
func nomadHost(t *testing.T, h *rig.Host, list string) *rig.Host {
	t.Helper()
	h.Version = "0.4.0"
	ok(t, h.Bare(nomadLists[list](h)...))
	return h
}

// allocations is what Nomad does for many at once: three tries each with nothing in between, and a removal, for which
// libcni has a result or, for every second one, has lost it.
func allocations(t *testing.T, h *rig.Host, all []*rig.Container) (setups []rig.Run, twice []string, removals []rig.Run) {
	t.Helper()
	setups, _ = rig.All(all, func(c *rig.Container) rig.Run { return goCNI(h, "setup", c, 3) })
	twice = stateOf(t, h).Duplicates()
	for i, c := range all {
		if i%2 == 0 && setups[i].OK() {
			ok(t, h.Forget(c))
		}
	}
	removals, _ = rig.All(all, func(c *rig.Container) rig.Run { return goCNI(h, "remove", c, 0) })
	return setups, twice, removals
}

// The proof that these tests do what Nomad does: with the bare list and the old pair they show what its users saw
// (nomad#6567): the race, the retry that can't work, the clean-up that fails and leaks.
func TestStandIn_nomadBare(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	left := false
	symptoms := []string{"Chain already exists", "container veth name", "missing prevResult from earlier plugin"}
	for range 10 {
		h := nomadHost(t, newHost(t, rig.Old, rig.NFT), "v0.10")
		setups, _, removals := allocations(t, h, newContainers(t, h, 12))
		for _, run := range append(setups, removals...) {
			all.WriteString(run.Stdout + run.Stderr)
		}
		left = left || stateOf(t, h).Clean() != nil
		seen := 0
		for _, symptom := range symptoms {
			if strings.Contains(all.String(), symptom) {
				seen++
			}
		}
		if seen == len(symptoms) && left {
			return
		}
	}
	t.Errorf("in ten rounds not all of %q were seen, or nothing was left (%v); lockwrap is not needed any more:\n%s", symptoms, !left, all.String())
}

// The same through stand-ins: nothing fails, nothing is there twice, nothing is left. host-local is one too, though
// bridge calls it while the lock is held.
func TestStandIn_nomad(t *testing.T) {
	for _, on := range []struct {
		list    string
		set     rig.Set
		backend string
	}{
		{"v0.10", rig.Old, rig.NFT}, {"v0.10", rig.New, rig.Legacy}, {"v2", rig.New, rig.NFT}, {"v2", rig.Old, rig.Legacy},
	} {
		t.Run(on.list+"/"+on.set.Name+"/"+on.backend, func(t *testing.T) {
			t.Parallel()
			h := nomadHost(t, newHost(t, on.set, on.backend), on.list)
			ok(t, h.StandIns("bridge", "firewall", "portmap", "host-local"))
			setups, twice, removals := allocations(t, h, newContainers(t, h, 12))
			for i, run := range setups {
				if !run.OK() || run.Stdout != "" {
					t.Errorf("setup %d: %v\n%s", i, run, run.Stdout)
				}
			}
			if len(twice) > 0 {
				t.Errorf("duplicated: %q", twice)
			}
			for i, run := range removals {
				if !run.OK() {
					t.Errorf("remove %d: %v", i, run)
				}
			}
			mustBeGone(t, h, "after remove of all")
		})
	}
}

// A portmap that fails once: where the second try met "container veth name already exists", it succeeds.
func TestStandIn_portmapFailsOnce(t *testing.T) {
	for list := range nomadLists {
		t.Run(list, func(t *testing.T) {
			eachSet(t, func(t *testing.T, h *rig.Host) {
				nomadHost(t, h, list)
				ok(t, h.Shim("portmap", failFirstADD))
				ok(t, h.StandIns("bridge", "firewall", "portmap"))
				c := newContainer(t, h)
				run := goCNI(h, "setup", c, 3)
				must(t, "three tries", run)
				failed := strings.Split(strings.TrimSpace(run.Stdout), "\n")
				if len(failed) != 1 || !strings.Contains(failed[0], `plugin type="portmap" failed (add): portmap is out of sorts; it passes`) {
					t.Errorf("failed tries: %q", failed)
				}
				must(t, "remove", goCNI(h, "remove", c, 0))
				mustBeGone(t, h, "after remove")
			})
		})
	}
}

// Nomad gives up after a try that fails in the same way for ever, and cleans up without a result.
func TestStandIn_portmapFails(t *testing.T) {
	eachSet(t, func(t *testing.T, h *rig.Host) {
		nomadHost(t, h, "v2")
		ok(t, h.Shim("portmap", `[ "$CNI_COMMAND" != ADD ] || exit 1`))
		ok(t, h.StandIns("bridge", "firewall", "portmap"))
		c := newContainer(t, h)
		if run := goCNI(h, "setup", c, 3); run.OK() {
			t.Fatal("it succeeded")
		} else if strings.Contains(run.Stdout, "veth") {
			t.Errorf("a try met what an earlier one had left: %s", run.Stdout)
		}
		must(t, "remove", goCNI(h, "remove", c, 0))
		mustBeGone(t, h, "after remove")
	})
}

// A second setup of a live allocation fails as it does bare, and touches nothing, with the record and without it.
func TestStandIn_live(t *testing.T) {
	eachSet(t, func(t *testing.T, h *rig.Host) {
		nomadHost(t, h, "v2")
		ok(t, h.StandIns("bridge", "firewall", "portmap"))
		c := newContainer(t, h)
		must(t, "setup", goCNI(h, "setup", c, 1))
		before, beforeIn := stateOf(t, h), inside(t, h, c)
		for _, when := range []string{"with a record", "without a record"} {
			if run := goCNI(h, "setup", c, 1); run.OK() || !strings.Contains(run.Stdout+run.Stderr, "already exists") {
				t.Errorf("the second setup %s: %v", when, run)
			}
			after := stateOf(t, h)
			if a, b := strings.Join(before.Rules, "\n"), strings.Join(after.Rules, "\n"); a != b {
				t.Errorf("the second setup %s changed the rules from\n%s\nto\n%s", when, a, b)
			}
			if now := inside(t, h, c); now != beforeIn {
				t.Errorf("the second setup %s changed the container from\n%s\nto\n%s", when, beforeIn, now)
			}
			ok(t, h.RemoveRecords())
		}
		must(t, "remove", goCNI(h, "remove", c, 0))
		mustBeGone(t, h, "after remove")
	})
}

// Half the allocations in a network of stand-ins, half in one whose list is wrapped, at once: they share the lock.
func TestStandIn_mixed(t *testing.T) {
	eachSet(t, func(t *testing.T, h *rig.Host) {
		nomadHost(t, h, "v2")
		ok(t, h.StandIns("bridge", "firewall", "portmap"))
		standIns := h.ListFile()
		wrapped := filepath.Join(h.Dir, "wrapped.conflist")
		second := h.Bridge("172.27.0.0/20").With("bridge", "lw1")
		ok(t, h.WriteList(wrapped, "second", second, rig.Firewall(), rig.Portmap()))
		must(t, "wrap", h.Cmd(exec.Command(rig.Bin("lockwrap"), "wrap", wrapped)))

		all := newContainers(t, h, 12)
		lists := map[*rig.Container]string{}
		for i, c := range all {
			lists[c] = []string{standIns, wrapped}[i%2]
		}
		for _, verb := range []string{"setup", "remove"} {
			runs, _ := rig.All(all, func(c *rig.Container) rig.Run { return goCNIList(h, lists[c], verb, c, 3) })
			for i, run := range runs {
				if !run.OK() || run.Stdout != "" {
					t.Errorf("%s %d: %v\n%s", verb, i, run, run.Stdout)
				}
			}
			if twice := stateOf(t, h).Duplicates(); len(twice) > 0 {
				t.Errorf("after %s duplicated: %q", verb, twice)
			}
		}
		mustBeGone(t, h, "after remove of all")
	})
}
