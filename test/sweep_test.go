// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lockwrap/lockwrap/test/rig"
)

// sweepFault counts the iptables calls of one delegate ($TARGET) and breaks call number $AT as $KIND says. Without
// $TARGET it only passes the call on.
const sweepFault = `
if [ -n "$TARGET" ] && [ "$caller" = "$TARGET" ]; then
	read -r n <"$dir/calls"
	n=$((n+1))
	echo $n >"$dir/calls"
	if [ $n = $AT ]; then
		case $KIND in
		fail) echo "iptables: made to fail." >&2; exit 4 ;;
		kill-before) kill -9 $PPID; exit 1 ;;
		kill-after) "$real" "$@"; kill -9 $PPID; exit ;;
		esac
	fi
fi`

// A fault is one broken call.
type fault struct {
	target, kind string
	at           int
}

func (f fault) env() []string {
	return []string{"TARGET=" + f.target, "KIND=" + f.kind, "AT=" + strconv.Itoa(f.at)}
}

var (
	faultKinds   = []string{"fail", "kill-before", "kill-after"}
	sweptPlugins = []string{"bridge", "firewall", "portmap"}
)

// Every iptables call that a delegate makes during ADD is made to fail, and the delegate is killed before and after
// it. Whatever happens, a failed ADD leaves nothing, and the next one succeeds.
func TestSweep_ADD(t *testing.T) {
	sweep(t, func(t *testing.T, h *rig.Host, c *rig.Container, f fault) int {
		if run := h.Tool("add", c, f.env()...); !run.OK() {
			mustBeClean(t, h, c, "after the failed ADD")
			if run := h.Add(c); !run.OK() {
				t.Errorf("the next ADD: %v", run)
			}
		}
		calls := callsMade(t, h)
		if run := h.Del(c); !run.OK() {
			t.Errorf("DEL: %v", run)
		}
		mustBeGone(t, h, "after DEL")
		return calls
	})
}

// The same during a DEL for which the runtime has neither the result of the ADD nor the host ports. It may fail if
// it says so; once it has succeeded nothing is left.
func TestSweep_DEL(t *testing.T) {
	sweep(t, func(t *testing.T, h *rig.Host, c *rig.Container, f fault) int {
		if run := h.Add(c); !run.OK() {
			t.Errorf("ADD: %v", run)
		}
		ok(t, h.Forget(c))
		env := append(f.env(), "CAP_ARGS=")
		run := h.Tool("del", c, env...)
		calls := callsMade(t, h)
		if !run.OK() {
			if run := h.Tool("del", c, "CAP_ARGS="); !run.OK() {
				t.Errorf("the next DEL: %v", run)
			}
		}
		mustBeGone(t, h, "after DEL")
		return calls
	})
}

// sweep calls one for every fault point, on a cold host each, until one made fewer calls than the point's number.
func sweep(t *testing.T, one func(*testing.T, *rig.Host, *rig.Container, fault) int) {
	var points, hit atomic.Int64
	t.Run("points", func(t *testing.T) {
		for _, set := range rig.Sets {
			for _, target := range sweptPlugins {
				for _, kind := range faultKinds {
					t.Run(fmt.Sprintf("%s/%s/%s", set.Name, target, kind), func(t *testing.T) {
						t.Parallel()
						for at, calls := 1, 1; calls >= at && !t.Failed(); at++ {
							calls = sweepPoint(t, set, fault{target, kind, at}, one)
							if points.Add(1); calls >= at {
								hit.Add(1)
							}
						}
					})
				}
			}
		}
	})
	if hit.Load() == 0 && !t.Skipped() {
		t.Error("no iptables call was broken")
	}
	t.Logf("%d fault points", hit.Load())
}

func sweepPoint(t *testing.T, set rig.Set, f fault, one func(*testing.T, *rig.Host, *rig.Container, fault) int) int {
	t.Helper()
	h := newHost(t, set, rig.NFT)
	defer h.Close()
	ok(t, h.IPTables(sweepFault))
	ok(t, h.Wrapped(h.Dual()...))
	ok(t, os.WriteFile(filepath.Join(h.Dir, "calls"), []byte("0\n"), 0o600))
	calls := one(t, h, newContainer(t, h), f)
	if t.Failed() {
		t.Errorf("that was call %d of %s, %s", f.at, f.target, f.kind)
	}
	return calls
}

func callsMade(t *testing.T, h *rig.Host) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.Dir, "calls"))
	ok(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	ok(t, err)
	return n
}
