// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// hold takes a flock as some other process would; call the result to let go.
func hold(t *testing.T, path string) (release func()) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if os.IsNotExist(err) {
		fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatalf("flock %s: %v", path, err)
	}
	release = sync.OnceFunc(func() { unix.Close(fd) })
	t.Cleanup(release)
	return release
}

// waiters are the processes that the kernel lets wait for the lock, first come first.
func waiters(t *testing.T, path string) []int {
	t.Helper()
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return nil
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line) // 1: -> FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF
		if len(f) > 6 && f[1] == "->" && strings.HasSuffix(f[6], fmt.Sprintf(":%d", st.Ino)) {
			pids = append(pids, atoi(f[5]))
		}
	}
	return pids
}

func (h *host) awaitWaiters(n int) {
	h.t.Helper()
	eventually(h.t, fmt.Sprintf("%d wait for the lock", n), func() bool { return len(waiters(h.t, h.lockFile)) == n })
}

// TestLock_callsNeverOverlap is the point of it all (nomad#6567): one chain at a time, whatever the verb.
func TestLock_callsNeverOverlap(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	for _, verb := range []string{"ADD", "DEL", "CHECK", "GC"} {
		h.on("a", verb, "sleep 4ms")
		h.on("b", verb, "sleep 2ms")
	}
	conf := h.conf("1.1.0", nil, entry{"type": "a"}, entry{"type": "b"})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			verbs := [][]string{{"ADD", "DEL"}, {"DEL", "CHECK"}, {"ADD", "CHECK"}, {"GC", "ADD"}}[i%4]
			for _, verb := range verbs {
				if a := h.call(call{verb: verb, id: "c" + strconv.Itoa(i), conf: conf}); a.exit != 0 {
					t.Errorf("%s: %s%s", verb, a.stdout, a.stderr)
				}
			}
		})
	}
	wg.Wait()
	calls := h.calls()
	if len(calls) != 80 {
		t.Errorf("%d calls of plugins instead of 80", len(calls))
	}
	neverOverlap(t, calls)
}

// neverOverlap looks at delegates of different lockwraps, and that no other comes between those of one.
func neverOverlap(t *testing.T, calls []record) {
	t.Helper()
	slices.SortFunc(calls, func(a, b record) int { return int(a.Start - b.Start) })
	done := map[int]bool{}
	for i, c := range calls[1:] {
		before := calls[i]
		if c.Start < before.End || before.End == 0 {
			t.Errorf("%s of %d began before %s of %d had ended", c, c.Ppid, before, before.Ppid)
		}
		if c.Ppid != before.Ppid {
			done[before.Ppid] = true
		}
		if done[c.Ppid] {
			t.Errorf("%s of %d: another call ran in the middle of it", c, c.Ppid)
		}
	}
}

// TestLock_inOrderOfArrival: the kernel queues the waiters (kubernetes#85771).
func TestLock_inOrderOfArrival(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	release := hold(t, h.lockFile)
	var calls []*running
	for i := range 8 {
		verb := []string{"ADD", "DEL"}[i%2]
		calls = append(calls, h.start(call{verb: verb, id: "c" + strconv.Itoa(i), conf: h.conf("1.0.0", nil, entry{"type": "a"})}))
		h.awaitWaiters(i + 1)
	}
	release()
	for _, c := range calls {
		c.wait().ok(t)
	}
	for i, c := range h.calls() {
		if id, _ := c.getenv("CNI_CONTAINERID"); id != "c"+strconv.Itoa(i) {
			t.Errorf("turn %d was %s's", i, id)
		}
	}
}

// TestLock_neverWaits: a STATUS that waits turns a node NotReady (containerd#4666), and Nomad gives a bare run 3 s.
func TestLock_neverWaits(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	hold(t, h.lockFile)
	conf := h.conf("1.1.0", nil, entry{"type": "a"})
	for _, verb := range []string{"STATUS", "VERSION"} {
		a := h.call(call{verb: verb, conf: conf}).ok(t)
		if a.took > 10*time.Second {
			t.Errorf("%s took %v", verb, a.took)
		}
	}
	if got := order(h.calls()); len(got) != 1 || got[0] != "STATUS a" {
		t.Error(got)
	}
	bareRun(t, exec.Command(lockwrapBin))
}

// TestBareRun_asNomadDoes: nomad#20263, nerdctl netutil_unix.go, R21.
func TestBareRun_asNomadDoes(t *testing.T) {
	t.Parallel()
	open, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { open.Close(); w.Close() })
	tests := []struct {
		name string
		cmd  *exec.Cmd
		in   *os.File
	}{
		{name: "empty environment", cmd: exec.Command("env", "-i", lockwrapBin)},
		{name: "stdin open and silent", cmd: exec.Command(lockwrapBin), in: open},
		{name: "stdin closed", cmd: exec.Command("sh", "-c", `exec "$0" <&-`, lockwrapBin)},
		{name: "configuration broken", cmd: exec.Command("env", "LOCKWRAP_CONFIG=/does/not/exist", lockwrapBin)},
		{name: "empty verb", cmd: exec.Command("env", "CNI_COMMAND=", lockwrapBin)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.in != nil {
				tt.cmd.Stdin = tt.in
			}
			bareRun(t, tt.cmd)
		})
	}
}

func bareRun(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	if err := cmd.Run(); err != nil {
		t.Errorf("%v: %s", err, stderr.String())
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if stdout.Len() > 0 {
		t.Errorf("stdout: %s", stdout.String())
	}
	lines := strings.Split(stderr.String(), "\n")
	about := regexp.MustCompile(`^CNI lockwrap plugin (v\d+\.\d+\.\d+\S*)$`).FindStringSubmatch(lines[0])
	if about == nil || len(lines) < 2 || !strings.HasPrefix(lines[1], "CNI protocol versions supported: 0.1.0, ") {
		t.Fatalf("stderr: %s", stderr.String())
	}
	// Nomad (client/fingerprint/plugins_cni.go) takes the first word that is a version.
	version := regexp.MustCompile(`^v?\d+(\.\d+)*(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
	words := strings.Fields(stdout.String() + stderr.String())
	if i := slices.IndexFunc(words, version.MatchString); i < 0 || words[i] != about[1] {
		t.Errorf("Nomad would not see version %s in %q", about[1], words)
	}
}

// TestCHECK_lockHeld: it waits, but not to fail: Nomad destroys an allocation whose CHECK fails (nomad#24292).
func TestCHECK_lockHeld(t *testing.T) {
	t.Parallel()
	t.Run("waits", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, "a")
		release := hold(t, h.lockFile)
		r := h.start(call{verb: "CHECK", conf: h.conf("1.0.0", nil, entry{"type": "a"})})
		h.awaitWaiters(1)
		if len(h.peek()) > 0 {
			t.Error("ran without waiting")
		}
		released := monotonic()
		release()
		r.wait().ok(t)
		if calls := h.calls(); len(calls) != 1 || calls[0].Start < released {
			t.Errorf("%v", order(calls))
		}
	})
	t.Run("not for ever", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, "a")
		hold(t, h.lockFile)
		a := h.call(call{verb: "CHECK", conf: h.conf("1.0.0", entry{"lockTimeout": "300ms"}, entry{"type": "a"})}).ok(t)
		if !strings.Contains(a.stderr, "without the lock") {
			t.Errorf("does not say so: %s", a.stderr)
		}
		if got := order(h.calls()); len(got) != 1 || a.stdout != "" {
			t.Errorf("%v, stdout %q", got, a.stdout)
		}
	})
	t.Run("and where there can be none", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, "a")
		h.call(call{verb: "CHECK", conf: h.conf("1.0.0", entry{"lockFile": fakeBin + "/lock"}, entry{"type": "a"})}).ok(t)
	})
}

// TestADD_lockTimeout: the message lets the reader find the holder (plugins#561).
func TestADD_lockTimeout(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"ADD", "DEL", "GC"} {
		t.Run(verb+" behind a stranger", func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			hold(t, h.lockFile)
			a := h.call(call{verb: verb, conf: h.conf("1.1.0", entry{"lockTimeout": "1s"}, entry{"type": "a"})})
			e := a.failure(t)
			for _, want := range []string{"lockwrap: ", h.lockFile, "waited 1", fmt.Sprintf("pid %d", os.Getpid())} {
				if !strings.Contains(e.Msg, want) {
					t.Errorf("%q is not in %s", want, e.Msg)
				}
			}
			if e.Code != types.ErrTryAgainLater || a.took < time.Second {
				t.Errorf("code %d after %v", e.Code, a.took)
			}
			if len(h.calls()) > 0 || len(h.records()) > 0 {
				t.Error("something was done all the same")
			}
		})
	}
	t.Run("behind another lockwrap", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, "a")
		r := h.holdByLockwrap("917cdc42")
		e := h.call(call{verb: "ADD", conf: h.conf("1.0.0", entry{"lockTimeout": "1s"}, entry{"type": "a"})}).failure(t)
		for _, want := range []string{fmt.Sprintf("pid %d", r.cmd.Process.Pid), "ADD", "917cdc42", network} {
			if !strings.Contains(e.Msg, want) {
				t.Errorf("%q is not in %s", want, e.Msg)
			}
		}
		if !regexp.MustCompile(`for \d+(\.\d)?m?s`).MatchString(e.Msg) {
			t.Errorf("no age of the holder in %s", e.Msg)
		}
		h.letGo()
		r.wait().ok(t)
	})
}

// holdByLockwrap starts an ADD whose delegate a runs until letGo.
func (h *host) holdByLockwrap(id string) *running {
	h.t.Helper()
	h.on("a", "ADD", "on 1", "await "+strconv.Quote(filepath.Join(h.bin, "go")))
	r := h.start(call{verb: "ADD", id: id, conf: h.conf("1.0.0", nil, entry{"type": "a"})})
	eventually(h.t, "the delegate runs", func() bool { return len(h.peek()) == 1 })
	return r
}

func (h *host) letGo() {
	h.t.Helper()
	h.must(os.WriteFile(filepath.Join(h.bin, "go"), nil, 0o600))
}

// TestLock_waiterGivesUp: nobody would receive its result any more (plugins#561: thousands of dead waiters).
func TestLock_waiterGivesUp(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"ADD", "DEL", "CHECK", "GC"} {
		t.Run(verb+", caller killed", func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			release := hold(t, h.lockFile)
			sh := exec.Command("sh", "-c", `"$0"; :`, lockwrapBin)
			sh.Env = h.environ(call{verb: verb})
			sh.Stdin = strings.NewReader(h.conf("1.1.0", nil, entry{"type": "a"}))
			h.must(sh.Start())
			h.awaitWaiters(1)
			pid := waiters(t, h.lockFile)[0]
			h.must(sh.Process.Kill())
			_ = sh.Wait()
			eventually(t, "the waiter is gone", func() bool { return !alive(pid) })
			release()
			if len(h.calls()) > 0 {
				t.Error("a plugin was called")
			}
		})
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			hold(t, h.lockFile)
			r := h.start(call{verb: "ADD", conf: h.conf("1.0.0", nil, entry{"type": "a"})})
			h.awaitWaiters(1)
			r.signal(sig)
			if e := r.wait().failure(t); !strings.HasPrefix(e.Msg, "lockwrap: ") {
				t.Error(e.Msg)
			}
			if len(h.calls()) > 0 {
				t.Error("a plugin was called")
			}
		})
	}
}

// TestLock_fileContent: nothing written in the file ever decides (azure-container-networking#364).
func TestLock_fileContent(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, content string }{
		{"empty", ""},
		{"garbage", "\x00\xff{{{"},
		{"a pid", "7740"},
		{"pid 1", "1\n"},
		{"our pid", strconv.Itoa(os.Getpid())},
		{"a note of one who lives", fmt.Sprintf(`{"pid":%d,"verb":"ADD","group":%d,"since":"2020-01-01T00:00:00Z"}`, os.Getpid(), unix.Getpgrp())},
		{"a note with odd numbers", `{"pid":-1,"group":1,"Group":-1}`},
		{"long", strings.Repeat("x", 1<<20)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			h.must(os.Mkdir(h.run, 0o700))
			h.must(os.WriteFile(h.lockFile, []byte(tt.content), 0o644))
			h.must(os.Chmod(h.lockFile, 0o644)) // any user could lock it: tightened
			a := h.call(call{verb: "ADD", conf: h.conf("1.0.0", entry{"lockTimeout": "20s"}, entry{"type": "a"})}).ok(t)
			if a.took > 10*time.Second {
				t.Errorf("took %v", a.took)
			}
			h.modes()
		})
	}
}

// modes: another user who can open the lock file could stop the service.
func (h *host) modes() {
	h.t.Helper()
	want := map[string]os.FileMode{h.run: 0o700 | os.ModeDir, h.lockFile: 0o600}
	for _, r := range h.records() {
		want[filepath.Dir(r)] = 0o700 | os.ModeDir
		want[r] = 0o600
	}
	for path, mode := range want {
		fi, err := os.Stat(path)
		h.must(err)
		if fi.Mode() != mode {
			h.t.Errorf("%s has mode %v instead of %v", path, fi.Mode(), mode)
		}
	}
}

func TestLock_modes(t *testing.T) {
	t.Parallel()
	umasks := []string{"000", "022"}
	if os.Getuid() == 0 {
		umasks = append(umasks, "277") // only root can write to a directory that it makes then
	}
	for _, umask := range umasks {
		t.Run(umask, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			h.on("a", "ADD", "noread") // a umask of 277 keeps the fake from its own log
			h.must(os.WriteFile(filepath.Join(h.bin, "log"), nil, 0o600))
			cmd := exec.Command("sh", "-c", `umask "$1"; exec "$0"`, lockwrapBin, umask)
			cmd.Env = h.environ(call{verb: "ADD"})
			cmd.Stdin = strings.NewReader(h.conf("1.0.0", nil, entry{"type": "a"}))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if umask != "277" {
				h.modes()
			}
		})
	}
}

// TestLock_fileReplaced: whoever unlinks the file parts those before from those after, but never those after.
func TestLock_fileReplaced(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		replace func(h *host)
	}{
		{"unlinked", func(h *host) { h.must(os.Remove(h.lockFile)) }},
		{"replaced by rename", func(h *host) {
			h.must(os.WriteFile(h.lockFile+".new", nil, 0o600))
			h.must(os.Rename(h.lockFile+".new", h.lockFile))
		}},
		{"directory gone", func(h *host) { h.must(os.Rename(h.run, h.run+".old")) }}, // podman#10986
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			first, second := filepath.Join(h.bin, "first"), filepath.Join(h.bin, "second")
			h.on("a", "ADD", "on 1", "await "+strconv.Quote(first), "on 2", "await "+strconv.Quote(second))
			conf := h.conf("1.0.0", nil, entry{"type": "a"})
			a := h.start(call{verb: "ADD", id: "A", conf: conf})
			eventually(t, "A runs", func() bool { return len(h.peek()) == 1 })
			b := h.start(call{verb: "ADD", id: "B", conf: conf})
			h.awaitWaiters(1)
			tt.replace(h)
			c := h.start(call{verb: "ADD", id: "C", conf: conf})
			eventually(t, "C runs", func() bool { return len(h.peek()) == 2 })
			h.must(os.WriteFile(first, nil, 0o600))
			a.wait().ok(t)
			h.awaitWaiters(1) // B has seen that its lock is not the one any more
			h.must(os.WriteFile(second, nil, 0o600))
			c.wait().ok(t)
			b.wait().ok(t)
			calls := h.calls()
			var late []record
			for _, r := range calls {
				if id, _ := r.getenv("CNI_CONTAINERID"); id != "A" {
					late = append(late, r)
				}
			}
			neverOverlap(t, late)
		})
	}
}

// TestLock_directoryGone: tmpfs is cleaned, /run made anew (podman#10986).
func TestLock_directoryGone(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	conf := h.conf("1.0.0", nil, entry{"type": "a"})
	for range 2 {
		h.call(call{verb: "ADD", conf: conf}).ok(t)
		h.modes()
		h.must(os.RemoveAll(h.run))
	}
	h.call(call{verb: "DEL", conf: conf}).ok(t)
}

// TestLock_cannotBe: no lock, no change (code 5).
func TestLock_cannotBe(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		make func(h *host) string
	}{
		{"below a file", func(h *host) string { return filepath.Join(fakeBin, "dir", "lock") }},
		{"a directory", func(h *host) string { return h.bin }},
		{"a pipe", func(h *host) string {
			h.must(unix.Mkfifo(filepath.Join(h.bin, "fifo"), 0o600))
			return filepath.Join(h.bin, "fifo")
		}},
		{"a device", func(h *host) string { return "/dev/null" }},
		{"link into nowhere", func(h *host) string {
			link := filepath.Join(h.bin, "dangling")
			h.must(os.Symlink("/proc/no/such/dir", link))
			return filepath.Join(link, "lock")
		}},
	}
	for _, tt := range tests {
		for _, verb := range []string{"ADD", "DEL", "GC"} {
			t.Run(tt.name+" "+verb, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, "a")
				path := tt.make(h)
				e := h.call(call{verb: verb, conf: h.conf("1.1.0", entry{"lockFile": path, "lockTimeout": "5s"}, entry{"type": "a"})}).failure(t)
				if e.Code != types.ErrIOFailure || !strings.Contains(e.Msg, path) {
					t.Errorf("%+v", e)
				}
				if len(h.calls()) > 0 || len(h.records()) > 0 {
					t.Error("something was done all the same")
				}
			})
		}
	}
}

// TestLock_notInherited: a helper that a delegate leaves behind would keep the host locked.
func TestLock_notInherited(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	conf := h.conf("1.1.0", nil, entry{"type": "a"}, entry{"type": "b"})
	for _, verb := range []string{"ADD", "CHECK", "GC", "STATUS", "DEL"} {
		h.call(call{verb: verb, conf: conf}).ok(t)
	}
	calls := h.calls()
	if len(calls) != 10 {
		t.Error(order(calls))
	}
	for _, c := range calls {
		for _, fd := range c.Fds {
			n, target, _ := strings.Cut(fd, " ")
			switch {
			case strings.HasPrefix(target, h.run):
				t.Errorf("%s has %s open", c, target)
			case n <= "2" && len(n) == 1 && !strings.HasPrefix(target, "pipe:"):
				t.Errorf("%s: descriptor %s is %s", c, n, target)
			}
		}
		if c.Pgid != c.Pid {
			t.Errorf("%s is not in a process group of its own", c)
		}
	}
}

// TestLock_below is R47: a delegate that calls a lockwrap neither waits for itself nor locks twice.
func TestLock_below(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		inner  func(h *host) string // lockFile of the inner one
		locked bool                 // by the inner one itself
	}{
		{"same lock", func(h *host) string { return h.lockFile }, false},
		{"another lock", func(h *host) string { return filepath.Join(h.run, "other") }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b")
			inner := h.conf("1.0.0", entry{"lockFile": tt.inner(h), "lockTimeout": "5s"}, entry{"type": "b"})
			for _, verb := range []string{"ADD", "CHECK", "DEL"} {
				h.on("a", verb, "call lockwrap "+strconv.Quote(inner))
				h.call(call{verb: verb, conf: h.conf("1.0.0", entry{"lockTimeout": "5s"}, entry{"type": "a"})}).ok(t)
				calls := h.calls()
				if got := strings.Join(order(calls), ","); got != verb+" a,"+verb+" b" {
					t.Fatal(got)
				}
				outer, _ := calls[0].getenv("LOCKWRAP_HELD")
				below, _ := calls[1].getenv("LOCKWRAP_HELD")
				if (outer != below) != tt.locked {
					t.Errorf("marks are %q and below it %q", outer, below)
				}
			}
			if left := h.records(); len(left) > 0 {
				t.Errorf("records left: %v", left)
			}
		})
	}
}

// TestLock_staleMark: a daemon that a delegate once started carries the mark for ever; it must not count.
func TestLock_staleMark(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	holder := h.holdByLockwrap("holder")
	mark, ok := h.peek()[0].getenv("LOCKWRAP_HELD")
	if !ok {
		t.Fatal("no mark")
	}
	conf := h.conf("1.0.0", entry{"lockTimeout": "500ms"}, entry{"type": "a"})
	for _, m := range []string{
		mark, // of one who holds, and is not above us
		strings.Replace(mark, strconv.Itoa(holder.cmd.Process.Pid), "1", 1),
		strings.Replace(mark, strconv.Itoa(holder.cmd.Process.Pid), strconv.Itoa(os.Getpid()), 1), // above us, but no holder
		h.lockFile, "1", "yes", "",
	} {
		a := h.call(call{verb: "ADD", conf: conf, env: []string{"LOCKWRAP_HELD=" + m}})
		if e := a.failure(t); e.Code != types.ErrTryAgainLater {
			t.Errorf("mark %q: %+v", m, e)
		}
	}
	if calls := h.calls(); len(calls) != 1 {
		t.Errorf("ran without the lock: %v", order(calls))
	}
	h.letGo()
	holder.wait().ok(t)
}

// TestLock_othersLocks: lockwrap's lock is its own, and nobody else's is lockwrap's (nerdctl#3783).
func TestLock_othersLocks(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	conf := h.conf("1.1.0", entry{"lockTimeout": "2s"}, entry{"type": "a"})
	h.call(call{verb: "ADD", conf: conf}).ok(t)
	for _, path := range []string{h.bin, h.run, filepath.Join(h.run, "attachments"), filepath.Dir(h.run), lockwrapDir, lockwrapBin, fakeBin} {
		hold(t, path)
	}
	for _, r := range h.records() {
		hold(t, r)
	}
	for _, verb := range []string{"CHECK", "GC", "DEL", "ADD"} {
		if a := h.call(call{verb: verb, conf: conf}).ok(t); strings.Contains(a.stderr, "without the lock") {
			t.Error(a.stderr)
		}
	}
	if got := len(h.calls()); got != 5 {
		t.Errorf("%d calls", got)
	}
}
