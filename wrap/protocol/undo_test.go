// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

func wantOrder(t *testing.T, calls []record, want string) {
	t.Helper()
	if got := strings.Join(order(calls), ", "); got != want {
		t.Fatalf("called %s\nwant   %s", got, want)
	}
}

// resultOf is the plain answer of a fake, as a prevResult of version v.
func resultOf(name, v string) any {
	return map[string]any{"cniVersion": v, "dns": map[string]any{"domain": name}}
}

var abc = []entry{
	{"type": "a"},
	{"type": "b", "capabilities": entry{"portMappings": true}},
	{"type": "c", "capabilities": entry{"bandwidth": true}},
}

var given = entry{"runtimeConfig": entry{"portMappings": []any{entry{"hostPort": 80}}, "bandwidth": entry{"ingressRate": 1}}}

// TestADD_undo: the failing one and all before it, last first, and nothing stands in the way of the next try (nomad#6567).
func TestADD_undo(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "c")
	h.on("c", "ADD", "on 1", failure(7, "port 80 is taken", "by nginx"))
	conf := h.conf("1.0.0", given, abc...)
	a := h.call(call{verb: "ADD", conf: conf})
	want := types.Error{Code: 7, Msg: `plugin type="c" failed (add): port 80 is taken`, Details: "by nginx"}
	if d := cmp.Diff(want, a.failure(t)); d != "" {
		t.Error(d)
	}
	calls := h.calls()
	wantOrder(t, calls, "ADD a, ADD b, ADD c, DEL c, DEL b, DEL a")
	for _, c := range calls[3:] {
		if d := cmp.Diff(resultOf("b", "1.0.0"), c.conf(t)["prevResult"]); d != "" {
			t.Errorf("%s: prevResult:\n%s", c, d)
		}
		add := calls[strings.Index("abc", c.Name)]
		if d := cmp.Diff(add.conf(t)["runtimeConfig"], c.conf(t)["runtimeConfig"]); d != "" {
			t.Errorf("%s: runtimeConfig:\n%s", c, d)
		}
		if c.Ppid != calls[0].Ppid {
			t.Errorf("%s came from another lockwrap", c)
		}
	}
	neverOverlap(t, calls)

	h.call(call{verb: "ADD", conf: conf}).ok(t)
	wantOrder(t, h.calls(), "ADD a, ADD b, ADD c")
	h.call(call{verb: "DEL", conf: conf}).ok(t)
	wantOrder(t, h.calls(), "DEL c, DEL b, DEL a")
}

// TestADD_undoFails: the first error is the one that counts (R31); what could not be undone is in its details.
func TestADD_undoFails(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, details, want string
		dels                []string // of a, b and c
	}{
		{name: "one", details: "own", dels: []string{"b"}, want: `^own; could not undo b: .*b is stuck`},
		{name: "all", details: "own", dels: []string{"a", "b", "c"}, want: `^own; could not undo c: .*c is stuck.*could not undo b: .*b is stuck.*could not undo a: .*a is stuck`},
		{name: "no details of its own", dels: []string{"a"}, want: `^could not undo a: .*a is stuck`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b", "c")
			h.on("c", "ADD", failure(123, "the first error", tt.details))
			for _, n := range tt.dels {
				h.on(n, "DEL", failure(77, n+" is stuck", "really"))
			}
			e := h.call(call{verb: "ADD", conf: h.conf("1.0.0", nil, abc[0], entry{"type": "b"}, entry{"type": "c"})}).failure(t)
			if e.Code != 123 || e.Msg != `plugin type="c" failed (add): the first error` {
				t.Errorf("%+v", e)
			}
			mustMatch(t, tt.want, e.Details)
			got := slices.Compact(order(h.calls())) // a failing DEL may be tried again
			if d := cmp.Diff([]string{"ADD a", "ADD b", "ADD c", "DEL c", "DEL b", "DEL a"}, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestADD_afterFailedUndo starts by taking away what the earlier one could not, as it was recorded.
func TestADD_afterFailedUndo(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "c")
	h.on("c", "ADD", "on 1", "exit 1")
	h.on("b", "DEL", failure(77, "stuck", ""))
	h.call(call{verb: "ADD", conf: h.conf("1.0.0", given, abc...)}).failure(t)
	first := h.calls()
	h.on("b", "DEL")
	other := entry{"runtimeConfig": entry{"portMappings": []any{entry{"hostPort": 81}}}}
	h.call(call{verb: "ADD", conf: h.conf("1.0.0", other, abc...)}).ok(t)
	calls := h.calls()
	dels := only(calls, "DEL")
	left := []string{"c", "b", "a"}
	for _, d := range dels {
		i := slices.Index(left, d.Name)
		if i < 0 {
			t.Fatalf("not in reverse order: %v", order(calls))
		}
		left = left[i+1:]
	}
	if !slices.ContainsFunc(dels, func(r record) bool { return r.Name == "b" }) {
		t.Fatalf("b was not tried again: %v", order(calls))
	}
	wantOrder(t, calls[len(dels):], "ADD a, ADD b, ADD c")
	for _, d := range dels {
		i := slices.IndexFunc(first, func(r record) bool { return r.String() == d.String() })
		if diff := cmp.Diff(first[i].conf(t), d.conf(t)); diff != "" {
			t.Errorf("%s is not as recorded:\n%s", d, diff)
		}
	}
	h.call(call{verb: "DEL", conf: h.conf("1.0.0", given, abc...)}).ok(t)
	if left := h.records(); len(left) > 0 {
		t.Errorf("records left: %v", left)
	}
}

// TestADD_afterKill: what a killed lockwrap left is DELed first; its delegate has died with it (B13, R43).
func TestADD_afterKill(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"a", "b", "c"} {
		t.Run("killed in "+name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b", "c")
			first := h.killIn("ADD", name, h.conf("1.0.0", given, abc...))
			h.call(call{verb: "ADD", conf: h.conf("1.0.0", entry{"runtimeConfig": entry{"portMappings": []any{}}}, abc...)}).ok(t)
			calls := h.calls()
			var want []string
			for j := i; j >= 0; j-- {
				want = append(want, "DEL "+abc[j]["type"].(string))
			}
			wantOrder(t, calls, strings.Join(append(want, "ADD a", "ADD b", "ADD c"), ", "))
			h.asRecorded(calls[:i+1], first, i)
		})
	}
}

// TestDEL_afterKill: the runtime has no prevResult for an ADD that it never saw end, but the record has one.
func TestDEL_afterKill(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"a", "b", "c"} {
		t.Run("killed in "+name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b", "c")
			first := h.killIn("ADD", name, h.conf("1.0.0", given, abc...))
			h.call(call{verb: "DEL", conf: h.conf("1.0.0", nil, abc...)}).ok(t)
			calls := h.calls()
			if len(calls) < i+1 {
				t.Fatal(order(calls))
			}
			want := []string{"DEL c", "DEL b", "DEL a"}
			wantOrder(t, calls, strings.Join(want[3-len(calls):], ", "))
			h.asRecorded(calls[len(calls)-i-1:], first, i)
			if left := h.records(); len(left) > 0 {
				t.Errorf("records left: %v", left)
			}
			h.call(call{verb: "ADD", conf: h.conf("1.0.0", nil, entry{"type": "a"})}).ok(t)
			wantOrder(t, h.calls(), "ADD a")
		})
	}
}

// asRecorded demands that DELs carry what the delegates got at ADD and the result of the one before i.
func (h *host) asRecorded(dels, adds []record, i int) {
	h.t.Helper()
	for _, d := range dels {
		conf := d.conf(h.t)
		add := adds[strings.Index("abc", d.Name)].conf(h.t)
		if diff := cmp.Diff(add["runtimeConfig"], conf["runtimeConfig"]); diff != "" {
			h.t.Errorf("%s: runtimeConfig:\n%s", d, diff)
		}
		var want any
		if i > 0 {
			want = resultOf(string("abc"[i-1]), "1.0.0")
		}
		if diff := cmp.Diff(want, conf["prevResult"]); diff != "" {
			h.t.Errorf("%s: prevResult:\n%s", d, diff)
		}
	}
}

// killIn kills lockwrap while the named delegate runs, and gives the calls up to there.
func (h *host) killIn(verb, name, conf string) []record {
	h.t.Helper()
	started := filepath.Join(h.bin, "started")
	h.on(name, verb, "on 1", "touch "+strconv.Quote(started), "sleep 1m")
	r := h.start(call{verb: verb, conf: conf})
	eventually(h.t, name+" runs", func() bool { _, err := os.Stat(started); return err == nil })
	r.signal(syscall.SIGKILL)
	if a := r.wait(); a.exit != -1 || a.stdout != "" {
		h.t.Fatalf("%+v", a)
	}
	calls := h.calls()
	last := calls[len(calls)-1]
	eventually(h.t, name+" is dead as well", func() bool { return !alive(last.Pid) })
	return calls
}

// TestADD_afterKilledDEL: half a DEL is no state to start from.
func TestADD_afterKilledDEL(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "b", "c"} {
		for _, next := range []string{"ADD", "DEL"} {
			t.Run(fmt.Sprintf("killed in %s, then %s", name, next), func(t *testing.T) {
				t.Parallel()
				h := newHost(t, "a", "b", "c")
				conf := h.conf("1.0.0", given, abc...)
				h.call(call{verb: "ADD", conf: conf}).ok(t)
				h.calls()
				h.killIn("DEL", name, conf)
				h.call(call{verb: next, conf: conf}).ok(t)
				want := "DEL c, DEL b, DEL a"
				if next == "ADD" {
					want += ", ADD a, ADD b, ADD c"
				}
				calls := h.calls()
				wantOrder(t, calls, want)
				for _, c := range only(calls, "DEL") {
					if d := cmp.Diff(resultOf("c", "1.0.0"), c.conf(t)["prevResult"]); d != "" {
						t.Errorf("%s: prevResult:\n%s", c, d)
					}
				}
			})
		}
	}
}

// TestADD_waitsForStragglers: what a killed delegate has started may still be at work (R44).
func TestADD_waitsForStragglers(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"c1", "c2"} { // of the same attachment, and of another: the chains are shared
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			conf := h.conf("1.0.0", nil, entry{"type": "a"})
			started := filepath.Join(h.bin, "started")
			h.on("a", "ADD", "on 1", "daemon free group 1500ms", "touch "+strconv.Quote(started), "sleep 1m")
			r := h.start(call{verb: "ADD", conf: conf})
			eventually(t, "a runs", func() bool { _, err := os.Stat(started); return err == nil })
			r.signal(syscall.SIGKILL)
			r.wait()
			h.call(call{verb: "ADD", id: id, conf: conf}).ok(t)
			calls := h.calls()
			if waited := calls[1].Start - calls[0].Start; waited < 1.4e9 {
				t.Errorf("%s ran %d ms after the straggler had begun, which runs for 1500 ms", calls[1], waited/1e6)
			}
		})
	}
}

// TestDEL_triesAgain: a busy xtables lock is over at once, and Nomad never asks twice; then it stops as libcni does (R16).
func TestDEL_triesAgain(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		b    []string
		want string
		fail bool
	}{
		{name: "well at the third", b: []string{"on 1", "exit 1", "on 2", "exit 1"}, want: "DEL c, DEL b, DEL b, DEL b, DEL a"},
		{name: "never", b: []string{failure(7, "busy", "very")}, want: "DEL c, DEL b, DEL b, DEL b", fail: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b", "c")
			conf := h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"}, entry{"type": "c"})
			h.call(call{verb: "ADD", conf: conf}).ok(t)
			h.calls()
			h.on("b", "DEL", tt.b...)
			a := h.call(call{verb: "DEL", conf: conf})
			calls := h.calls()
			wantOrder(t, calls, tt.want)
			for i, c := range calls[1:] {
				if c.String() == calls[i].String() && c.Stdin != calls[i].Stdin {
					t.Errorf("another stdin at the next try: %s", c.Stdin)
				}
			}
			if !tt.fail {
				a.ok(t)
				if left := h.records(); len(left) > 0 {
					t.Errorf("records left: %v", left)
				}
				return
			}
			want := types.Error{Code: 7, Msg: `plugin type="b" failed (delete): busy`, Details: "very"}
			if d := cmp.Diff(want, a.failure(t)); d != "" {
				t.Error(d)
			}
			if left := h.records(); len(left) != 1 {
				t.Errorf("the record must stay until DEL succeeds: %v", left)
			}
		})
	}
}

// TestDEL_undone: nothing is left to do, and old plugins would fail for want of a prevResult (plugins#390).
func TestDEL_undone(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"0.3.1", "0.4.0", "1.0.0"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b")
			h.on("b", "ADD", "exit 1")
			conf := h.conf(v, nil, entry{"type": "a"}, entry{"type": "b"})
			h.call(call{verb: "ADD", conf: conf}).failure(t)
			h.calls()
			for _, n := range []string{"a", "b"} {
				h.on(n, "DEL", warn("missing prevResult from earlier plugin"), "exit 1")
			}
			if a := h.call(call{verb: "DEL", conf: conf}).ok(t); a.stdout != "" {
				t.Errorf("stdout: %s", a.stdout)
			}
			if calls := h.calls(); len(calls) > 0 {
				t.Errorf("called %v", order(calls))
			}
			if left := h.records(); len(left) > 0 {
				t.Errorf("records left: %v", left)
			}
		})
	}
}

// TestDEL_idempotent: DEL works without an ADD, repeated, without a namespace (R40).
func TestDEL_idempotent(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		unset []string
		env   []string
	}{
		{name: "never added"},
		{name: "no CNI_NETNS", unset: []string{"CNI_NETNS"}},
		{name: "empty CNI_NETNS", env: []string{"CNI_NETNS="}},
		{name: "CNI_NETNS is no namespace", env: []string{"CNI_NETNS=/dev/null"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b")
			conf := h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})
			for range 3 {
				h.call(call{verb: "DEL", conf: conf, unset: tt.unset, env: tt.env}).ok(t)
				calls := h.calls()
				wantOrder(t, calls, "DEL b, DEL a")
				got, set := calls[0].getenv("CNI_NETNS")
				if tt.env != nil && "CNI_NETNS="+got != tt.env[0] || tt.unset != nil && set {
					t.Errorf("CNI_NETNS arrived as %q, %v", got, set)
				}
			}
			if left := h.records(); len(left) > 0 {
				t.Errorf("records left: %v", left)
			}
		})
	}
}

// TestADD_undoBelow040: there is no prevResult for a DEL in these versions (R34).
func TestADD_undoBelow040(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1"} {
		h := newHost(t, "a", "b")
		h.on("b", "ADD", "exit 1")
		h.call(call{verb: "ADD", conf: h.conf(v, nil, entry{"type": "a"}, entry{"type": "b"})}).failure(t)
		calls := h.calls()
		wantOrder(t, calls, "ADD a, ADD b, DEL b, DEL a")
		for _, c := range calls[2:] {
			if got, ok := c.conf(t)["prevResult"]; ok {
				b, _ := json.Marshal(got)
				t.Errorf("%q: %s has prevResult %s", v, c, b)
			}
		}
	}
}

// TestDEL_wantsPrevResult: old firewall refuses a DEL for which nobody has a prevResult, and bridge's was never reached (plugins#390).
func TestDEL_wantsPrevResult(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0"} {
		for _, how := range []string{failure(100, "missing prevResult from earlier plugin", ""), warn("missing prevResult from earlier plugin") + "\nexit 1"} {
			h := newHost(t, "a", "b", "c")
			h.on("b", "DEL", how)
			h.call(call{verb: "DEL", conf: h.conf(version, nil, abc...)}).ok(t)
			wantOrder(t, h.calls(), "DEL c, DEL b, DEL a")

			// With one at hand the words mean something else.
			h.call(call{verb: "DEL", conf: h.conf(version, entry{"prevResult": resultOf("x", version)}, abc...)}).failure(t)
			wantOrder(t, h.calls(), "DEL c, DEL b, DEL b, DEL b")

			// And its ADD has done something, even where no version of DEL is told of it.
			h.call(call{verb: "ADD", id: "c2", conf: h.conf(version, nil, abc...)}).ok(t)
			h.call(call{verb: "DEL", id: "c2", conf: h.conf(version, nil, abc...)}).failure(t)
			wantOrder(t, h.calls(), "ADD a, ADD b, ADD c, DEL c, DEL b, DEL b, DEL b")
		}
	}
}

// TestADD_undoNull: libcni's conversion of such a result panics, and the undo must not depend on it.
func TestADD_undoNull(t *testing.T) {
	t.Parallel()
	for _, null := range []string{`"interfaces":[null]`, `"ips":[null]`} {
		h := newHost(t, "a", "b")
		h.on("a", "ADD", say(`{"cniVersion":"1.0.0",`+null+`}`), "exit 0")
		h.on("b", "ADD", "on 1", failure(7, "no", ""))
		conf := h.conf("0.4.0", nil, entry{"type": "a"}, entry{"type": "b"})
		if e := h.call(call{verb: "ADD", conf: conf}).failure(t); e.Code != 7 {
			t.Errorf("%+v", e)
		}
		wantOrder(t, h.calls(), "ADD a, ADD b, DEL b, DEL a")
		h.call(call{verb: "ADD", conf: conf}).ok(t)
		h.call(call{verb: "DEL", conf: conf}).ok(t)
	}
}
