// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"os"
	"syscall"
	"testing"
)

// TestADD_recoveryFails: what could not be removed is not forgotten when the ADD after it fails as well, and least of
// all called undone.
func TestADD_recoveryFails(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "c")
	conf := h.conf("1.0.0", given, abc...)
	h.on("c", "ADD", "on 1", "exit 1")
	h.on("b", "DEL", failure(77, "stuck", ""))
	h.call(call{verb: "ADD", conf: conf}).failure(t)
	h.on("a", "ADD", failure(78, "not now", ""))
	h.call(call{verb: "ADD", conf: conf}).failure(t)
	h.on("a", "ADD")
	h.on("b", "DEL")
	h.calls()

	h.call(call{verb: "DEL", conf: conf}).ok(t)
	dels := only(h.calls(), "DEL")
	var withResult bool
	for _, d := range dels {
		_, given := d.conf(t)["prevResult"]
		withResult = withResult || d.Name == "b" && given
	}
	if !withResult {
		t.Errorf("b was not DELed with what its ADD was recorded with: %v", order(dels))
	}
	if left := h.records(); len(left) > 0 {
		t.Errorf("records left: %v", left)
	}
}

// TestADD_recoveryStopped: the same when the runtime stops the second ADD while it still removes the leftovers.
func TestADD_recoveryStopped(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "c")
	conf := h.conf("1.0.0", given, abc...)
	h.killIn("ADD", "c", conf)
	h.on("c", "ADD")
	h.on("c", "DEL", "on 1", "sleep 1m")
	r := h.start(call{verb: "ADD", conf: conf})
	eventually(t, "c is asked to DEL", func() bool { return len(h.peek()) > 0 })
	r.signal(syscall.SIGTERM)
	r.wait().failure(t)
	h.calls()
	h.on("c", "DEL")
	h.call(call{verb: "ADD", conf: conf}).ok(t)
	wantOrder(t, h.calls(), "DEL c, DEL b, DEL a, ADD a, ADD b, ADD c")
}

// TestADD_resultNotTaken: an attachment that nobody has heard of would never be DELed.
func TestADD_resultNotTaken(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	conf := h.conf("1.0.0", given, abc[0], entry{"type": "b"})
	r := h.prepare(call{verb: "ADD", conf: conf})
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	h.must(err)
	defer full.Close()
	r.cmd.Stdout = full
	h.must(r.cmd.Start())
	if r.cmd.Wait() == nil {
		t.Error("success without a result")
	}
	wantOrder(t, h.calls(), "ADD a, ADD b, DEL b, DEL a")
	h.call(call{verb: "ADD", conf: conf}).ok(t)
	wantOrder(t, h.calls(), "ADD a, ADD b")
}

// TestADD_notExecutable: a plugin that was never started has nothing to undo.
func TestADD_notExecutable(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	h.must(os.WriteFile(h.bin+"/b", []byte("x"), 0o644))
	conf := h.conf("1.0.0", given, abc[0], entry{"type": "b"})
	e := h.call(call{verb: "ADD", conf: conf}).failure(t)
	if e.Details != "" {
		t.Errorf("details: %s", e.Details)
	}
	wantOrder(t, h.calls(), "ADD a, DEL a")
	h.call(call{verb: "DEL", conf: conf}).ok(t)
	wantOrder(t, h.calls(), "")
}

// TestDEL_timesOut: a plugin that hangs is not tried again, or it would keep the host's lock for three times its limit.
func TestDEL_timesOut(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	conf := h.conf("1.0.0", entry{"pluginTimeout": "500ms"}, entry{"type": "a"}, entry{"type": "b"})
	h.on("b", "DEL", "sleep 1m")
	h.call(call{verb: "DEL", conf: conf}).failure(t)
	wantOrder(t, h.calls(), "DEL b")
}

// TestADD_stoppedRuntime: a runtime that does not read its pipe must not keep the lock.
func TestADD_stoppedRuntime(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	conf := h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})
	for _, name := range []string{"a", "b"} {
		h.on(name, "ADD", "fill stderr 200000")
	}
	r := h.prepare(call{verb: "ADD", conf: conf})
	pr, pw, err := os.Pipe()
	h.must(err)
	defer pr.Close()
	r.cmd.Stderr = pw
	h.must(r.cmd.Start())
	pw.Close()
	eventually(t, "b has run", func() bool { return len(h.peek()) == 2 })
	h.call(call{verb: "ADD", id: "c2", conf: conf}).ok(t)
	h.must(r.cmd.Process.Signal(syscall.SIGTERM))
	_ = r.cmd.Wait()
}

// TestDEL_leftoverStays: what DEL could not remove of an earlier ADD is kept for the next call of the attachment.
func TestDEL_leftoverStays(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "c")
	conf := h.conf("1.0.0", given, abc...)
	h.on("c", "ADD", "on 1", "exit 1")
	busy := failure(77, "busy", "")
	// The undo, the recovery and, after the DEL of the attachment itself, its leftover.
	h.on("b", "DEL", "on 1", busy, "on 2", busy, "on 4", busy)
	h.call(call{verb: "ADD", conf: conf}).failure(t)
	h.call(call{verb: "ADD", conf: conf}).ok(t)
	h.call(call{verb: "DEL", conf: conf}).ok(t)
	if left := h.records(); len(left) != 1 {
		t.Errorf("records: %v", left)
	}
	h.calls()
	h.call(call{verb: "DEL", conf: conf}).ok(t)
	if left := h.records(); len(left) > 0 {
		t.Errorf("records left: %v", left)
	}
	if dels := only(h.calls(), "DEL"); len(dels) != 6 {
		t.Errorf("DELs: %v", order(dels))
	}
}
