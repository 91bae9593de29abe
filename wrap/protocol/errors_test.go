// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

// TestADD_crash: the message names plugin and verb, how it ended, and the end of what it said (cni#732).
func TestADD_crash(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		steps []string
		want  []string // patterns behind `plugin type="a" failed (add): `
	}{
		{"stderr only", []string{warn("segmentation fault\n"), "exit 3"}, []string{`^netplugin failed: "segmentation fault\\n": exit status 3$`}},
		{"nothing", []string{"exit 3"}, []string{`^netplugin failed with no error message: exit status 3$`}},
		{"SIGSEGV", []string{"kill 11"}, []string{`^netplugin failed with no error message: signal: segmentation fault`}},
		{"SIGKILL with words", []string{warn("words"), "kill 9"}, []string{`^netplugin failed: "words": signal: killed$`}},
		{"SIGTERM", []string{"kill 15"}, []string{`signal: terminated`}},
		{"panic", []string{"panic of its own"}, []string{`^netplugin failed: ".*panic: of its own.*goroutine 1.*exit status 2$`}},
		{"long stderr", []string{"fill stderr 100000", warn("the last words"), "exit 1"}, []string{`^netplugin failed: `, `\.\.\.the last words"?: exit status 1$`}},
		{"garbage", []string{say("garbage"), "exit 1"}, []string{`^netplugin failed but error parsing its diagnostic message "garbage": invalid character`}},
		{"long garbage", []string{"fill stdout 100000", say("the end"), "exit 1"}, []string{`^netplugin failed but error parsing`, `\.\.\.the end"`}},
		{"result, then failure", []string{say(`{"cniVersion":"1.0.0","dns":{}}`), "exit 3"}, []string{`exit status 3`}},
		{"result, then signal", []string{say(`{"cniVersion":"1.0.0","dns":{}}`), "kill 9"}, []string{`killed`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			h.on("a", "ADD", tt.steps...)
			a := h.call(call{verb: "ADD", conf: h.conf("1.0.0", nil, entry{"type": "a"})})
			e := a.failure(t)
			msg, ok := strings.CutPrefix(e.Msg, `plugin type="a" failed (add): `)
			if !ok {
				t.Fatal(e.Msg)
			}
			for _, w := range tt.want {
				mustMatch(t, w, msg)
			}
			if strings.HasPrefix(tt.name, "long ") && (len(msg) < 1500 || len(msg) > 4000) {
				t.Errorf("a message of %d bytes, not of about 2 KB", len(msg))
			}
			if e.Code > 0 && e.Code < 100 {
				t.Errorf("code %d is reserved", e.Code)
			}
			wantOrder(t, h.calls(), "ADD a, DEL a")
		})
	}
}

// TestADD_notStarted: what can't be executed is named, with the verb.
func TestADD_notStarted(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		content string
		mode    os.FileMode
		want    string
	}{
		{"exec format error", "not a program\n\x00", 0o755, "exec format error"},
		{"not executable", "#!/bin/sh\n", 0o644, "permission denied"},
		{"no interpreter", "#!/no/such/interpreter\n", 0o755, "no such file or directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			h.must(os.WriteFile(filepath.Join(h.bin, "broken"), []byte(tt.content), tt.mode))
			conf := h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "broken"})
			e := h.call(call{verb: "ADD", conf: conf}).failure(t)
			for _, want := range []string{`plugin type="broken" failed (add): `, tt.want} {
				if !strings.Contains(e.Msg, want) {
					t.Errorf("%q is not in %s", want, e.Msg)
				}
			}
			wantOrder(t, h.calls(), "ADD a, DEL a")

			// Here it is lockwrap that speaks, and go-cni would take these words for success (R29).
			e = h.call(call{verb: "DEL", id: "c2", conf: conf}).failure(t)
			if !strings.Contains(e.Msg, `plugin type="broken" failed (delete): `) || strings.Contains(e.Error(), "no such file or directory") {
				t.Errorf("DEL: %+v", e)
			}
		})
	}
}

// TestOtherVerbs_stdout: lockwrap prints nothing but errors, whatever the delegates print (R59).
func TestOtherVerbs_stdout(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	conf := h.conf("1.1.0", nil, entry{"type": "a"})
	for _, verb := range []string{"CHECK", "GC", "STATUS", "DEL"} {
		h.on("a", verb, say(`{"cniVersion":"1.1.0","dns":{}}`), warn("a word for the operator\n"))
		a := h.call(call{verb: verb, conf: conf}).ok(t)
		if a.stdout != "" {
			t.Errorf("%s printed %s", verb, a.stdout)
		}
		if !strings.Contains(a.stderr, "a word for the operator\n") { // R30
			t.Errorf("%s lost the delegate's stderr: %s", verb, a.stderr)
		}
	}
}

// TestVERSION_alone: it can't ask the delegates, for it is not told the path (R20).
func TestVERSION_alone(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	want := `{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`
	for _, conf := range []string{`{"cniVersion":"1.1.0"}`, "", "garbage"} {
		a := h.call(call{verb: "VERSION", conf: conf, unset: []string{"CNI_CONTAINERID"}, env: []string{"CNI_NETNS=dummy", "CNI_IFNAME=dummy", "CNI_PATH=dummy"}}).ok(t)
		if got := strings.TrimSpace(a.stdout); got != want {
			t.Errorf("stdin %q: %s", conf, got)
		}
	}
	h.nothingHappened()
}

// TestGC_joinsErrors: all run, the code is the first one's (R18, R27).
func TestGC_joinsErrors(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "c", "d")
	h.on("b", "GC", failure(12, "b failed", "in detail"))
	h.on("d", "GC", failure(100, "d failed", ""))
	e := h.call(call{verb: "GC", conf: h.conf("1.1.0", nil, entry{"type": "a"}, entry{"type": "b"}, entry{"type": "c"}, entry{"type": "d"})}).failure(t)
	want := types.Error{Code: 12, Msg: "failed to GC plugin b: b failed; in detail\nfailed to GC plugin d: d failed"}
	if d := cmp.Diff(want, e); d != "" {
		t.Error(d)
	}
	wantOrder(t, h.calls(), "GC a, GC b, GC c, GC d")
}

// TestSTATUS_firstError keeps its code, and so the runtime's idea of what the node can do (R19).
func TestSTATUS_firstError(t *testing.T) {
	t.Parallel()
	for _, code := range []uint{50, 51, 100} {
		h := newHost(t, "a", "b", "c")
		h.on("b", "STATUS", failure(int(code), "not yet", "soon"))
		e := h.call(call{verb: "STATUS", conf: h.conf("1.1.0", nil, entry{"type": "a"}, entry{"type": "b"}, entry{"type": "c"})}).failure(t)
		if d := cmp.Diff(types.Error{Code: code, Msg: "not yet", Details: "soon"}, e); d != "" {
			t.Error(d)
		}
		wantOrder(t, h.calls(), "STATUS a, STATUS b")
	}
}

// TestCHECK_firstError has no prefix in libcni, so it has none here (R17, R26).
func TestCHECK_firstError(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "c")
	h.on("b", "CHECK", failure(103, "a rule is missing", "in nat"))
	e := h.call(call{verb: "CHECK", conf: h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"}, entry{"type": "c"})}).failure(t)
	if d := cmp.Diff(types.Error{Code: 103, Msg: "a rule is missing", Details: "in nat"}, e); d != "" {
		t.Error(d)
	}
	wantOrder(t, h.calls(), "CHECK a, CHECK b")
}

// TestDEL_delegateGone: libcni's own words, which no runtime takes for success; what stands behind it was DELed (R22, R29).
func TestDEL_delegateGone(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "c")
	e := h.call(call{verb: "DEL", conf: h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"}, entry{"type": "c"})}).failure(t)
	mustMatch(t, `^plugin type="b" failed \(delete\): failed to find plugin "b" in path \[.*\]$`, e.Msg)
	wantOrder(t, h.calls(), "DEL c")
}

// TestADD_skipsItself: a link to lockwrap under a delegate's name, first on the path, is not the delegate (R22, R57).
func TestADD_skipsItself(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"symlink", "hard link"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b")
			h.extraDir = t.TempDir()
			link := os.Symlink
			if kind == "hard link" {
				link = os.Link
			}
			h.must(link(lockwrapBin, filepath.Join(h.extraDir, "a")))
			conf := h.conf("1.0.0", entry{"lockTimeout": "5s"}, entry{"type": "a"}, entry{"type": "b"})
			for _, verb := range []string{"ADD", "CHECK", "DEL"} {
				h.call(call{verb: verb, conf: conf}).ok(t)
			}
			wantOrder(t, h.calls(), "ADD a, ADD b, CHECK a, CHECK b, DEL b, DEL a")
		})
	}
}

// TestADD_resultAsItIs: the last result is printed unconverted, indexes and all (R23 to R25).
func TestADD_resultAsItIs(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, last, want string }{
		{"older version that can't be converted", `{"cniVersion":"0.4.0","dns":{"domain":"x"}}`, `{"cniVersion":"0.4.0","dns":{"domain":"x"}}`},
		{"newer version", `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":9000}],"dns":{}}`, `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":9000}]}`},
		{"index out of range", `{"cniVersion":"1.0.0","ips":[{"interface":7,"address":"10.0.0.2/24"}],"dns":{}}`, `{"cniVersion":"1.0.0","ips":[{"interface":7,"address":"10.0.0.2/24"}]}`},
		{"no version", `{"dns":{"domain":"x"}}`, `{"cniVersion":"1.0.0","dns":{"domain":"x"}}`},
		{"null", `null`, `{"cniVersion":"1.0.0"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b")
			h.on("b", "ADD", say(tt.last), "exit 0")
			a := h.call(call{verb: "ADD", conf: h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})}).ok(t)
			got := decode(t, a.stdout).(map[string]any)
			if dns, ok := got["dns"].(map[string]any); ok && len(dns) == 0 {
				delete(got, "dns") // as good as none, and some versions of the types print it
			}
			if d := cmp.Diff(decode(t, tt.want), any(got)); d != "" {
				t.Error(d)
			}
		})
	}
}
