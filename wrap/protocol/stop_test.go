// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ended demands that every process the fakes were and left behind is gone.
func ended(t *testing.T, calls []record) {
	t.Helper()
	for _, c := range calls {
		for _, pid := range append(c.Children, c.Pid) {
			eventually(t, c.String()+" is gone", func() bool { return !alive(pid) })
		}
	}
}

// TestADD_pluginTimeout: the delegate and its group are killed, the ADD is undone (B13).
func TestADD_pluginTimeout(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		steps []string
	}{
		{"sleeps", []string{"sleep 1m"}},
		{"will not stop", []string{"ignore", "sleep 1m"}},
		{"its child sleeps", []string{"daemon hold group 1m", "sleep 1m"}},
		{"its child sleeps on", []string{"daemon free group 1m", "ignore", "sleep 1m"}},
		{"never reads", []string{"noread", "sleep 1m"}},
		{"never stops talking", []string{"fill stderr 1000000000000"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b", "c")
			h.on("b", "ADD", tt.steps...)
			conf := h.conf("1.0.0", entry{"pluginTimeout": "1s"}, entry{"type": "a"}, entry{"type": "b"}, entry{"type": "c"})
			a := h.call(call{verb: "ADD", conf: conf})
			e := a.failure(t)
			for _, want := range []string{`plugin type="b" failed (add)`, "1s"} {
				if !strings.Contains(e.Msg, want) {
					t.Errorf("%q is not in %s", want, e.Msg)
				}
			}
			if a.took < time.Second || a.took > 20*time.Second {
				t.Errorf("took %v", a.took)
			}
			calls := h.calls()
			wantOrder(t, calls, "ADD a, ADD b, DEL b, DEL a")
			ended(t, calls)
			h.on("b", "ADD")
			h.call(call{verb: "ADD", conf: conf}).ok(t)
			wantOrder(t, h.calls(), "ADD a, ADD b, ADD c")
		})
	}
}

// TestADD_pluginTimeoutEach: the limit counts from each delegate's own start.
func TestADD_pluginTimeoutEach(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "c")
	var list []entry
	for _, n := range []string{"a", "b", "c"} {
		h.on(n, "ADD", "sleep 700ms")
		list = append(list, entry{"type": n})
	}
	h.call(call{verb: "ADD", conf: h.conf("1.0.0", entry{"pluginTimeout": "1900ms"}, list...)}).ok(t)
}

// TestOtherVerbs_pluginTimeout: no verb runs for ever.
func TestOtherVerbs_pluginTimeout(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"DEL", "CHECK", "GC", "STATUS"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			h.on("a", verb, "sleep 1m")
			a := h.call(call{verb: verb, conf: h.conf("1.1.0", entry{"pluginTimeout": "300ms"}, entry{"type": "a"})})
			if e := a.failure(t); !strings.Contains(e.Msg, "300ms") {
				t.Error(e.Msg)
			}
			calls := h.calls()
			if verb != "DEL" && len(calls) != 1 || len(calls) > 3 {
				t.Error(order(calls))
			}
			ended(t, calls)
		})
	}
}

// TestADD_told: to stop means to clean up, and to say so.
func TestADD_told(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		for _, ignore := range []string{"ignore", "noread"} {
			t.Run(sig.String()+" "+ignore, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, "a", "b", "c")
				started := filepath.Join(h.bin, "started")
				h.on("b", "ADD", "on 1", ignore, "daemon hold group 1m", "touch "+strconv.Quote(started), "sleep 1m")
				conf := h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"}, entry{"type": "c"})
				r := h.start(call{verb: "ADD", conf: conf})
				eventually(t, "b runs", func() bool { _, err := os.Stat(started); return err == nil })
				r.signal(sig)
				if e := r.wait().failure(t); !strings.Contains(e.Msg, `plugin type="b" failed (add)`) {
					t.Error(e.Msg)
				}
				calls := h.calls()
				wantOrder(t, calls, "ADD a, ADD b, DEL b, DEL a")
				ended(t, calls)
				h.call(call{verb: "ADD", conf: conf}).ok(t)
				wantOrder(t, h.calls(), "ADD a, ADD b, ADD c")
			})
		}
	}
}

// TestDEL_told: nothing to undo, and the record stays for the next try.
func TestDEL_told(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	conf := h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})
	h.call(call{verb: "ADD", conf: conf}).ok(t)
	started := filepath.Join(h.bin, "started")
	h.on("b", "DEL", "touch "+strconv.Quote(started), "sleep 1m")
	r := h.start(call{verb: "DEL", conf: conf})
	eventually(t, "b runs", func() bool { _, err := os.Stat(started); return err == nil })
	r.signal(syscall.SIGTERM)
	if e := r.wait().failure(t); !strings.Contains(e.Msg, `plugin type="b" failed (delete)`) {
		t.Error(e.Msg)
	}
	calls := h.calls()
	wantOrder(t, calls, "ADD a, ADD b, DEL b")
	ended(t, calls)
	h.record1()
}

// TestADD_undoHangs: the undo has time of its own and goes on past what hangs.
func TestADD_undoHangs(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "c")
	h.on("c", "ADD", failure(7, "first", ""))
	h.on("b", "DEL", "ignore", "sleep 1m")
	conf := h.conf("1.0.0", entry{"pluginTimeout": "1s"}, entry{"type": "a"}, entry{"type": "b"}, entry{"type": "c"})
	e := h.call(call{verb: "ADD", conf: conf}).failure(t)
	if e.Code != 7 || e.Msg != `plugin type="c" failed (add): first` {
		t.Errorf("%+v", e)
	}
	mustMatch(t, "^could not undo b: ", e.Details)
	calls := h.calls()
	if got := order(calls); got[len(got)-1] != "DEL a" {
		t.Error(got)
	}
	ended(t, calls)
}

// TestADD_callerGone: Nomad's unit has KillMode=process, so the runtime may die alone. A later DEL cleans up in any case.
func TestADD_callerGone(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	started, finish := filepath.Join(h.bin, "started"), filepath.Join(h.bin, "finish")
	h.on("a", "ADD", "on 1", "touch "+strconv.Quote(started), "await "+strconv.Quote(finish))
	conf := h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})
	sh := exec.Command("sh", "-c", `"$0"; :`, lockwrapBin)
	sh.Env, sh.Stdin = h.environ(call{verb: "ADD"}), strings.NewReader(conf)
	h.must(sh.Start())
	eventually(t, "a runs", func() bool { _, err := os.Stat(started); return err == nil })
	lockwrap := h.peek()[0].Ppid
	h.must(sh.Process.Kill())
	_ = sh.Wait()
	h.must(os.WriteFile(finish, nil, 0o600))
	eventually(t, "lockwrap has ended", func() bool { return !alive(lockwrap) })
	calls := h.calls()
	ended(t, calls)
	switch got := strings.Join(order(calls), ", "); got {
	case "ADD a, ADD b", "ADD a, ADD b, DEL b, DEL a", "ADD a, DEL a":
	default:
		t.Errorf("half-way: %s", got)
	}
	h.call(call{verb: "DEL", conf: conf}).ok(t)
	if left := h.records(); len(left) > 0 {
		t.Errorf("records left: %v", left)
	}
	h.call(call{verb: "ADD", conf: conf}).ok(t)
}

// TestADD_killed: the caller gets its pipes back at once, since no delegate has them (R45).
func TestADD_killed(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	started := filepath.Join(h.bin, "started")
	h.on("a", "ADD", "daemon hold session 8s", "touch "+strconv.Quote(started), "sleep 1m")
	r := h.start(call{verb: "ADD", conf: h.conf("1.0.0", nil, entry{"type": "a"})})
	eventually(t, "a runs", func() bool { _, err := os.Stat(started); return err == nil })
	r.signal(syscall.SIGKILL)
	killed := time.Now()
	r.wait()
	if took := time.Since(killed); took > 5*time.Second {
		t.Errorf("the caller waited %v for the pipes", took)
	}
	for _, pid := range h.calls()[0].Children {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// TestADD_daemonLeft: a delegate may leave a process that holds its pipes; the runtime must not wait for that (golang#21922).
func TestADD_daemonLeft(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"hold session", "hold group", "free session", "free group"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b")
			h.on("a", "ADD", "daemon "+where+" 40s")
			a := h.call(call{verb: "ADD", conf: h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})}).ok(t)
			if a.took > 15*time.Second {
				t.Errorf("took %v", a.took)
			}
			calls := h.calls()
			wantOrder(t, calls, "ADD a, ADD b")
			child := calls[0].Children[0]
			if !alive(child) {
				t.Error("the daemon of a plugin that succeeded was killed")
			}
			_ = syscall.Kill(child, syscall.SIGKILL)
			if got := decode(t, calls[1].Stdin).(map[string]any)["prevResult"]; got == nil {
				t.Error("the result of a is lost")
			}
		})
	}
}

// TestADD_fullPipes: a delegate that writes before it reads must not hang under the lock (apache/mesos#306).
func TestADD_fullPipes(t *testing.T) {
	t.Parallel()
	big := entry{"type": "a", "padding": strings.Repeat("x", 1<<20)}
	tests := []struct {
		name  string
		steps []string
		fail  bool
	}{
		{"writes, then reads", []string{"noread", "fill stderr 1048576", "fill stdout 262144", "read", "exit 1"}, true},
		{"never reads", []string{"noread"}, false},
		{"a lot on stderr", []string{"fill stderr 8388608"}, false},
		{"a big result", []string{say(`{"cniVersion":"1.0.0","x":"` + strings.Repeat("x", 4<<20) + `"}`), "exit 0"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			h.on("a", "ADD", tt.steps...)
			a := h.call(call{verb: "ADD", conf: h.conf("1.0.0", entry{"pluginTimeout": "30s"}, big)})
			if !tt.fail {
				a.ok(t)
				return
			}
			e := a.failure(t)
			mustMatch(t, `^plugin type="a" failed \(add\): netplugin failed but error parsing its diagnostic message`, e.Msg)
			if len(e.Msg) > 5000 {
				t.Errorf("a message of %d bytes", len(e.Msg))
			}
		})
	}
}
