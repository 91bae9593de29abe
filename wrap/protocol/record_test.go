// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// record1 gives the one record there is.
func (h *host) record1() string {
	h.t.Helper()
	r := h.records()
	if len(r) != 1 {
		h.t.Fatalf("want one record, have %v", r)
	}
	return r[0]
}

// TestRecord_useless: a record only ever helps. Whatever is in its place, it is logged and every verb goes on (R40).
func TestRecord_useless(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(h *host, path string, good []byte)
		quiet bool // nothing to complain about
	}{
		{name: "missing", quiet: true, spoil: func(h *host, path string, _ []byte) { h.must(os.Remove(path)) }},
		{name: "directory missing", quiet: true, spoil: func(h *host, path string, _ []byte) { h.must(os.RemoveAll(filepath.Dir(path))) }},
		{name: "empty", spoil: write("")},
		{name: "garbage", spoil: write("\x00\xff garbage {{{")},
		{name: "null", spoil: write("null")},
		{name: "an array", spoil: write("[]")},
		{name: "a string", spoil: write(`"adding"`)},
		{name: "empty object", spoil: write("{}")},
		{name: "keys of wrong types", spoil: write(`{"version":"x","state":7,"delegates":"all","network":[],"pid":"me","group":{}}`)},
		{name: "truncated", spoil: func(h *host, path string, good []byte) { h.must(os.WriteFile(path, good[:len(good)/2], 0o600)) }},
		{name: "something behind it", spoil: func(h *host, path string, good []byte) {
			h.must(os.WriteFile(path, append(good, "garbage"...), 0o600))
		}},
		{name: "of another container", spoil: func(h *host, path string, good []byte) {
			h.must(os.WriteFile(path, []byte(strings.ReplaceAll(string(good), `"c1"`, `"c2"`)), 0o600))
		}},
		{name: "of another network", spoil: func(h *host, path string, good []byte) {
			h.must(os.WriteFile(path, []byte(strings.ReplaceAll(string(good), `"net"`, `"ten"`)), 0o600))
		}},
		{name: "a directory", spoil: func(h *host, path string, _ []byte) {
			h.must(os.Remove(path))
			h.must(os.MkdirAll(filepath.Join(path, "x"), 0o700))
		}},
		{name: "link to itself", spoil: func(h *host, path string, _ []byte) {
			h.must(os.Remove(path))
			h.must(os.Symlink(path, path))
		}},
	}
	for _, tt := range tests {
		verbs := []string{"ADD", "DEL", "CHECK", "GC", "STATUS"}
		if testing.Short() {
			verbs = verbs[:2]
		}
		for _, verb := range verbs {
			t.Run(tt.name+" "+verb, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, "a", "b")
				conf := h.conf("1.1.0", entry{"prevResult": resultOf("b", "1.1.0")}, entry{"type": "a"}, entry{"type": "b"})
				if verb == "ADD" || verb == "GC" || verb == "STATUS" {
					conf = h.conf("1.1.0", nil, entry{"type": "a"}, entry{"type": "b"})
				}
				h.call(call{verb: "ADD", conf: h.conf("1.1.0", nil, entry{"type": "a"}, entry{"type": "b"})}).ok(t)
				h.calls()
				path := h.record1()
				good, err := os.ReadFile(path)
				h.must(err)
				tt.spoil(h, path, good)
				a := h.call(call{verb: verb, conf: conf}).ok(t)
				if (verb == "ADD" || verb == "DEL") && !tt.quiet {
					mustMatch(t, `level=WARN.*record`, a.stderr)
				}
				want := map[string]string{"DEL": "DEL b, DEL a"}[verb]
				if want == "" {
					want = fmt.Sprintf("%s a, %s b", verb, verb)
				}
				wantOrder(t, h.calls(), want)
			})
		}
	}
}

func write(content string) func(*host, string, []byte) {
	return func(h *host, path string, _ []byte) { h.must(os.WriteFile(path, []byte(content), 0o600)) }
}

// TestRecord_fromTheFuture: a later lockwrap may have written it; it is not ours to understand.
func TestRecord_fromTheFuture(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	h.killIn("ADD", "b", h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"}))
	path := h.record1()
	b, err := os.ReadFile(path)
	h.must(err)
	v := decode(t, string(b)).(map[string]any)
	n, ok := v["version"].(json.Number)
	if !ok {
		t.Fatalf("the record has no version: %s", b)
	}
	i, err := n.Int64()
	h.must(err)
	v["version"] = i + 1
	b, err = json.Marshal(v)
	h.must(err)
	h.must(os.WriteFile(path, b, 0o600))
	a := h.call(call{verb: "ADD", conf: h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})}).ok(t)
	mustMatch(t, "level=WARN.*record", a.stderr)
	wantOrder(t, h.calls(), "ADD a, ADD b")
}

// TestRecord_cannotBe: without records lockwrap is still a lock.
func TestRecord_cannotBe(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		dir  func(h *host) string
	}{
		{"stateDir below a file", func(h *host) string { return filepath.Join(fakeBin, "state") }},
		{"attachments is a file", func(h *host) string {
			dir := filepath.Join(h.bin, "state.d")
			h.must(os.Mkdir(dir, 0o700))
			h.must(os.WriteFile(filepath.Join(dir, "attachments"), nil, 0o600))
			return dir
		}},
		{"read-only", func(h *host) string {
			if os.Getuid() == 0 {
				return "/proc/sys/kernel" // not even root makes a directory there
			}
			dir := filepath.Join(h.bin, "state.d")
			h.must(os.Mkdir(dir, 0o500))
			return dir
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b")
			conf := h.conf("1.1.0", entry{"stateDir": tt.dir(h)}, entry{"type": "a"}, entry{"type": "b"})
			a := h.call(call{verb: "ADD", conf: conf}).ok(t)
			mustMatch(t, "level=WARN.*record", a.stderr)
			for _, verb := range []string{"CHECK", "GC", "STATUS", "DEL"} {
				h.call(call{verb: verb, conf: conf}).ok(t)
			}
			wantOrder(t, h.calls(), "ADD a, ADD b, CHECK a, CHECK b, GC a, GC b, STATUS a, STATUS b, DEL b, DEL a")

			h.on("b", "ADD", failure(7, "no", "")) // and the undo does not depend on it either
			e := h.call(call{verb: "ADD", conf: conf}).failure(t)
			if e.Code != 7 || e.Details != "" {
				t.Errorf("%+v", e)
			}
			wantOrder(t, h.calls(), "ADD a, ADD b, DEL b, DEL a")
		})
	}
}

// TestDEL_fillsInFromRecord: without them firewall and portmap remove nothing, and report success (semantics 4.5).
func TestDEL_fillsInFromRecord(t *testing.T) {
	t.Parallel()
	other := resultOf("other", "1.0.0")
	tests := []struct {
		name           string
		version        string
		more           entry // of the DEL
		prevResult     any   // that must arrive
		withoutRuntime bool
		hostPort       int
	}{
		{name: "nothing from the runtime", version: "1.0.0", prevResult: resultOf("c", "1.0.0"), hostPort: 80},
		{name: "nothing at 0.4.0", version: "0.4.0", prevResult: resultOf("c", "0.4.0"), hostPort: 80},
		{name: "prevResult from the runtime", version: "1.0.0", more: entry{"prevResult": other}, prevResult: other, hostPort: 80},
		{
			name: "all from the runtime", version: "1.0.0", prevResult: other, hostPort: 81,
			more: entry{"prevResult": other, "runtimeConfig": entry{"portMappings": []any{entry{"hostPort": 81}}}},
		},
		{name: "no prevResult below 0.4.0", version: "0.3.1", hostPort: 80},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b", "c")
			h.call(call{verb: "ADD", conf: h.conf(tt.version, given, abc...)}).ok(t)
			h.calls()
			h.call(call{verb: "DEL", conf: h.conf(tt.version, tt.more, abc...)}).ok(t)
			calls := h.calls()
			wantOrder(t, calls, "DEL c, DEL b, DEL a")
			for _, c := range calls {
				if d := cmp.Diff(tt.prevResult, c.conf(t)["prevResult"]); d != "" {
					t.Errorf("%s: prevResult:\n%s", c, d)
				}
			}
			want := map[string]any{"portMappings": []any{map[string]any{"hostPort": json.Number(strconv.Itoa(tt.hostPort))}}}
			if d := cmp.Diff(any(want), calls[1].conf(t)["runtimeConfig"]); d != "" {
				t.Errorf("runtimeConfig of b:\n%s", d)
			}
			if rc, ok := calls[2].conf(t)["runtimeConfig"]; ok {
				t.Errorf("a declares no capability and got %v", rc)
			}
		})
	}
}

// TestDEL_listChanged: the operator may change the list while containers run (plugins#752).
func TestDEL_listChanged(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		now  []entry
		want string
	}{
		{"one more", []entry{{"type": "a"}, {"type": "b"}, {"type": "c"}}, "DEL c, DEL b, DEL a"},
		{"one less", []entry{{"type": "b"}}, "DEL b"},
		{"other order", []entry{{"type": "b"}, {"type": "a"}}, "DEL a, DEL b"},
		{"another", []entry{{"type": "a"}, {"type": "c"}}, "DEL c, DEL a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b", "c")
			h.call(call{verb: "ADD", conf: h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})}).ok(t)
			h.calls()
			h.call(call{verb: "DEL", conf: h.conf("1.0.0", nil, tt.now...)}).ok(t)
			calls := h.calls()
			wantOrder(t, calls, tt.want)
			for _, c := range calls {
				if d := cmp.Diff(resultOf("b", "1.0.0"), c.conf(t)["prevResult"]); d != "" {
					t.Errorf("%s: prevResult:\n%s", c, d)
				}
			}
			if left := h.records(); len(left) > 0 {
				t.Errorf("records left: %v", left)
			}
		})
	}
}

// TestGC_dropsRecords of this network that are not among the valid attachments, and no others.
func TestGC_dropsRecords(t *testing.T) {
	t.Parallel()
	valid := func(ids ...string) any {
		out := []entry{}
		for _, id := range ids {
			out = append(out, entry{"containerID": id, "ifname": ifname})
		}
		return out
	}
	tests := []struct {
		name string
		more entry
		left int // of c1, c2 and, in another network, c3
	}{
		{"one valid", entry{"cni.dev/valid-attachments": valid("c1"), "cni.dev/attachments": valid("c1")}, 2},
		{"one spelling", entry{"cni.dev/attachments": valid("c2")}, 2},
		{"both valid", entry{"cni.dev/valid-attachments": valid("c1", "c2", "x")}, 3},
		{"none valid", entry{"cni.dev/valid-attachments": valid()}, 1},
		{"the runtime does not say", nil, 3},
		{"other interface", entry{"cni.dev/valid-attachments": []entry{{"containerID": "c1", "ifname": "eth1"}}}, 1},
		{"garbage", entry{"cni.dev/valid-attachments": "all"}, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			conf := h.conf("1.1.0", nil, entry{"type": "a"})
			h.call(call{verb: "ADD", id: "c1", conf: conf}).ok(t)
			h.call(call{verb: "ADD", id: "c2", conf: conf}).ok(t)
			h.call(call{verb: "ADD", id: "c3", conf: strings.Replace(conf, `"name":"net"`, `"name":"ten"`, 1)}).ok(t)
			h.calls()
			h.call(call{verb: "GC", conf: h.conf("1.1.0", tt.more, entry{"type": "a"})}).ok(t)
			calls := h.calls()
			wantOrder(t, calls, "GC a")
			for k := range tt.more { // R11
				want, err := json.Marshal(tt.more[k])
				h.must(err)
				if d := cmp.Diff(decode(t, string(want)), calls[0].conf(t)[k]); d != "" {
					t.Errorf("%s:\n%s", k, d)
				}
			}
			if got := len(h.records()); got != tt.left {
				t.Errorf("%d records left instead of %d", got, tt.left)
			}
		})
	}
}

// TestGC_unfinished: what a killed ADD left is nobody's.
func TestGC_unfinished(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	conf := h.conf("1.1.0", entry{"cni.dev/valid-attachments": []entry{}}, entry{"type": "a"}, entry{"type": "b"})
	h.killIn("ADD", "b", conf)
	h.call(call{verb: "GC", conf: conf}).ok(t)
	if left := h.records(); len(left) > 0 {
		t.Errorf("records left: %v", left)
	}
}

// TestRecord_oneEach: attachments whose names could run together keep apart.
func TestRecord_oneEach(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	attachments := []struct{ network, id, ifname string }{
		{"n", "c", "eth0"}, {"n", "c", "eth1"}, {"n", "c-eth0", "eth0"}, {"n-c", "eth0", "eth0"}, {"n", "c-eth0-eth0", "x"},
		{"n", "C", "eth0"}, {"n", "c.", "eth0"}, {"n", "c_eth0", "eth0"}, {"n", strings.Repeat("c", 240), "eth0"}, {"n", strings.Repeat("c", 241), "eth0"},
	}
	do := func(verb string, i int) answer {
		conf := strings.Replace(h.conf("1.0.0", nil, entry{"type": "a"}), `"name":"net"`, fmt.Sprintf(`"name":%q`, attachments[i].network), 1)
		return h.call(call{verb: verb, id: attachments[i].id, conf: conf, env: []string{"CNI_IFNAME=" + attachments[i].ifname}}).ok(t)
	}
	for i := range attachments {
		do("ADD", i)
	}
	if got := len(h.records()); got != len(attachments) {
		t.Errorf("%d records for %d attachments: %v", got, len(attachments), h.records())
	}
	for i := range attachments {
		do("DEL", i)
		if got := len(h.records()); got != len(attachments)-i-1 {
			t.Fatalf("%d records after %d DELs", got, i+1)
		}
	}
	wantOrder(t, h.calls(), strings.Repeat("ADD a, ", len(attachments))+strings.Repeat("DEL a, ", len(attachments)-1)+"DEL a")
}

// TestADD_twice: a second ADD of a live attachment is passed on, and its failure undoes nothing (R37, R41).
func TestADD_twice(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	conf := h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})
	h.call(call{verb: "ADD", conf: conf}).ok(t)
	h.calls()
	h.on("b", "ADD", failure(100, "container veth name provided (eth0) already exists", ""))
	e := h.call(call{verb: "ADD", conf: conf}).failure(t)
	if e.Code != 100 || !strings.HasSuffix(e.Msg, "already exists") {
		t.Errorf("%+v", e)
	}
	wantOrder(t, h.calls(), "ADD a, ADD b")
	h.call(call{verb: "DEL", conf: conf}).ok(t)
	calls := h.calls()
	wantOrder(t, calls, "DEL b, DEL a")
	if d := cmp.Diff(resultOf("b", "1.0.0"), calls[0].conf(t)["prevResult"]); d != "" {
		t.Errorf("the record of the live one is lost:\n%s", d)
	}
}
