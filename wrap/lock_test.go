// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

var newGroup = &syscall.SysProcAttr{Setpgid: true}

func mustLock(t *testing.T, path string) *hostLock {
	t.Helper()
	l, err := lockHost(t.Context(), path, 10*time.Second, note{Verb: "ADD", Network: "web", Container: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// awaitWaiters returns when n wait for the lock.
func awaitWaiters(path string, n int) {
	for {
		if _, waiters := lockUsers(path); len(waiters) >= n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestLockHost_modes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "lockwrap")
	path := filepath.Join(dir, "lock")
	mustLock(t, path).unlock()
	for p, want := range map[string]os.FileMode{dir: 0o700, path: 0o600} {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", p, info.Mode().Perm(), want)
		}
	}
	// Anybody who can open the file can lock it.
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	mustLock(t, path).unlock()
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("the lock file is left with mode %o", info.Mode().Perm())
	}
}

func TestLockHost_timeout(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	defer mustLock(t, path).unlock()
	_, err := lockHost(t.Context(), path, 50*time.Millisecond, note{})
	if err == nil || err.Code != types.ErrTryAgainLater {
		t.Fatalf("got %v, want code 11", err)
	}
	for _, want := range []string{"waited", path, "pid ", "lockwrap ADD", "container c1", "network web"} {
		if !strings.Contains(err.Msg, want) {
			t.Errorf("%q does not say %q", err.Msg, want)
		}
	}
}

func TestLockHost_givesUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held := mustLock(t, path)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		awaitWaiters(path, 1)
		cancel(errCallerGone)
	}()
	if _, err := lockHost(ctx, path, time.Minute, note{}); err == nil || err.Code != errOther {
		t.Fatalf("got %v, want code %d", err, errOther)
	}
	// The lock that the abandoned wait gets later is given back.
	held.unlock()
	mustLock(t, path).unlock()
}

// A file that was removed or replaced during the wait is not the one that others
// lock (podman#10986 has the directory vanish).
func TestLockHost_replaced(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(path string) error
	}{
		{"removed", os.Remove},
		{"directory removed", func(path string) error { return os.RemoveAll(filepath.Dir(path)) }},
		{"replaced", func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "lockwrap", "lock")
			first := mustLock(t, path)
			got := make(chan *hostLock)
			go func() { got <- mustLock(t, path) }()
			awaitWaiters(path, 1)
			if err := tt.change(path); err != nil {
				t.Fatal(err)
			}
			first.unlock()
			second := <-got
			defer second.unlock()
			if !isStillThere(second.file, path) {
				t.Error("holds the lock of a file that is gone")
			}
		})
	}
}

func TestLockHost_noLockWithoutFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "no", "such"), dangling); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"below a file": filepath.Join(file, "lock"), "a directory": dir, "a fifo": fifo, "a dangling link": dangling,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := lockHost(t.Context(), path, 10*time.Second, note{})
			if err == nil || err.Code != types.ErrIOFailure || !strings.Contains(err.Msg, path) {
				t.Fatalf("got %v, want code 5 and %s", err, path)
			}
			if strings.Contains(err.Msg, "no such file or directory") {
				t.Errorf("go-cni takes %q for a success of DEL", err.Msg)
			}
		})
	}
}

// What is in the file never decides (azure-container-networking#364).
func TestLockHost_staleContent(t *testing.T) {
	for _, content := range []string{"", "7740\n", "garbage", `{"pid": 7740, "group": 7740}`, `{"pid": "x"}`} {
		path := filepath.Join(t.TempDir(), "lock")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		mustLock(t, path).unlock()
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("content %q made the lock take %s", content, took)
		}
	}
}

// Waiters are served in the order in which they came.
func TestLockHost_order(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first := mustLock(t, path)
	var mu sync.Mutex
	var served []int
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			l := mustLock(t, path)
			mu.Lock()
			served = append(served, i)
			mu.Unlock()
			l.unlock()
		})
		awaitWaiters(path, i+1)
	}
	first.unlock()
	wg.Wait()
	if !slices.IsSorted(served) {
		t.Errorf("served in the order %v", served)
	}
}

func TestHeldAbove(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	defer mustLock(t, path).unlock()
	for name, mark := range map[string]string{
		"ourselves, who are no ancestor": heldMark(os.Getpid(), path),
		"a parent who holds nothing":     heldMark(os.Getppid(), path),
		"another lock":                   heldMark(os.Getppid(), path+"2"),
		"garbage":                        "yes",
	} {
		if heldAbove([]string{heldVariable + "=" + mark}, path) {
			t.Errorf("%s: would run without the lock", name)
		}
	}
}
