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

// sweepFault counts the iptables calls of one delegate ($TARGET) and breaks call number $AT as $KIND says.
const sweepFault = `
if [ "$caller" = "$TARGET" ]; then
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

var sweptPlugins = []string{"bridge", "firewall", "portmap"}

// A sweepList is a list and how it is swept.
type sweepList struct {
	set   rig.Set
	dual  bool // with IPv6 too, which doubles both the points and the time of each
	kinds []string
}

// sweepLists are swept by default: every call of both plugin sets in IPv4 with every kind of fault but one, which the
// newest set gets with two families. SWEEP=full takes every kind for both sets with two families, in half an hour.
func sweepLists() []sweepList {
	all := []string{"fail", "kill-before", "kill-after"}
	if os.Getenv("SWEEP") == "full" {
		return []sweepList{{rig.Old, true, all}, {rig.New, true, all}}
	}
	return []sweepList{{rig.Old, false, all}, {rig.New, false, all[:2]}, {rig.New, true, all[2:]}}
}

// Every iptables call that a delegate makes during ADD is made to fail, and the delegate is killed before and after
// it. Whatever happens, a failed ADD leaves nothing, and the next one succeeds.
func TestSweep_ADD(t *testing.T) {
	sweep(t, func(t *testing.T, h *rig.Host, c *rig.Container, f fault) int {
		plain := h.WithoutIPTables()
		run := h.Tool("add", c, f.env()...)
		calls := callsMade(t, h)
		if !run.OK() {
			mustBeClean(t, h, c, "after the failed ADD")
			if run := h.Tool("add", c, plain); !run.OK() {
				t.Errorf("the next ADD: %v", run)
			}
		}
		if run := h.Tool("del", c, plain); !run.OK() {
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
		plain := h.WithoutIPTables()
		if run := h.Tool("add", c, plain); !run.OK() {
			t.Errorf("ADD: %v", run)
		}
		ok(t, h.Forget(c))
		run := h.Tool("del", c, append(f.env(), "CAP_ARGS=")...)
		calls := callsMade(t, h)
		if !run.OK() {
			if run := h.Tool("del", c, plain, "CAP_ARGS="); !run.OK() {
				t.Errorf("the next DEL: %v", run)
			}
		}
		mustBeGone(t, h, "after DEL")
		return calls
	})
}

// sweep calls one for every fault point, on a cold host each, until it made fewer calls than the point's number.
func sweep(t *testing.T, one func(*testing.T, *rig.Host, *rig.Container, fault) int) {
	var points atomic.Int64
	t.Run("points", func(t *testing.T) {
		for _, list := range sweepLists() {
			for _, target := range sweptPlugins {
				for _, kind := range list.kinds {
					name := fmt.Sprintf("%s/%s/%s", list.set.Name, target, kind)
					if list.dual {
						name += "/dual stack"
					}
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						at := 1
						for !t.Failed() && sweepPoint(t, list, fault{target, kind, at}, one) >= at {
							at++
						}
						points.Add(int64(at - 1))
					})
				}
			}
		}
	})
	if points.Load() == 0 && os.Geteuid() == 0 {
		t.Error("no iptables call was broken")
	}
	fmt.Printf("%s: %d fault points\n", t.Name(), points.Load())
}

func sweepPoint(t *testing.T, list sweepList, f fault, one func(*testing.T, *rig.Host, *rig.Container, fault) int) int {
	t.Helper()
	h := newHost(t, list.set, rig.NFT)
	defer h.Close()
	ok(t, h.IPTables(sweepFault))
	plugins := h.Usual()
	if list.dual {
		plugins = h.Dual()
	}
	ok(t, h.Wrapped(plugins...))
	ok(t, os.WriteFile(filepath.Join(h.Dir, "calls"), []byte("0\n"), 0o600))
	c := newContainer(t, h)
	c.Ports = `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`
	calls := one(t, h, c, f)
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
