// SPDX-License-Identifier: Apache-2.0

package test

import (
	"strings"
	"testing"

	"github.com/lockwrap/lockwrap/test/rig"
)

// Every protocol version with the verbs it has, through cnitool.
func TestVerbs(t *testing.T) {
	for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, rig.New, rig.NFT)
			h.Version = version
			plugins := h.Dual()
			if version < "0.4.0" {
				// The firewall plugin is not for lists that old.
				plugins = []rig.Plugin{plugins[0], plugins[2]}
			}
			ok(t, h.Wrapped(plugins...))
			c := newContainer(t, h)

			must(t, "STATUS", h.Tool("status", c))
			run := h.Add(c)
			must(t, "ADD", run)
			if want := `"cniVersion": "` + version + `"`; !strings.Contains(run.Stdout, want) {
				t.Errorf("the result lacks %s: %s", want, run.Stdout)
			}
			if version >= "0.4.0" {
				must(t, "CHECK", h.Check(c))
				must(t, "delete a route", h.In(c, "ip", "route", "del", "default"))
				if run := h.Check(c); run.OK() {
					t.Error("CHECK of a container without its route succeeded")
				}
			}
			must(t, "DEL", h.Del(c))
			mustBeGone(t, h, "after DEL")
			must(t, "DEL again", h.Del(c))
			must(t, "GC", h.Tool("gc", c))
		})
	}
}

// cnitool's GC names no valid attachment, so libcni deletes all.
func TestVerbs_GC(t *testing.T) {
	h := newHost(t, rig.New, rig.NFT)
	h.Version = "1.1.0"
	ok(t, h.Wrapped(h.Dual()...))
	containers := newContainers(t, h, 3)
	for _, c := range containers {
		must(t, "ADD", h.Add(c))
	}
	must(t, "GC", h.Tool("gc", containers[0]))
	mustBeGone(t, h, "after GC")
}

// What a version does not have is refused as other plugins refuse it.
func TestVerbs_refused(t *testing.T) {
	h := newHost(t, rig.New, rig.NFT)
	for _, tt := range []struct{ verb, version string }{
		{"CHECK", "0.3.1"}, {"GC", "1.0.0"}, {"STATUS", "1.0.0"},
	} {
		h.Version = tt.version
		ok(t, h.Wrapped(h.Usual()...))
		run := h.Direct(tt.verb, newContainer(t, h))
		e, err := run.CNIError()
		ok(t, err)
		if want := "config version does not allow " + tt.verb; run.OK() || e.Code != 1 || e.Msg != want {
			t.Errorf("got %d %q, want 1 %q", e.Code, e.Msg, want)
		}
	}
}
