// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// host is one machine in small: a directory of fake plugins with their log, and where lockwrap keeps lock and records.
type host struct {
	t        *testing.T
	bin      string // the fakes
	run      string // lock file and records
	lockFile string
	netns    string   // a path that does not exist: the fakes do not care
	extraDir string   // one more directory on CNI_PATH, before all others
	env      []string // for whatever runs here
}

func newHost(t *testing.T, names ...string) *host {
	t.Helper()
	dir := t.TempDir()
	h := &host{
		t:        t,
		bin:      filepath.Join(dir, "bin"),
		run:      filepath.Join(dir, "run"),
		lockFile: filepath.Join(dir, "run", "lock"),
		netns:    filepath.Join(dir, "netns"),
	}
	h.must(os.Mkdir(h.bin, 0o755))
	h.link(names...)
	return h
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) link(names ...string) {
	h.t.Helper()
	for _, n := range names {
		h.must(os.Link(fakeBin, filepath.Join(h.bin, n)))
	}
}

// path is the CNI_PATH of every call on this host.
func (h *host) path() []string {
	dirs := []string{h.bin, lockwrapDir}
	if h.extraDir != "" {
		dirs = slices.Insert(dirs, 0, h.extraDir)
	}
	return dirs
}

// on tells plugin what to do when it is called with verb: see testdata/fakeplugin for the steps. No steps: succeed.
func (h *host) on(plugin, verb string, steps ...string) {
	h.t.Helper()
	if len(steps) == 0 {
		h.must(os.Remove(filepath.Join(h.bin, plugin+"."+verb)))
		return
	}
	h.must(os.WriteFile(filepath.Join(h.bin, plugin+"."+verb), []byte(strings.Join(steps, "\n")+"\n"), 0o600))
}

func say(s string) string  { return "stdout " + strconv.Quote(s) }
func warn(s string) string { return "stderr " + strconv.Quote(s) }

// failure is how a plugin reports an error by the book.
func failure(code int, msg, details string) string {
	return say(fmt.Sprintf(`{"cniVersion":"1.0.0","code":%d,"msg":%q,"details":%q}`, code, msg, details)) + "\nexit 1"
}

// record is one call of a fake as the fake saw it.
type record struct {
	Name, Verb      string
	Pid, Ppid, Pgid int
	Argv            string
	Cwd             string
	Env             []string // sorted: the order comes from a map in libcni
	Fds             []string
	Status          string
	Stdin           string
	Start, End      int64 // monotonic; End is 0 when the fake was killed
	Children        []int
}

func (r record) String() string { return r.Verb + " " + r.Name }

// calls gives the log since the last call of it and empties it.
func (h *host) calls() []record {
	h.t.Helper()
	path := filepath.Join(h.bin, "log")
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	h.must(err)
	h.must(os.Truncate(path, 0))
	calls, rest := parseLog(b)
	if len(rest) > 0 {
		h.t.Fatalf("broken log at %.80q", rest)
	}
	return calls
}

// peek gives the log and leaves it. A fake may be writing it, so the end of it may be missing.
func (h *host) peek() []record {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.bin, "log"))
	if err != nil {
		return nil
	}
	calls, _ := parseLog(b)
	return calls
}

// parseLog returns the records, and what is no whole record behind them.
func parseLog(b []byte) (out []record, rest []byte) {
	running := map[string]int{} // pid: index into out
	for len(b) > 0 {
		f, whole := map[string]string{}, b
		for b[0] != '\n' {
			head, rest, ok := bytes.Cut(b, []byte("\n"))
			key, size, _ := strings.Cut(string(head), " ")
			n, err := strconv.Atoi(size)
			if !ok || err != nil || len(rest) < n+2 {
				return out, whole
			}
			f[key], b = string(rest[:n]), rest[n+1:]
		}
		b = b[1:]
		if f["event"] == "start" {
			running[f["pid"]] = len(out)
			env := strings.Split(strings.TrimSuffix(f["env"], "\x00"), "\x00")
			slices.Sort(env)
			out = append(out, record{
				Name: f["name"], Verb: f["verb"], Pid: atoi(f["pid"]), Ppid: atoi(f["ppid"]), Pgid: atoi(f["pgid"]),
				Argv: f["argv"], Cwd: f["cwd"], Env: env, Fds: strings.Split(f["fds"], "\n"),
				Status: inheritedState(f["status"]), Start: int64(atoi(f["t"])),
			})
			continue
		}
		i, ok := running[f["pid"]]
		if !ok { // its start was in an earlier part of the log
			continue
		}
		switch f["event"] {
		case "stdin":
			out[i].Stdin = f["stdin"]
		case "child":
			out[i].Children = append(out[i].Children, atoi(f["child"]))
		case "end":
			out[i].End = int64(atoi(f["t"]))
			delete(running, f["pid"])
		}
	}
	return out, nil
}

// inheritedState picks from /proc/PID/status what a process gets from its parent and could be hurt by.
func inheritedState(status string) string {
	var keep []string
	for line := range strings.Lines(status) {
		switch key, _, _ := strings.Cut(line, ":"); key {
		case "Umask", "SigBlk", "SigIgn", "NoNewPrivs", "Seccomp", "CapEff", "CapBnd", "Uid", "Gid":
			keep = append(keep, strings.TrimSpace(line))
		}
	}
	return strings.Join(keep, "\n")
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// monotonic is the clock of the fakes.
func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

// order is the log in short: "ADD a", "ADD b", ...
func order(calls []record) []string {
	out := []string{}
	for _, c := range calls {
		out = append(out, c.String())
	}
	return out
}

func only(calls []record, verb string) []record {
	return slices.DeleteFunc(slices.Clone(calls), func(r record) bool { return r.Verb != verb })
}

// conf is the stdin of a call as values; numbers stay as they were written.
func (r record) conf(t *testing.T) map[string]any {
	t.Helper()
	v, _ := decode(t, r.Stdin).(map[string]any)
	return v
}

func decode(t *testing.T, s string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("not JSON: %v: %.200q", err, s)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Fatalf("more than one JSON document: %.200q", s)
	}
	return v
}

// getenv gives the value of key, and whether it is set.
func (r record) getenv(key string) (string, bool) {
	for _, kv := range r.Env {
		if v, ok := strings.CutPrefix(kv, key+"="); ok {
			return v, true
		}
	}
	return "", false
}

// eventually waits for cond; for what another process does in its own time.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for range 2000 {
		if cond() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("never happened: %s", what)
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// panicked tells a stack trace of lockwrap's from one of a fake's.
func panicked(output string) bool {
	return strings.Contains(output, "goroutine ") && strings.Contains(output, "github.com/lockwrap/lockwrap/wrap.")
}
