// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockwrap/lockwrap/test/rig"
)

// failFirstADD makes portmap fail its first ADD with an error of its own.
const failFirstADD = `
if [ "$CNI_COMMAND" = ADD ] && ! [ -e "$dir/failed" ]; then
	: >"$dir/failed"
	echo '{"cniVersion":"0.4.0","code":142,"msg":"portmap is out of sorts","details":"it passes"}'
	exit 1
fi`

// failDEL makes a plugin fail DEL until a file is removed.
const failDEL = `
if [ "$CNI_COMMAND" = DEL ] && [ -e "$dir/fail-del" ]; then
	echo '{"cniVersion":"0.4.0","code":143,"msg":"DEL is out of order"}'
	exit 1
fi`

// nomad#6567: Nomad tries ADD three times with no DEL in between. The first try must fail in the plugin's own words
// and leave nothing, so that the second can succeed.
func TestSeed(t *testing.T) {
	eachHost(t, func(t *testing.T, h *rig.Host) {
		want := sharedRules(t, h, (*rig.Host).Dual)
		ok(t, h.Wrapped(h.Dual()...))
		ok(t, h.Shim("portmap", failFirstADD))
		c := newContainer(t, h)

		failsWithPortmapsError(t, h.Direct("ADD", c))
		mustBeClean(t, h, c, "after the first ADD")
		must(t, "the second ADD", h.Add(c))
		must(t, "DEL", h.Del(c))
		mustBeGone(t, h, "after DEL")
		if diff := cmp.Diff(want, stateOf(t, h).SharedRules()); diff != "" {
			t.Errorf("shared rules (-want +got):\n%s", diff)
		}
	})
}

// Here portmap itself fails, half-way, by an iptables that fails once.
func TestSeed_iptablesFailsOnce(t *testing.T) {
	eachSet(t, func(t *testing.T, h *rig.Host) {
		ok(t, h.IPTables(`
case "$caller $*" in "portmap "*-A*CNI-DN-*)
	if ! [ -e "$dir/failed" ]; then
		: >"$dir/failed"
		echo "iptables: Resource temporarily unavailable." >&2
		exit 4
	fi
esac`))
		ok(t, h.Wrapped(h.Dual()...))
		c := newContainer(t, h)

		run := h.Add(c)
		if text := run.String(); run.OK() || !strings.Contains(text, `plugin type="portmap" failed (add)`) ||
			!strings.Contains(text, "exit status 4: iptables: Resource temporarily unavailable") {
			t.Errorf("the first ADD: %s", text)
		}
		mustBeClean(t, h, c, "after the first ADD")
		must(t, "the second ADD", h.Add(c))
		must(t, "DEL", h.Del(c))
		mustBeGone(t, h, "after DEL")
	})
}

// The runtime may also give up: its DEL has no prevResult then, which firewall v0.8.2 answers with an error.
func TestSeed_thenDEL(t *testing.T) {
	eachSet(t, func(t *testing.T, h *rig.Host) {
		ok(t, h.Wrapped(h.Dual()...))
		ok(t, h.Shim("portmap", failFirstADD))
		c := newContainer(t, h)
		if run := h.Add(c); run.OK() {
			t.Fatal("the first ADD succeeded")
		}
		must(t, "DEL", h.Del(c))
		mustBeGone(t, h, "after DEL")
	})
}

// A DEL that fails during the undo: the rest is undone all the same, the first error is the one reported, and what
// could not be undone is so by the next ADD or DEL.
func TestSeed_undoFails(t *testing.T) {
	for _, plugin := range []string{"bridge", "firewall", "portmap"} {
		for _, next := range []string{"ADD", "DEL"} {
			t.Run(plugin+"/"+next, func(t *testing.T) {
				eachSet(t, func(t *testing.T, h *rig.Host) {
					ok(t, h.Wrapped(h.Usual()...))
					failing := filepath.Join(h.Dir, "fail-del")
					ok(t, os.WriteFile(failing, nil, 0o600))
					ok(t, h.Shim(plugin, failDEL))
					portmap := failFirstADD
					if plugin == "portmap" {
						portmap += failDEL
					}
					ok(t, h.Shim("portmap", portmap))
					c := newContainer(t, h)

					e := failsWithPortmapsError(t, h.Direct("ADD", c))
					if !strings.Contains(e.Details, "DEL is out of order") || !strings.Contains(e.Details, plugin) {
						t.Errorf("details do not say that %s could not be undone: %q", plugin, e.Details)
					}
					if plugin != "bridge" {
						// Bridge was undone, whatever the others did.
						if s := stateOf(t, h); len(s.Links)+len(s.Addresses) > 0 {
							t.Errorf("left: %q, %q", s.Links, s.Addresses)
						}
					}
					ok(t, os.Remove(failing))
					if next == "ADD" {
						must(t, "the second ADD", h.Add(c))
					}
					must(t, "DEL", h.Del(c))
					mustBeGone(t, h, "after DEL")
				})
			})
		}
	}
}

func failsWithPortmapsError(t *testing.T, run rig.Run) *rig.CNIError {
	t.Helper()
	if run.OK() {
		t.Fatal("ADD succeeded though portmap failed")
	}
	e, err := run.CNIError()
	ok(t, err)
	if want := `plugin type="portmap" failed (add): portmap is out of sorts`; e.Code != 142 || e.Msg != want {
		t.Errorf("got error %d %q, want 142 %q", e.Code, e.Msg, want)
	}
	if !strings.Contains(e.Details, "it passes") {
		t.Errorf("details lack portmap's own: %q", e.Details)
	}
	return e
}
