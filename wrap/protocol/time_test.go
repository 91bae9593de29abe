// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// stopped waits until a process is in state T.
func stopped(t *testing.T, pid int) {
	t.Helper()
	eventually(t, "it is stopped", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, _ := strings.Cut(string(b), ") ")
		return err == nil && strings.HasPrefix(rest, "T")
	})
}

// free demands that the lock is: the next attachment is not kept waiting.
func (h *host) free(conf string) {
	h.t.Helper()
	a := h.call(call{verb: "ADD", id: "next", conf: conf}).ok(h.t)
	if a.took > 10*time.Second {
		h.t.Errorf("the next ADD took %v", a.took)
	}
}

// TestTime_holderStuck: whoever waits in vain is told by whom and why, and afterwards all goes on.
func TestTime_holderStuck(t *testing.T) {
	t.Parallel()
	for _, stop := range []bool{false, true} {
		t.Run(map[bool]string{false: "waits for its delegate", true: "stopped"}[stop], func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			holder := h.holdByLockwrap("917cdc42")
			if stop {
				holder.signal(syscall.SIGSTOP)
				stopped(t, holder.cmd.Process.Pid)
			}
			conf := h.conf("1.1.0", entry{"lockTimeout": "1s"}, entry{"type": "a"})
			for _, verb := range []string{"ADD", "DEL", "GC"} {
				a := h.call(call{verb: verb, conf: conf})
				e := a.failure(t)
				if e.Code != types.ErrTryAgainLater || a.took < time.Second || a.took > 10*time.Second {
					t.Errorf("%s: code %d after %v", verb, e.Code, a.took)
				}
				for _, want := range []string{fmt.Sprintf("pid %d ", holder.cmd.Process.Pid), "container 917cdc42", network} {
					if !strings.Contains(e.Msg, want) {
						t.Errorf("%s: %q is not in %s", verb, want, e.Msg)
					}
				}
				if strings.Contains(e.Msg, ", stopped)") != stop {
					t.Errorf("%s: is it stopped? %s", verb, e.Msg)
				}
			}
			if stop {
				holder.signal(syscall.SIGCONT)
			}
			h.letGo()
			holder.wait().ok(t)
			wantOrder(t, h.calls(), "ADD a")
			h.free(conf)
		})
	}
}

// TestTime_endedInTime: a delegate that ended while lockwrap was stopped has not timed out, whatever the clock says.
func TestTime_endedInTime(t *testing.T) {
	t.Parallel()
	// Which of the two lockwrap sees first when it goes on, the end or the timeout, is chance: several tries.
	var hosts []*host
	var holders []*running
	for range 6 {
		h := newHost(t, "a", "b")
		h.on("a", "ADD", "await "+strconv.Quote(filepath.Join(h.bin, "go")))
		conf := h.conf("1.0.0", entry{"pluginTimeout": "3s"}, entry{"type": "a"}, entry{"type": "b"})
		r := h.start(call{verb: "ADD", conf: conf})
		eventually(t, "a has its configuration", func() bool { c := h.peek(); return len(c) == 1 && c[0].Stdin != "" })
		r.signal(syscall.SIGSTOP)
		stopped(t, r.cmd.Process.Pid)
		h.letGo()
		eventually(t, "a has ended", func() bool { return h.peek()[0].End > 0 && !alive(h.peek()[0].Pid) })
		if c := h.peek()[0]; c.End-c.Start > 2.5e9 {
			t.Skip("a machine this slow can't tell")
		}
		hosts, holders = append(hosts, h), append(holders, r)
	}
	for i, h := range hosts {
		eventually(t, "the time is up", func() bool { return monotonic() > h.peek()[0].Start+3.5e9 })
		holders[i].signal(syscall.SIGCONT)
		holders[i].wait().ok(t)
		wantOrder(t, h.calls(), "ADD a, ADD b")
	}
}

// TestTime_delegates: whatever a delegate does, the caller has its answer in time, which names the culprit, and the next
// one is served at once.
func TestTime_delegates(t *testing.T) {
	t.Parallel()
	const limit = 1500 * time.Millisecond // pluginTimeout
	tests := []struct {
		name    string
		steps   []string
		ok      bool          // it counts as success
		expect  time.Duration // what it takes; ten times that is too long
		running string        // what the message must say it was running
		msg     string
	}{
		{name: "ignores SIGTERM", steps: []string{"ignore", "sleep 1m"}, expect: limit + 2*time.Second, msg: limit.String()},
		{name: "stops itself", steps: []string{"kill 19"}, expect: limit + 2*time.Second, msg: limit.String()},
		{
			name: "waits for a child that ignores SIGTERM", steps: []string{"ignore", "daemon hold group 10m", "sleep 1m"},
			expect: limit + 2*time.Second, running: `it was running "b daemon 10m"`, msg: limit.String(),
		},
		{
			name: "stops itself, the child runs", steps: []string{"child 10m", "kill 19"},
			expect: limit + 2*time.Second, running: "b child 10m\"", msg: limit.String(),
		},
		{name: "fails, child in group, pipes", steps: []string{"daemon hold group 10m", "exit 3"}, expect: 2 * time.Second, msg: "exit status 3"},
		{name: "fails, child in group", steps: []string{"daemon free group 10m", "exit 3"}, expect: time.Second, msg: "exit status 3"},
		{name: "fails, daemon, pipes", steps: []string{"daemon hold session 10m", "exit 3"}, expect: time.Second, msg: "exit status 3"},
		{name: "fails, daemon", steps: []string{"daemon free session 10m", "exit 3"}, expect: time.Second, msg: "exit status 3"},
		{name: "fails by its own words, child, pipes", steps: []string{"daemon hold group 10m", failure(123, "own words", "")}, expect: 2 * time.Second, msg: "own words"},
		{name: "killed, child in group, pipes", steps: []string{"daemon hold group 10m", "kill 9"}, expect: 2 * time.Second, msg: "signal: killed"},
		// The parent is what counts: the child is no plugin that runs too long.
		{name: "succeeds, child in group, pipes", steps: []string{"daemon hold group 10m"}, ok: true, expect: time.Second},
		{name: "succeeds, child in group", steps: []string{"daemon free group 10m"}, ok: true, expect: time.Second},
		{name: "succeeds, daemon, pipes", steps: []string{"daemon hold session 10m"}, ok: true, expect: time.Second},
		{name: "succeeds, daemon", steps: []string{"daemon free session 10m"}, ok: true, expect: time.Second},
		{name: "forks and ends unread", steps: []string{"noread", "daemon hold session 10m"}, ok: true, expect: time.Second},
	}
	for _, tt := range tests {
		for _, verb := range []string{"ADD", "DEL", "CHECK", "GC"} {
			if testing.Short() && verb != "ADD" && !strings.HasPrefix(tt.name, "stops") {
				continue
			}
			t.Run(tt.name+"/"+verb, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, "a", "b")
				h.on("b", verb, tt.steps...)
				conf := h.conf("1.1.0", entry{"pluginTimeout": limit.String()}, entry{"type": "a"}, entry{"type": "b"})
				r := h.start(call{verb: verb, conf: conf})
				if verb == "ADD" && !tt.ok {
					h.undoAlone("b", tt.steps)
				}
				a := r.wait()
				expect := tt.expect
				if verb == "DEL" && !tt.ok {
					expect *= 3 // one that fails is tried again
				}
				if a.took > 10*expect {
					t.Errorf("took %v", a.took)
				}
				h.on("b", verb)
				calls := h.calls()
				t.Cleanup(func() {
					for _, c := range calls {
						for _, pid := range c.Children {
							_ = syscall.Kill(pid, syscall.SIGKILL)
						}
					}
				})
				h.free(h.conf("1.1.0", nil, entry{"type": "a"}))
				if tt.ok {
					if a.ok(t); verb == "ADD" {
						wantOrder(t, calls, "ADD a, ADD b")
					}
					return
				}
				e := a.failure(t)
				name := map[string]string{
					"ADD": `plugin type="b" failed (add): `, "DEL": `plugin type="b" failed (delete): `, "GC": "failed to GC plugin b: ",
				}[verb] // libcni's CHECK has no prefix
				if !strings.HasPrefix(e.Msg, name) || !strings.Contains(e.Msg, tt.msg) {
					t.Errorf("message %s", e.Msg)
				}
				if !strings.Contains(e.Details+e.Msg, tt.running) { // GC joins the details to the message
					t.Errorf("%q is not in %q", tt.running, e.Details)
				}
				for _, c := range calls { // all of a group is killed; a daemon with a session of its own is not
					eventually(t, c.String()+" is gone", func() bool { return !alive(c.Pid) })
					for _, pid := range c.Children {
						if away := strings.Contains(strings.Join(tt.steps, " "), "session"); alive(pid) != away {
							t.Errorf("the child of %s is alive: %v", c, !away)
						}
					}
				}
			})
		}
	}
}

// undoAlone lets the undo of a plugin begin, and demands that nobody of its ADD is at work then.
func (h *host) undoAlone(name string, steps []string) {
	h.t.Helper()
	h.on(name, "DEL", "await "+strconv.Quote(filepath.Join(h.bin, "go")))
	var calls []record
	eventually(h.t, "the undo begins", func() bool {
		calls = h.peek()
		return slices.ContainsFunc(calls, func(c record) bool { return c.Name == name && c.Verb == "DEL" })
	})
	for _, c := range calls {
		if c.Name != name || c.Verb != "ADD" {
			continue
		}
		if alive(c.Pid) {
			h.t.Errorf("%s is alive when its undo begins", c)
		}
		for _, pid := range c.Children {
			if alive(pid) && !strings.Contains(strings.Join(steps, " "), "session") {
				h.t.Errorf("the child of %s is alive when its undo begins", c)
			}
		}
	}
	h.letGo()
}

// TestTime_budgets: the limit of each delegate is its own, and neither the wait for the lock nor what failed before it
// takes from it.
func TestTime_budgets(t *testing.T) {
	t.Parallel()
	t.Run("lock wait", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, "a")
		release := hold(t, h.lockFile)
		h.on("a", "ADD", "sleep 500ms")
		r := h.start(call{verb: "ADD", conf: h.conf("1.0.0", entry{"pluginTimeout": "2s"}, entry{"type": "a"})})
		h.awaitWaiters(1)
		began := monotonic()
		eventually(t, "it has waited longer than a plugin may run", func() bool { return monotonic() > began+2.5e9 })
		release()
		r.wait().ok(t)
	})
	for _, how := range []string{"timeout", "SIGTERM", "error"} {
		t.Run("undo after "+how, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b", "c")
			started := filepath.Join(h.bin, "started")
			timeout, last := "2500ms", "sleep 1m"
			if how == "error" {
				last = "sleep 1500ms\nexit 1"
			}
			h.on("c", "ADD", "on 1", "touch "+strconv.Quote(started), last)
			for _, name := range []string{"a", "b", "c"} {
				h.on(name, "DEL", "on 1", "sleep 1500ms") // two of them are longer than the limit
			}
			conf := h.conf("1.0.0", entry{"pluginTimeout": timeout}, entry{"type": "a"}, entry{"type": "b"}, entry{"type": "c"})
			r := h.start(call{verb: "ADD", conf: conf})
			eventually(t, "c runs", func() bool { _, err := os.Stat(started); return err == nil })
			if how == "SIGTERM" {
				r.signal(syscall.SIGTERM)
			}
			e := r.wait().failure(t)
			if !strings.HasPrefix(e.Msg, `plugin type="c" failed (add): `) || strings.Contains(e.Details, "could not undo") {
				t.Errorf("%+v", e)
			}
			calls := h.calls()
			wantOrder(t, calls, "ADD a, ADD b, ADD c, DEL c, DEL b, DEL a")
			for _, c := range calls[3:] {
				if c.End == 0 {
					t.Errorf("%s was killed", c)
				}
			}
			h.call(call{verb: "DEL", conf: conf}).ok(t)
			wantOrder(t, h.calls(), "")
			h.free(conf)
		})
	}
}

// TestTime_firstThreadEnds: a plugin with threads left looks ended and is not.
func TestTime_firstThreadEnds(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	h.on("b", "ADD", "threadexit")
	a := h.call(call{verb: "ADD", conf: h.conf("1.0.0", entry{"pluginTimeout": "500ms"}, entry{"type": "a"}, entry{"type": "b"})})
	if e := a.failure(t); !strings.Contains(e.Msg, "500ms") {
		t.Error(e.Msg)
	}
	wantOrder(t, h.calls(), "ADD a, ADD b, DEL b, DEL a")
}

// TestTime_othersMark: a runtime may carry the mark of a lockwrap that once started it. What else it starts is not ours.
func TestTime_othersMark(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	mark, finish := "LOCKWRAP_HELD=1:/x", filepath.Join(h.bin, "finish")
	h.on("a", "STATUS", "await "+strconv.Quote(finish), "exit 1")
	r := h.start(call{verb: "STATUS", conf: h.conf("1.1.0", nil, entry{"type": "a"}), env: []string{mark}})
	eventually(t, "a runs", func() bool { return len(h.peek()) == 1 })
	other := exec.Command("sleep", "60")
	other.Env = []string{mark}
	h.must(other.Start())
	defer other.Process.Kill()
	h.must(os.WriteFile(finish, nil, 0o600))
	r.wait().failure(t)
	if !alive(other.Process.Pid) {
		t.Error("killed a process that is none of its own")
	}
}
