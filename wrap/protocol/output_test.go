// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

// outputs are the ways to answer wrongly, or too much. Whether one is a failure is libcni's to say.
var outputs = []struct {
	name  string
	steps []string
	long  bool // libcni quotes all of it in its message, lockwrap the end
	big   bool // lockwrap refuses what libcni would keep in memory
}{
	{name: "megabytes on stderr", steps: []string{"fill stderr 4194304"}},
	{name: "megabytes on stderr, exit 1", steps: []string{"fill stderr 4194304", warn("the end"), "exit 1"}, long: true},
	{name: "megabytes of garbage", steps: []string{"fill stdout 4194304", "exit 0"}},
	{name: "megabytes of garbage, exit 1", steps: []string{"fill stdout 4194304", say("the end"), "exit 1"}, long: true},
	{name: "error behind megabytes on stderr", steps: []string{"fill stderr 4194304", failure(123, "the error", "in detail")}},
	{name: "error of 300 kB", steps: []string{failure(123, strings.Repeat("x", 300_000), "in detail")}},
	{name: "too much", steps: []string{"fill stdout 17825792", "exit 0"}, big: true},
	{name: "too much, exit 1", steps: []string{"fill stdout 17825792", "exit 1"}, big: true},
	{name: "too much on stderr, exit 1", steps: []string{"fill stderr 17825792", "exit 1"}, long: true},

	{name: "logs before the result", steps: []string{say("time=now level=info\n" + `{"cniVersion":"1.0.0","dns":{}}`), "exit 0"}},
	{name: "logs behind the result", steps: []string{say(`{"cniVersion":"1.0.0","dns":{}}` + "\nbye"), "exit 0"}},
	{name: "logs before the error", steps: []string{say("level=info\n"), failure(123, "the error", "")}},
	{name: "result and error", steps: []string{say(`{"cniVersion":"1.0.0","dns":{}}`), say(`{"code":123,"msg":"m"}`), "exit 0"}},
	{name: "result and error, exit 1", steps: []string{say(`{"cniVersion":"1.0.0","dns":{}}`), failure(123, "m", "")}},
	{name: "result, exit 1", steps: []string{say(`{"cniVersion":"1.0.0","dns":{"domain":"x"}}`), "exit 1"}},
	{name: "two errors", steps: []string{say(`{"code":123,"msg":"m"}`), failure(124, "n", "")}},
	{name: "nothing", steps: []string{"exit 0"}},
	{name: "nothing, exit 255", steps: []string{"exit 255"}},
	{name: "blanks", steps: []string{say(" \n"), "exit 0"}},
	{name: "blanks, exit 1", steps: []string{say(" \n"), "exit 1"}},
	{name: "text", steps: []string{say("all is well\n"), "exit 0"}},
	{name: "half a document", steps: []string{say(`{"cniVersion":"1.0.0","dns":{"dom`), "exit 0"}},
	{name: "half an error", steps: []string{say(`{"code":123,"msg":"m`), "exit 1"}},
	{name: "byte order mark", steps: []string{say("\ufeff" + `{"cniVersion":"1.0.0","dns":{}}`), "exit 0"}},
	{name: "array", steps: []string{say(`[]`), "exit 0"}},
	{name: "string", steps: []string{say(`"ok"`), "exit 0"}},
	{name: "array, exit 1", steps: []string{say(`[{"code":123,"msg":"m"}]`), "exit 1"}},
	{name: "null, exit 1", steps: []string{say(`null`), "exit 1"}},

	{name: "cniVersion unknown", steps: []string{say(`{"cniVersion":"9.9.9","dns":{}}`), "exit 0"}},
	{name: "cniVersion older", steps: []string{say(`{"cniVersion":"0.2.0","dns":{"domain":"x"}}`), "exit 0"}},
	{name: "cniVersion garbage", steps: []string{say(`{"cniVersion":"new","dns":{}}`), "exit 0"}},
	{name: "cniVersion a number", steps: []string{say(`{"cniVersion":1.0,"dns":{}}`), "exit 0"}},
	{name: "cniVersion null", steps: []string{say(`{"cniVersion":null,"dns":{"domain":"x"}}`), "exit 0"}},
	{name: "cniVersion of an error", steps: []string{say(`{"cniVersion":"9.9.9","code":123,"msg":"m"}`), "exit 1"}},
	{name: "ips a string", steps: []string{say(`{"cniVersion":"1.0.0","ips":"10.0.0.1"}`), "exit 0"}},

	{name: "invalid UTF-8", steps: []string{say("\xff\xfe\x80"), "exit 0"}},
	{name: "invalid UTF-8, exit 1", steps: []string{say("\xff\xfe\x80"), "exit 1"}},
	{name: "invalid UTF-8 in the result", steps: []string{say("{\"cniVersion\":\"1.0.0\",\"dns\":{\"domain\":\"\xff\"}}"), "exit 0"}},
	{name: "invalid UTF-8 in the error", steps: []string{say("{\"code\":123,\"msg\":\"a \xff b\",\"details\":\"\xfe\"}"), "exit 1"}},
	{name: "invalid UTF-8 on stderr", steps: []string{warn("\xff\xfe words"), "exit 1"}},
	{name: "NUL bytes", steps: []string{say("\x00\x00"), "exit 0"}},
	{name: "NUL bytes, exit 1", steps: []string{say("\x00\x00"), "exit 1"}},
	{name: "NUL bytes on stderr", steps: []string{warn("a\x00b"), "exit 1"}},
	{name: "NUL behind the error", steps: []string{say(`{"code":123,"msg":"m"}` + "\x00"), "exit 1"}},

	{name: "error, exit 0", steps: []string{say(`{"cniVersion":"1.0.0","code":123,"msg":"m"}`), "exit 0"}},
	{name: "code a string", steps: []string{say(`{"code":"x","msg":"m"}`), "exit 1"}},
	{name: "code null", steps: []string{say(`{"code":null,"msg":"m"}`), "exit 1"}},
	{name: "code 0", steps: []string{failure(0, "m", "d")}},
	{name: "no code", steps: []string{say(`{"msg":"m","details":"d"}`), "exit 1"}},
	{name: "code below 0", steps: []string{say(`{"code":-1,"msg":"m"}`), "exit 1"}},
	{name: "code a fraction", steps: []string{say(`{"code":7.5,"msg":"m"}`), "exit 1"}},
	{name: "code of 64 bits", steps: []string{say(`{"code":18446744073709551615,"msg":"m"}`), "exit 1"}},
	{name: "code of 65 bits", steps: []string{say(`{"code":18446744073709551616,"msg":"m"}`), "exit 1"}},
	{name: "code huge", steps: []string{say(`{"code":1e400,"msg":"m"}`), "exit 1"}},
	{name: "code of lockwrap's", steps: []string{failure(11, "m", "d")}},
	{name: "no message", steps: []string{say(`{"code":123}`), "exit 1"}},
	{name: "message a number", steps: []string{say(`{"code":123,"msg":5}`), "exit 1"}},
	{name: "message an object", steps: []string{say(`{"code":123,"msg":{"a":1},"details":["b"]}`), "exit 1"}},
	{name: "details a number", steps: []string{say(`{"code":123,"msg":"m","details":5}`), "exit 1"}},

	{name: "signal 1", steps: []string{"kill 1"}},
	{name: "signal 2", steps: []string{"kill 2"}},
	{name: "signal 6", steps: []string{warn("abort\n"), "kill 6"}},
	{name: "signal 8", steps: []string{"kill 8"}},
	{name: "signal 9", steps: []string{"kill 9"}},
	{name: "signal 13", steps: []string{"kill 13"}},
	{name: "signal 15", steps: []string{warn("words"), "kill 15"}},
	{name: "signal 31", steps: []string{"kill 31"}},
	{name: "signal 40", steps: []string{"kill 40"}},
	{name: "result, then signal 9", steps: []string{say(`{"cniVersion":"1.0.0","dns":{}}`), "kill 9"}},
	{name: "error, then signal 9", steps: []string{say(`{"code":123,"msg":"m"}`), "kill 9"}},
}

// TestOutput_likeBare: to whatever a delegate prints, libcni says the same of the bare and of the wrapped list; lockwrap
// prints one document or nothing, and undoes what failed.
func TestOutput_likeBare(t *testing.T) {
	t.Parallel()
	for i, tt := range outputs {
		for j, verb := range []string{"ADD", "DEL", "CHECK"} {
			if testing.Short() && i%3 != j {
				continue
			}
			t.Run(tt.name+"/"+verb, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, "a", "b")
				h.on("b", verb, tt.steps...)
				l := list{version: "1.0.0", delegates: []entry{{"type": "a"}, {"type": "b"}}}
				want := h.runtime(l.bare()).do(step{verb: verb})
				// CHECK and DEL want no ADD before, for then nothing of it is in the way.
				got := h.runtime(l.wrapped(h)).do(step{verb: verb})
				switch {
				case tt.big:
					if !bigRefused(got.err) {
						t.Errorf("not refused: %.300v", got.err)
					}
				case tt.long:
					sameLong(t, verb, want.err, got.err)
				default:
					sameError(t, verb, asProblem(want.err), asProblem(got.err))
				}
				if d := cmp.Diff(want.result, got.result); d != "" {
					t.Errorf("result:\n%s", d)
				}
				failed := got.err != nil
				h.afterwards(verb, failed, got.calls)

				// The same by hand, to see what lockwrap itself prints.
				conf := h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})
				h.on("b", verb, tt.steps...)
				a := h.call(call{verb: verb, id: "c2", conf: conf})
				if a.took > 30*time.Second {
					t.Errorf("took %v", a.took)
				}
				switch {
				case failed:
					e := a.failure(t)
					if len(e.Msg) > 5000 && !strings.HasPrefix(tt.name, "error of") {
						t.Errorf("a message of %d bytes", len(e.Msg))
					}
					named := map[string]string{"ADD": `plugin type="b" failed (add): `, "DEL": `plugin type="b" failed (delete): `}[verb]
					if !strings.HasPrefix(e.Msg, named) {
						t.Errorf("does not begin with %q: %.300s", named, e.Msg)
					}
				case verb == "ADD":
					decode(t, a.ok(t).stdout)
				default:
					if a.ok(t).stdout != "" {
						t.Errorf("printed %.300q", a.stdout)
					}
				}
			})
		}
	}
}

func bigRefused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "lockwrap: the plugin printed more than 16 MiB to stdout")
}

// sameError compares errors but for what is known to differ: lockwrap is named as well, it always has a code, and of a
// plugin without a message it says how that ended.
func sameError(t *testing.T, verb string, want, got *problem) {
	t.Helper()
	if want != nil {
		prefix := map[string]string{"ADD": `plugin type="lockwrap" failed (add): `, "DEL": `plugin type="lockwrap" failed (delete): `}[verb]
		want.Text = prefix + noMessage.ReplaceAllString(likeOldLibcni(want.Text), "")
	}
	if got != nil {
		got.Text = noMessage.ReplaceAllString(likeOldLibcni(got.Text), "")
		if want != nil && want.Code == 0 && (got.Code == types.ErrDecodingFailure || got.Code >= 100) {
			got.Code = 0
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("libcni's error, bare (-) and wrapped (+):\n%.4000s", d)
	}
}

// sameLong compares begin and end of messages that quote a plugin's output.
func sameLong(t *testing.T, verb string, want, got error) {
	t.Helper()
	if (want == nil) != (got == nil) {
		t.Fatalf("bare %.300v, wrapped %.300v", want, got)
	}
	if want == nil {
		return
	}
	b, w := want.Error(), got.Error()
	begin := strings.Index(b, "netplugin failed")
	quote := strings.Index(b, `"`+strings.Repeat(".", 100))
	if begin < 0 || quote < 0 {
		t.Fatalf("%.300s", b)
	}
	if !strings.Contains(w, b[begin:quote+100]) {
		t.Errorf("%s: %q is not in %.3000s", verb, b[begin:quote+100], w)
	}
	if strings.Contains(b, "the end") && !strings.Contains(w, "the end") {
		t.Errorf("%s: the end of the output is not in %.3000s", verb, w)
	}
}

// afterwards demands that what failed is undone or can be tried again, and that nothing is left in the end.
func (h *host) afterwards(verb string, failed bool, calls []record) {
	h.t.Helper()
	h.on("b", verb)
	conf := h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})
	want := map[string]string{"ADD": "ADD a, ADD b", "DEL": "DEL b, DEL a", "CHECK": "CHECK a, CHECK b"}[verb]
	next := "DEL b, DEL a"
	switch {
	case failed && verb == "ADD":
		want += ", DEL b, DEL a"
		next = ""
		if states := h.states(); len(states) != 1 || states[0] != "undone" {
			h.t.Errorf("records: %v", states)
		}
	case failed && verb == "DEL":
		want = "DEL b, DEL b, DEL b"
		if states := h.states(); len(states) != 1 || states[0] != "deleting" {
			h.t.Errorf("records: %v", states)
		}
	}
	wantOrder(h.t, calls, want)
	if a := h.call(call{verb: "DEL", conf: conf}).ok(h.t); a.stdout != "" {
		h.t.Errorf("DEL printed %s", a.stdout)
	}
	wantOrder(h.t, h.calls(), next)
	if left := h.records(); len(left) > 0 {
		h.t.Errorf("records left: %v", left)
	}
}

// states are those of the attachment records.
func (h *host) states() []string {
	h.t.Helper()
	var out []string
	for _, path := range h.records() {
		b, err := os.ReadFile(path)
		h.must(err)
		var r struct{ State string }
		h.must(json.Unmarshal(b, &r))
		out = append(out, r.State)
	}
	return out
}

// TestOutput_isAnswer keeps what a table of differences could lose on both sides: code, message and details as printed.
func TestOutput_isAnswer(t *testing.T) {
	t.Parallel()
	for _, code := range []uint{1, 11, 99, 123, 1 << 40} {
		for _, verb := range []string{"ADD", "DEL", "CHECK", "GC"} {
			t.Run(strconv.Itoa(int(code))+" "+verb, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, "a")
				h.on("a", verb, warn("logs\n"), failure(int(code), "in its own words", "and in detail"))
				e := h.call(call{verb: verb, conf: h.conf("1.1.0", nil, entry{"type": "a"})}).failure(t)
				text := e.Msg
				if e.Details != "" {
					text += "; " + e.Details
				}
				if e.Code != code || !strings.HasSuffix(text, "in its own words; and in detail") {
					t.Errorf("%+v", e)
				}
			})
		}
	}
}
