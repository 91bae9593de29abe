// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestADD_environment: not one variable more or less, but for the mark; in an undo CNI_COMMAND differs as well (R13, danm#66).
func TestADD_environment(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		env  []string
	}{
		{"plain", []string{"PATH=/usr/bin:/bin"}},
		{"no PATH, no HOME", nil},
		{"empty PATH", []string{"PATH="}},
		{"what runtimes add", []string{"TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "HTTP_PROXY=http://[::1]:3128", "FOO=a b", "EMPTY=", "XDG_RUNTIME_DIR=/x"}},
		{"override", []string{"CNI_NETNS_OVERRIDE=0"}},
		{"odd names", []string{"a b=c=d", "=x", "ü=ö", "NEW\nLINE=a\nb", "LOCKWRAP_HELDX=1"}},
		{"Go's own", []string{"GOGC=50", "GODEBUG=asyncpreemptoff=1", "GOTRACEBACK=none"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b")
			h.on("b", "ADD", "exit 1")
			r := h.start(call{verb: "ADD", conf: h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"}), only: append([]string{"LOCKWRAP_CONFIG=" + os.Getenv("LOCKWRAP_CONFIG")}, tt.env...)})
			r.wait().failure(t)
			calls := h.calls()
			wantOrder(t, calls, "ADD a, ADD b, DEL b, DEL a")
			for _, c := range calls {
				want := slices.Clone(r.cmd.Env)
				for i := range want {
					want[i] = strings.Replace(want[i], "CNI_COMMAND=ADD", "CNI_COMMAND="+c.Verb, 1)
				}
				slices.Sort(want)
				got := slices.DeleteFunc(slices.Clone(c.Env), func(kv string) bool { return strings.HasPrefix(kv, "LOCKWRAP_HELD=") })
				if len(got) != len(c.Env)-1 {
					t.Errorf("%s: no mark, or more than one", c)
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("%s:\n%s", c, d)
				}
			}
		})
	}
}

// TestADD_ownNamespace: plugins that mind say so themselves; lockwrap prints one document and no more.
func TestADD_ownNamespace(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	env := []string{fmt.Sprintf("CNI_NETNS=/proc/%d/ns/net", os.Getpid()), "CNI_IFNAME=lwprotocol0"}
	conf := h.conf("1.0.0", nil, entry{"type": "a"})
	a := h.call(call{verb: "ADD", conf: conf, env: env}).ok(t)
	decode(t, a.stdout)
	h.call(call{verb: "DEL", conf: conf, env: env}).ok(t)
	wantOrder(t, h.calls(), "ADD a, DEL a")
}

// TestADD_ignoredSignals: what the runtime ignores, its plugins ignore, bare and wrapped.
func TestADD_ignoredSignals(t *testing.T) {
	t.Parallel()
	for _, signals := range []string{"INT", "PIPE", "HUP QUIT", "USR1"} {
		t.Run(signals, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			run := func(program string) {
				t.Helper()
				cmd := exec.Command("sh", "-c", `trap "" $1; exec "$0"`, program, signals)
				cmd.Env, cmd.Stdin = h.environ(call{verb: "ADD"}), strings.NewReader(h.conf("1.0.0", nil, entry{"type": "a"}))
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			run(filepath.Join(h.bin, "a"))
			run(lockwrapBin)
			calls := h.calls()
			wantOrder(t, calls, "ADD a, ADD a")
			if d := cmp.Diff(calls[0].Status, calls[1].Status); d != "" {
				t.Errorf("bare (-) and wrapped (+):\n%s", d)
			}
		})
	}
}
