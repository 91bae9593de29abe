// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/lockwrap/lockwrap/test/rig"
)

// goCNI runs the helper on the host: go-cni attaches networks in goroutines of its own, so a whole process has to be
// in the host's namespace.
func goCNI(h *rig.Host, verb string, c *rig.Container, tries int) rig.Run {
	return goCNIList(h, h.ListFile(), verb, c, tries)
}

func goCNIList(h *rig.Host, list, verb string, c *rig.Container, tries int) rig.Run {
	self, err := os.Executable()
	if err != nil {
		return rig.Run{Err: err}
	}
	cmd := exec.Command(self, verb, c.ID, c.NetNS, strconv.Itoa(tries))
	cmd.Env = h.Environ(helperEnv+"=gocni", "LIST="+list, "CAP_ARGS="+c.Ports)
	return h.Cmd(cmd)
}

// Nomad's three tries: the first fails in portmap's words, the second succeeds.
func TestGoCNI_retry(t *testing.T) {
	eachSet(t, func(t *testing.T, h *rig.Host) {
		ok(t, h.Wrapped(h.Usual()...))
		ok(t, h.Shim("portmap", failFirstADD))
		c := newContainer(t, h)

		run := goCNI(h, "setup", c, 3)
		must(t, "three tries", run)
		failed := strings.Split(strings.TrimSpace(run.Stdout), "\n")
		if len(failed) != 1 || !strings.Contains(failed[0], `plugin type="portmap" failed (add): portmap is out of sorts`) {
			t.Errorf("failed tries: %q", failed)
		}
		must(t, "remove", goCNI(h, "remove", c, 0))
		mustBeGone(t, h, "after remove")
	})
}

// On the bare list the retry can't work: eth0 is there from the first try. And then the old firewall fails the
// clean-up.
func TestGoCNI_retryBare(t *testing.T) {
	eachSet(t, func(t *testing.T, h *rig.Host) {
		ok(t, h.Bare(h.Usual()...))
		ok(t, h.Shim("portmap", failFirstADD))
		c := newContainer(t, h)

		run := goCNI(h, "setup", c, 3)
		if run.OK() {
			t.Error("the retry succeeded; lockwrap is not needed any more")
		}
		goCNI(h, "remove", c, 0)
		if err := stateOf(t, h).Clean(); err == nil {
			t.Error("nothing was left; lockwrap is not needed any more")
		}
	})
}

// The runtime's memory may be gone: no cached result, no labels.
func TestGoCNI_removeWithoutCache(t *testing.T) {
	eachSet(t, func(t *testing.T, h *rig.Host) {
		ok(t, h.Wrapped(h.Dual()...))
		c := newContainer(t, h)
		must(t, "setup", goCNI(h, "setup", c, 1))
		ok(t, h.Forget(c))
		must(t, "remove", goCNI(h, "remove", c, 0))
		mustBeGone(t, h, "after remove")
	})
}

func TestGoCNI_atOnce(t *testing.T) {
	eachSet(t, func(t *testing.T, h *rig.Host) {
		ok(t, h.Wrapped(h.Usual()...))
		containers := newContainers(t, h, 8)
		for _, verb := range []string{"setup", "remove"} {
			runs, _ := rig.All(containers, func(c *rig.Container) rig.Run { return goCNI(h, verb, c, 1) })
			for i, run := range runs {
				if !run.OK() {
					t.Errorf("%s %d: %v", verb, i, run)
				}
			}
			if twice := stateOf(t, h).Duplicates(); len(twice) > 0 {
				t.Errorf("after %s duplicated: %q", verb, twice)
			}
		}
		mustBeGone(t, h, "after remove of all")
	})
}
