// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lockwrap/lockwrap/test/rig"
)

// A second ADD of a live attachment fails as it does on the bare list and leaves the container alone, whether or not
// lockwrap remembers it.
func TestLive_secondADD(t *testing.T) {
	bare := func(t *testing.T, like *rig.Host) string {
		h := newHost(t, like.Set, like.Backend)
		ok(t, h.Bare(h.Dual()...))
		c := newContainer(t, h)
		must(t, "ADD, bare", h.Add(c))
		run := h.Add(c)
		if run.OK() {
			t.Fatal("the second ADD succeeded on the bare list")
		}
		return generalized(run, c)
	}
	eachSet(t, func(t *testing.T, h *rig.Host) {
		want := `plugin type="lockwrap" failed (add): ` + bare(t, h)
		ok(t, h.Wrapped(h.Dual()...))
		c := newContainer(t, h)
		must(t, "ADD", h.Add(c))
		before, beforeIn := stateOf(t, h), inside(t, h, c)

		for _, when := range []string{"with a record", "without a record"} {
			run := h.Add(c)
			if diff := cmp.Diff(want, generalized(run, c)); diff != "" {
				t.Errorf("error of the second ADD %s (-bare +wrapped):\n%s", when, diff)
			}
			after := stateOf(t, h)
			before.Records, after.Records = nil, nil
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("the second ADD %s changed the host (-before +after):\n%s", when, diff)
			}
			if diff := cmp.Diff(beforeIn, inside(t, h, c)); diff != "" {
				t.Errorf("the second ADD %s changed the container (-before +after):\n%s", when, diff)
			}
			ok(t, h.RemoveRecords())
		}
		must(t, "DEL", h.Del(c))
		mustBeGone(t, h, "after DEL")
	})
}

var veth = regexp.MustCompile(`veth[0-9a-f]{8}`)

// generalized is an error without what differs from container to container.
func generalized(run rig.Run, c *rig.Container) string {
	return veth.ReplaceAllString(strings.ReplaceAll(strings.TrimSpace(run.Stderr), c.ID, "ID"), "vethN")
}

// inside is what a container has: links, addresses, routes.
func inside(t *testing.T, h *rig.Host, c *rig.Container) string {
	t.Helper()
	var all []string
	for _, args := range []string{"-o addr", "-4 route", "-6 route"} {
		run := h.In(c, "ip", strings.Fields(args)...)
		must(t, "ip "+args, run)
		all = append(all, run.Stdout)
	}
	return strings.Join(all, "\n")
}

// nomad#15763, nerdctl#3355: the runtime makes the namespace anew without DEL, and the address is still reserved for
// this container.
func TestLive_netnsReplaced(t *testing.T) {
	eachSet(t, func(t *testing.T, h *rig.Host) {
		ok(t, h.Wrapped(h.Dual()...))
		c := newContainer(t, h)
		must(t, "ADD", h.Add(c))
		ok(t, h.Replace(c))
		must(t, "ADD in the new namespace", h.Add(c))
		s := stateOf(t, h)
		if len(s.Addresses) != 2 || len(s.Links) != 1 || len(s.Records) != 1 {
			t.Errorf("after the second ADD: addresses %q, links %q, records %q", s.Addresses, s.Links, s.Records)
		}
		must(t, "DEL", h.Del(c))
		mustBeGone(t, h, "after DEL")
	})
}

// R40: no verb depends on a record, and DEL may come at any time in any shape.
func TestLive_DEL(t *testing.T) {
	for _, tt := range []struct {
		name string
		del  func(*rig.Host, *rig.Container) rig.Run
	}{
		{"repeated", func(h *rig.Host, c *rig.Container) rig.Run { h.Del(c); return h.Del(c) }},
		{"without record", func(h *rig.Host, c *rig.Container) rig.Run { h.RemoveRecords(); return h.Del(c) }},
		{"without result", func(h *rig.Host, c *rig.Container) rig.Run {
			h.Forget(c)
			return h.Tool("del", c, "CAP_ARGS=")
		}},
		{"empty CNI_NETNS", func(h *rig.Host, c *rig.Container) rig.Run { return h.Direct("DEL", c, "CNI_NETNS=") }},
		{"no CNI_NETNS, namespace gone", func(h *rig.Host, c *rig.Container) rig.Run {
			h.Remove(c)
			return h.Direct("DEL", c, "CNI_NETNS=")
		}},
		{"namespace gone", func(h *rig.Host, c *rig.Container) rig.Run { h.Remove(c); return h.Del(c) }},
		{"garbled record", func(h *rig.Host, c *rig.Container) rig.Run {
			for _, path := range h.Records() {
				os.WriteFile(path, []byte(`{"state":`), 0o600)
			}
			return h.Del(c)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, rig.New, rig.NFT)
			ok(t, h.Wrapped(h.Dual()...))
			c := newContainer(t, h)
			must(t, "ADD", h.Add(c))
			must(t, "DEL", tt.del(h, c))
			mustBeGone(t, h, "after DEL")
		})
	}
}

func TestLive_DELneverAdded(t *testing.T) {
	h := newHost(t, rig.New, rig.NFT)
	ok(t, h.Wrapped(h.Dual()...))
	c := newContainer(t, h)
	must(t, "DEL", h.Del(c))
	must(t, "DEL with an empty CNI_NETNS", h.Direct("DEL", c, "CNI_NETNS="))
	ok(t, h.Remove(c))
	must(t, "DEL without a namespace", h.Del(c))
	mustBeGone(t, h, "after all")
}

// lockwrap is killed while a delegate runs: before, in the middle of and after its work. The delegate dies with it,
// and the next ADD or DEL of that attachment puts everything right.
func TestLive_killed(t *testing.T) {
	const hang = `if [ "$CNI_COMMAND" = ADD ] && [ -e "$dir/hang" ]; then
	%s
	echo $PPID >"$dir/hangs.new"
	mv "$dir/hangs.new" "$dir/hangs"
	exec sleep 60
fi`
	for _, plugin := range []string{"bridge", "firewall", "portmap"} {
		for _, when := range []string{"before", "after"} {
			for _, next := range []string{"ADD", "DEL"} {
				t.Run(fmt.Sprintf("%s %s, %s", when, plugin, next), func(t *testing.T) {
					t.Parallel()
					h := newHost(t, rig.New, rig.NFT)
					ok(t, h.Wrapped(h.Usual()...))
					work := ":"
					if when == "after" {
						work = `"$real" "$@" >/dev/null`
					}
					ok(t, os.WriteFile(filepath.Join(h.Dir, "hang"), nil, 0o600))
					ok(t, h.Shim(plugin, fmt.Sprintf(hang, work)))
					c := newContainer(t, h)

					add := make(chan rig.Run, 1)
					go func() { add <- h.Add(c) }()
					ok(t, syscall.Kill(awaitPID(t, filepath.Join(h.Dir, "hangs")), syscall.SIGKILL))
					select {
					case run := <-add:
						if run.OK() {
							t.Fatal("ADD succeeded though lockwrap was killed")
						}
					case <-time.After(20 * time.Second):
						t.Fatal("ADD still runs though lockwrap was killed")
					}
					ok(t, os.Remove(filepath.Join(h.Dir, "hang")))

					if next == "ADD" {
						must(t, "the next ADD", h.Add(c))
					}
					must(t, "DEL", h.Del(c))
					mustBeGone(t, h, "after DEL")
				})
			}
		}
	}
}

func awaitPID(t *testing.T, path string) int {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if data, err := os.ReadFile(path); err == nil {
			pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
			ok(t, err)
			return pid
		}
	}
	t.Fatalf("%s did not appear", path)
	return 0
}

// plugins#512: firewalld and operators flush tables while containers live.
func TestLive_tablesFlushed(t *testing.T) {
	eachHost(t, func(t *testing.T, h *rig.Host) {
		want := sharedRules(t, h, (*rig.Host).Usual)
		ok(t, h.Wrapped(h.Usual()...))
		first, second := newContainer(t, h), newContainer(t, h)
		must(t, "the first ADD", h.Add(first))
		ok(t, h.Flush())
		must(t, "the second ADD", h.Add(second))
		if diff := cmp.Diff(want, stateOf(t, h).SharedRules()); diff != "" {
			t.Errorf("shared rules (-want +got):\n%s", diff)
		}
		if run := h.Check(first); run.OK() {
			t.Error("CHECK of the first container succeeded without its rules")
		}
		must(t, "CHECK of the second", h.Check(second))
		must(t, "DEL of the first", h.Del(first))
		must(t, "DEL of the second", h.Del(second))
		mustBeGone(t, h, "after DEL of both")
	})
}

// Containers that started before lockwrap was swapped in are deleted under it, and the other way round.
func TestLive_swapped(t *testing.T) {
	eachSet(t, func(t *testing.T, h *rig.Host) {
		before, after := newContainer(t, h), newContainer(t, h)
		ok(t, h.Bare(h.Dual()...))
		must(t, "ADD, bare", h.Add(before))
		ok(t, h.Wrapped(h.Dual()...))
		must(t, "ADD, wrapped", h.Add(after))
		must(t, "DEL, wrapped", h.Del(before))
		ok(t, h.Bare(h.Dual()...))
		must(t, "DEL, bare", h.Del(after))
		if err := stateOf(t, h).Clean(); err != nil {
			t.Error(err)
		}
	})
}
