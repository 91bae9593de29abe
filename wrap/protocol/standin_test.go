// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

// standIns makes a directory of links to lockwrap the first on CNI_PATH. Its settings come from the host's file.
func (h *host) standIns(names ...string) {
	h.t.Helper()
	h.extraDir = h.t.TempDir()
	config := filepath.Join(h.extraDir, "config.json")
	b, err := json.Marshal(map[string]any{"lockFile": h.lockFile, "stateDir": h.run, "pluginDirs": []string{h.extraDir, h.bin}})
	h.must(err)
	h.must(os.WriteFile(config, b, 0o600))
	h.env = []string{"LOCKWRAP_CONFIG=" + config}
	h.addStandIns(names...)
}

func (h *host) addStandIns(names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.must(os.Symlink(lockwrapBin, filepath.Join(h.extraDir, name)))
	}
}

// standIn runs the stand-in of one plugin itself.
func (h *host) standIn(name string, c call) answer {
	h.t.Helper()
	r := h.prepare(c)
	r.cmd.Path = filepath.Join(h.extraDir, name)
	r.cmd.Args = []string{r.cmd.Path}
	h.must(r.cmd.Start())
	return r.wait()
}

// TestStandIn_bareAndStandIns: a list whose plugins are all stand-ins is the same list, to plugins, runtime and cache.
func TestStandIn_bareAndStandIns(t *testing.T) {
	t.Parallel()
	caps := map[string]any{"portMappings": []any{entry{"hostPort": 8080}}, "bandwidth": entry{"ingressRate": 2048}}
	args := [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "web-0"}}
	for _, v := range versions {
		if testing.Short() && v != "0.4.0" && v != "1.1.0" {
			continue
		}
		for _, names := range [][]string{{"a", "b", "c"}, {"b"}, {"a", "c"}} {
			t.Run(fmt.Sprintf("%q/%s", v, strings.Join(names, ",")), func(t *testing.T) {
				t.Parallel()
				h := newHost(t, "a", "b", "c")
				h.standIns()
				l := list{version: v, delegates: []entry{
					{"type": "a", "n": json.Number("12345678901234567"), "runtimeConfig": entry{"x": 1}},
					{"type": "b", "capabilities": entry{"portMappings": true}, "name": "own"},
					{"type": "c", "capabilities": entry{"portMappings": true, "bandwidth": true}, "args": entry{"cni": entry{"y": 2}}},
				}}
				bare, through := h.runtime(l.bare()), h.runtime(l.bare())
				var steps []step
				var want []outcome
				for _, verb := range []string{"STATUS", "ADD", "CHECK", "GC", "ADD", "CHECK", "DEL", "DEL"} {
					s := step{verb: verb, caps: caps, args: args, gc: &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}}
					steps, want = append(steps, s), append(want, bare.do(s))
				}
				h.addStandIns(names...)
				marked := list{delegates: slices.DeleteFunc(slices.Clone(l.delegates), func(e entry) bool {
					return !slices.Contains(names, typeOf(e))
				})}
				for i, s := range steps {
					same(t, h, marked, s, want[i], through.do(s))
					if t.Failed() {
						t.Fatalf("at step %d, %s", i+1, s.verb)
					}
				}
				if left := h.records(); len(left) > 0 {
					t.Errorf("records left: %v", left)
				}
			})
		}
	}
}

// TestStandIn_errors: a plugin's error is its own, with code, details and no more words.
func TestStandIn_errors(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b")
			h.on("b", verb, failure(50, "it is late", "try tomorrow"))
			h.standIns()
			l := list{version: "1.1.0", delegates: []entry{{"type": "a"}, {"type": "b"}}}
			bare, through := h.runtime(l.bare()), h.runtime(l.bare())
			run := func(r *runtime) error {
				if verb == "DEL" || verb == "CHECK" {
					r.do(step{verb: "ADD"})
				}
				return r.do(step{verb: verb}).err
			}
			want := asProblem(run(bare))
			h.addStandIns("a", "b")
			if d := cmp.Diff(want, asProblem(run(through))); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestStandIn_nextTry is the point of it: the first try fails in the middle, and Nomad tries again with no DEL in
// between. What the earlier try left is removed by the first stand-in, last link first, with what each of them got.
func TestStandIn_nextTry(t *testing.T) {
	t.Parallel()
	for i, failing := range []string{"a", "b", "c"} {
		t.Run(failing, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "loop", "a", "b", "c")
			h.standIns("a", "b", "c")
			h.on(failing, "ADD", "on 1", failure(7, "chain exists", "x"))
			r := h.runtime(list{version: "0.4.0", before: []entry{{"type": "loop"}}, delegates: abc}.bare())
			add := step{verb: "ADD", caps: map[string]any{"portMappings": []any{entry{"hostPort": 80}}, "bandwidth": entry{"ingressRate": 1}}}
			first := r.do(add)
			if want := fmt.Sprintf(`plugin type=%q failed (add): chain exists; x`, failing); first.err == nil || first.err.Error() != want {
				t.Errorf("got %v, want %s", first.err, want)
			}
			wantOrder(t, first.calls, "ADD loop"+strings.Join([]string{", ADD a", ", ADD b", ", ADD c"}[:i+1], "")+", DEL "+failing)

			second := r.do(add)
			if second.err != nil {
				t.Fatal(second.err)
			}
			dels := strings.Join([]string{"DEL b, ", "DEL a, "}[2-i:], "")
			wantOrder(t, second.calls, "ADD loop, "+dels+"ADD a, ADD b, ADD c")
			for _, d := range only(second.calls, "DEL") {
				conf := d.conf(t)
				for _, a := range first.calls[:i+1] {
					if a.Name == d.Name {
						if diff := cmp.Diff(a.conf(t)["runtimeConfig"], conf["runtimeConfig"]); diff != "" {
							t.Errorf("%s: runtimeConfig:\n%s", d, diff)
						}
					}
				}
				if diff := cmp.Diff(resultOf(string("abc"[i-1]), "0.4.0"), conf["prevResult"]); diff != "" {
					t.Errorf("%s: prevResult:\n%s", d, diff)
				}
			}
			if del := r.do(step{verb: "DEL"}); del.err != nil {
				t.Fatal(del.err)
			}
			if left := h.records(); len(left) > 0 {
				t.Errorf("records left: %v", left)
			}
		})
	}
}

// TestStandIn_noPrevResult: after a failed ADD libcni has none for DEL, and old firewall plugins refuse that, so that
// the first plugin's DEL is never reached (plugins#390).
func TestStandIn_noPrevResult(t *testing.T) {
	t.Parallel()
	for i, failing := range []string{"a", "b", "c"} {
		t.Run(failing, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b", "c")
			h.standIns("a", "b", "c")
			h.on(failing, "ADD", failure(7, "no", ""))
			r := h.runtime(list{version: "0.4.0", delegates: abc}.bare())
			if r.do(step{verb: "ADD"}).err == nil {
				t.Fatal("it works")
			}
			del := r.do(step{verb: "DEL"})
			if del.err != nil {
				t.Fatal(del.err)
			}
			if i == 0 {
				wantOrder(t, del.calls, "") // nothing has been left
			} else {
				wantOrder(t, del.calls, "DEL c, DEL b, DEL a")
			}
			for _, d := range del.calls {
				// Of the last link that is there.
				last := min(i-1, strings.Index("abc", d.Name))
				if diff := cmp.Diff(resultOf(string("abc"[last]), "0.4.0"), d.conf(t)["prevResult"]); diff != "" {
					t.Errorf("%s: prevResult:\n%s", d, diff)
				}
			}
			if left := h.records(); len(left) > 0 {
				t.Errorf("records left: %v", left)
			}
		})
	}
}

// TestStandIn_live: an attachment that has not failed is live. A second ADD of it fails as it would, and touches
// nothing; its DEL finds everything.
func TestStandIn_live(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "c")
	h.standIns("a", "b", "c")
	r := h.runtime(list{version: "1.0.0", delegates: abc}.bare())
	if err := r.do(step{verb: "ADD"}).err; err != nil {
		t.Fatal(err)
	}
	record, err := os.ReadFile(h.record1())
	h.must(err)
	h.on("a", "ADD", failure(7, "eth0 exists", ""))
	again := r.do(step{verb: "ADD"})
	if again.err == nil {
		t.Fatal("it works twice")
	}
	wantOrder(t, again.calls, "ADD a")
	if now, err := os.ReadFile(h.record1()); err != nil || string(now) != string(record) {
		t.Errorf("the record %s\nbecame %s, %v", record, now, err)
	}
	del := r.do(step{verb: "DEL"})
	if del.err != nil {
		t.Fatal(del.err)
	}
	wantOrder(t, del.calls, "DEL c, DEL b, DEL a")
}

// TestStandIn_secondADD: a plugin that takes a second ADD for nothing special does not make lockwrap forget the others.
func TestStandIn_secondADD(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "c")
	h.standIns("a", "b", "c")
	r := h.runtime(list{version: "1.0.0", delegates: abc}.bare())
	for range 2 {
		add := r.do(step{verb: "ADD"})
		if add.err != nil {
			t.Fatal(add.err)
		}
		wantOrder(t, add.calls, "ADD a, ADD b, ADD c")
	}
	h.on("c", "ADD", failure(7, "no", ""))
	if r.do(step{verb: "ADD"}).err == nil {
		t.Fatal("it works")
	}
	b, err := os.ReadFile(h.record1())
	h.must(err)
	rec := decode(t, string(b)).(map[string]any)
	if links := rec["delegates"].([]any); len(links) != 3 {
		t.Errorf("%d links on record: %s", len(links), b)
	}
}

// TestStandIn_twice: a list may have a plugin twice, and its second ADD is no second try.
func TestStandIn_twice(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	h.standIns("a", "b")
	r := h.runtime(list{version: "1.0.0", delegates: []entry{{"type": "a"}, {"type": "b"}, {"type": "b"}}}.bare())
	add := r.do(step{verb: "ADD"})
	if add.err != nil {
		t.Fatal(add.err)
	}
	wantOrder(t, add.calls, "ADD a, ADD b, ADD b")
	del := r.do(step{verb: "DEL"})
	if del.err != nil {
		t.Fatal(del.err)
	}
	wantOrder(t, del.calls, "DEL b, DEL b, DEL a")
	if left := h.records(); len(left) > 0 {
		t.Errorf("records left: %v", left)
	}
}

// TestStandIn_failedDEL: a chain whose DEL stopped half-way goes on where it stopped.
func TestStandIn_failedDEL(t *testing.T) {
	t.Parallel()
	for _, next := range []string{"ADD", "DEL"} {
		t.Run(next, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b", "c")
			h.standIns("a", "b", "c")
			r := h.runtime(list{version: "1.0.0", delegates: abc}.bare())
			if err := r.do(step{verb: "ADD"}).err; err != nil {
				t.Fatal(err)
			}
			h.on("b", "DEL", "on 1", failure(7, "busy", ""), "on 2", failure(7, "busy", ""), "on 3", failure(7, "busy", ""))
			del := r.do(step{verb: "DEL"})
			if del.err == nil {
				t.Fatal("it works")
			}
			wantOrder(t, del.calls, "DEL c, DEL b, DEL b, DEL b")
			o := r.do(step{verb: next})
			if o.err != nil {
				t.Fatal(o.err)
			}
			want := map[string]string{"ADD": "DEL b, DEL a, ADD a, ADD b, ADD c", "DEL": "DEL c, DEL b, DEL a"}[next]
			wantOrder(t, o.calls, want)
		})
	}
}

// TestStandIn_killed: a stand-in that dies leaves the attachment as failed as one that says so.
func TestStandIn_killed(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "c")
	h.standIns("a", "b", "c")
	started := filepath.Join(h.bin, "started")
	h.on("b", "ADD", "on 1", fmt.Sprintf("touch %q", started), "sleep 1m")
	conf := func(name, prevResult string) string {
		return fmt.Sprintf(`{"name":"net","cniVersion":"1.0.0","type":%q%s}`, name, prevResult)
	}
	h.standIn("a", call{verb: "ADD", conf: conf("a", "")}).ok(t)
	r := h.prepare(call{verb: "ADD", conf: conf("b", `,"prevResult":{"cniVersion":"1.0.0","dns":{"domain":"a"}}`)})
	r.cmd.Path = filepath.Join(h.extraDir, "b")
	r.cmd.Args = []string{r.cmd.Path}
	h.must(r.cmd.Start())
	eventually(t, "b runs", func() bool { _, err := os.Stat(started); return err == nil })
	r.signal(syscall.SIGKILL)
	r.wait()
	calls := h.calls()
	wantOrder(t, calls, "ADD a, ADD b")
	eventually(t, "b is dead as well", func() bool { return !alive(calls[1].Pid) })
	h.standIn("a", call{verb: "ADD", conf: conf("a", "")}).ok(t)
	wantOrder(t, h.calls(), "DEL b, DEL a, ADD a")
}

// TestStandIn_identity: who asks a stand-in who it is hears the real plugin, in every byte (nomad#20263). The bare run
// comes without CNI_PATH, VERSION with a dummy; both find the plugin in the host's directories, behind a file that is
// no program and behind further links to lockwrap.
func TestStandIn_identity(t *testing.T) {
	t.Parallel()
	h := newHost(t, "bridge")
	h.standIns("bridge")
	h.must(os.WriteFile(filepath.Join(h.extraDir, "noexec"), nil, 0o644))
	h.on("bridge", "", warn("CNI bridge plugin v1.10.0\n"), say("on both\n"), "exit 3")
	h.on("bridge", "VERSION", say(`{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}`), warn("x"), "exit 0")
	for _, verb := range []string{"", "VERSION"} {
		c := call{verb: verb, unset: []string{"CNI_PATH", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"}}
		if verb == "" {
			c.unset = append(c.unset, "CNI_COMMAND")
		} else {
			c.env = []string{"CNI_PATH=dummy"}
			c.unset = c.unset[1:]
		}
		a := h.standIn("bridge", c)
		want := answer{stdout: "on both\n", stderr: "CNI bridge plugin v1.10.0\n", exit: 3}
		if verb == "VERSION" {
			want = answer{stdout: `{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}`, stderr: "x"}
		}
		want.took = a.took
		if a != want {
			t.Errorf("%q: got %+v, want %+v", verb, a, want)
		}
	}
	if left := h.records(); len(left) > 0 {
		t.Errorf("records: %v", left)
	}
}

// TestStandIn_nothingBehind names the places where it has looked.
func TestStandIn_nothingBehind(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.standIns("bridge")
	h.must(os.Link(lockwrapBin, filepath.Join(h.bin, "bridge"))) // not itself, whatever the links
	e := h.standIn("bridge", call{verb: "ADD", conf: `{"name":"net","cniVersion":"1.0.0","type":"bridge"}`}).failure(t)
	if e.Code != 7 || !strings.Contains(e.Msg, h.bin) || strings.Contains(e.Msg, "not found") {
		t.Errorf("got %+v", e)
	}
	a := h.standIn("bridge", call{unset: []string{"CNI_COMMAND", "CNI_PATH"}})
	if a.exit != 1 || a.stdout != "" || !strings.Contains(a.stderr, h.bin) {
		t.Errorf("got %+v", a)
	}
}

// TestStandIn_wrappedList: a wrapped list whose plugins are stand-ins runs the real ones, under one lock, with one
// record; and a stand-in below a lockwrap, as bridge's IPAM plugin may be, runs at once.
func TestStandIn_wrappedList(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b", "ipam")
	h.standIns("a", "b", "ipam")
	h.on("a", "ADD", fmt.Sprintf("call ipam %q", `{"name":"net","cniVersion":"1.0.0","type":"ipam"}`))
	h.call(call{verb: "ADD", conf: h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})}).ok(t)
	wantOrder(t, h.calls(), "ADD a, ADD ipam, ADD b")
	h.record1()
	h.call(call{verb: "DEL", conf: h.conf("1.0.0", nil, entry{"type": "a"}, entry{"type": "b"})}).ok(t)
	wantOrder(t, h.calls(), "DEL b, DEL a")
	if left := h.records(); len(left) > 0 {
		t.Errorf("records left: %v", left)
	}
}

// TestStandIn_uselessRecord: a record that says nothing of the links is no reason to fail a DEL.
func TestStandIn_uselessRecord(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	h.standIns("a")
	h.on("a", "ADD", failure(7, "no", ""))
	r := h.runtime(list{version: "1.0.0", delegates: []entry{{"type": "a"}}}.bare())
	if r.do(step{verb: "ADD"}).err == nil {
		t.Fatal("it works")
	}
	path := h.record1()
	b, err := os.ReadFile(path)
	h.must(err)
	useless := strings.Replace(string(b), `"types":["a"]`, `"types":[]`, 1)
	if useless == string(b) {
		t.Fatalf("no types in %s", b)
	}
	h.must(os.WriteFile(path, []byte(useless), 0o600))
	if del := r.do(step{verb: "DEL"}); del.err != nil {
		t.Error(del.err)
	}
	if left := h.records(); len(left) > 0 {
		t.Errorf("records left: %v", left)
	}
}
