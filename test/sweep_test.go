// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lockwrap/lockwrap/test/rig"
)

// sweepFault counts the iptables calls of the delegate that finds it in its PATH, or only those of one family ($COUNT),
// and breaks call number $AT as $KIND says.
const sweepFault = `
case ${0##*/} in $COUNT)
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
esac`

// A sweep is one delegate of a list, one kind of fault, and a host to try it on at every call.
type sweep struct {
	target, kind string
	h            *rig.Host
	c            *rig.Container
	env          []string
}

// A sweepList is a list and how it is swept.
type sweepList struct {
	set   rig.Set
	dual  bool   // with IPv6 too, where each point takes twice the time
	count string // the calls that count
	kinds []string
}

var (
	allKinds = []string{"fail", "kill-before", "kill-after"}
	// Before one call is after the one before it, but for the first.
	someKinds = []string{"fail", "kill-after"}

	// In IPv6 the plugins do what they have just done in IPv4, so by default it is swept with one kind of fault.
	addSweeps = []sweepList{
		{rig.Old, false, "*", someKinds}, {rig.New, false, "*", someKinds}, {rig.New, true, "ip6tables", someKinds[1:]},
	}
	delSweeps = []sweepList{{rig.Old, false, "*", someKinds[:1]}, {rig.New, false, "*", someKinds}}
	// SWEEP=full makes TestSweep_ADD and TestSweep_DEL take these.
	fullSweeps = []sweepList{{rig.Old, true, "*", allKinds}, {rig.New, true, "*", allKinds}}
)

// Every iptables call that a delegate makes during ADD is made to fail, and the delegate is killed before and after
// it. Whatever happens, a failed ADD leaves nothing, and the next one is not in its way: it gets as far as the next
// call, and the last one succeeds.
func TestSweep_ADD(t *testing.T) {
	eachSweep(t, addSweeps, func(t *testing.T, s *sweep, at int) (calls int) {
		h, c := s.h, s.c
		ok(t, h.Flush())
		run := h.Tool("add", c, s.at(t, at)...)
		calls = s.calls(t)
		if !run.OK() {
			mustBeClean(t, h, c, "after the failed ADD")
			if want := fmt.Sprintf("plugin type=%q failed (add)", s.target); !strings.Contains(run.String(), want) || calls < at {
				t.Errorf("ADD failed for another reason: %v", run)
			}
			return calls
		}
		if run := h.Tool("del", c, s.at(t, 0)...); !run.OK() {
			t.Errorf("DEL: %v", run)
		}
		mustBeGone(t, h, "after DEL")
		return calls
	})
}

// The same during a DEL for which the runtime has neither the result of the ADD nor the host ports. It may fail if
// it says so; once it has succeeded nothing is left.
func TestSweep_DEL(t *testing.T) {
	eachSweep(t, delSweeps, func(t *testing.T, s *sweep, at int) int {
		h, c := s.h, s.c
		if run := h.Tool("add", c, s.at(t, 0)...); !run.OK() {
			t.Fatalf("ADD: %v", run)
		}
		ok(t, h.Forget(c))
		run := h.Tool("del", c, append(s.at(t, at), "CAP_ARGS=")...)
		calls := s.calls(t)
		if !run.OK() {
			if run := h.Tool("del", c, append(s.at(t, 0), "CAP_ARGS=")...); !run.OK() {
				t.Errorf("the next DEL: %v", run)
			}
		}
		if s.target != "bridge" && s.kind == "fail" {
			// On DEL firewall ignores what iptables says, and portmap takes a family as one that it cannot have: both
			// report success and leave their rules.
			ok(t, h.Flush())
		}
		mustBeGone(t, h, "after DEL")
		return calls
	})
}

// eachSweep calls one for call 1, 2, ... of every delegate until it made fewer calls than that.
func eachSweep(t *testing.T, lists []sweepList, one func(t *testing.T, s *sweep, at int) (calls int)) {
	if os.Getenv("SWEEP") == "full" {
		lists = fullSweeps
	}
	var points atomic.Int64
	t.Run("points", func(t *testing.T) {
		for _, list := range lists {
			for _, target := range []string{"bridge", "firewall", "portmap"} {
				for _, kind := range list.kinds {
					family := "IPv4"
					if list.dual {
						family = "dual stack"
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%s", list.set.Name, family, target, kind), func(t *testing.T) {
						t.Parallel()
						s := newSweep(t, list, target, kind)
						for at := 1; one(t, s, at) >= at; at++ {
							if t.Failed() {
								t.Fatalf("that was call %d of %s, %s", at, target, kind)
							}
							points.Add(1)
						}
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

func newSweep(t *testing.T, list sweepList, target, kind string) *sweep {
	t.Helper()
	h := newHost(t, list.set, rig.NFT)
	// Only this delegate gets it: it makes every call slower by half.
	ok(t, h.IPTablesFor(target, sweepFault))
	plugins := h.Usual()
	if list.dual {
		plugins = h.Dual()
	}
	ok(t, h.Wrapped(plugins...))
	c := newContainer(t, h)
	c.Ports = `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`
	return &sweep{target, kind, h, c, []string{"KIND=" + kind, "COUNT=" + list.count}}
}

// at is the environment that breaks that call, 0 for none.
func (s *sweep) at(t *testing.T, at int) []string {
	t.Helper()
	ok(t, os.WriteFile(s.file(), []byte("0\n"), 0o600))
	return append(slices.Clone(s.env), "AT="+strconv.Itoa(at))
}

// calls is how many calls that counted were made since.
func (s *sweep) calls(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile(s.file())
	ok(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	ok(t, err)
	return n
}

func (s *sweep) file() string { return filepath.Join(s.h.Dir, "calls") }
