// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
)

// heldVariable marks the environment of everything that runs under the lock,
// with the holder's pid and the lock file. A lockwrap that finds it there is
// below the holder and must not wait for it.
const heldVariable = "LOCKWRAP_HELD"

func heldMark(pid int, path string) string { return fmt.Sprintf("%d:%s", pid, path) }

// heldAbove reports whether a lockwrap above this one holds the lock at path. The
// mark alone does not count: a daemon that a delegate once started carries it
// for ever. What counts is that an ancestor holds the lock, by whatever path.
//
// A look can miss the holder while many come and go (see readLocks), and whoever
// takes itself for outside then waits for its own parent, or takes the parent's
// work for what a dead one has left. So with the mark of an ancestor at hand it
// is believed that nobody holds the lock only if that is seen again and again.
func heldAbove(environ []string, path string) bool {
	mark, marked := lookupEnv(environ, heldVariable)
	if !marked {
		return false
	}
	number, _, _ := strings.Cut(mark, ":")
	pid, err := strconv.Atoi(number)
	below := err == nil && isAncestor(pid)
	const looks = 20
	for look := 1; ; look++ {
		holder, _ := lockUsers(path)
		if holder != 0 || !below || look == looks {
			return holder != 0 && isAncestor(holder)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// hostLock is the lock of the host while it is held.
type hostLock struct {
	file *flock.Flock
	note note
	out  *os.File // the lock file, for the note
}

// lockHost waits for the host's lock, at most timeout long and until ctx is
// done. Waiting is left to the kernel, which serves in order; polling would let
// late comers overtake (kubernetes#85771).
//
// Errors: code 11 after the timeout, with who holds the lock; code 5 if there
// can be no lock file or no lock on it.
func lockHost(ctx context.Context, path string, timeout time.Duration, n note) (*hostLock, *types.Error) {
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errLockTimeout)
	defer cancel()
	for {
		file, err := openAndLock(ctx, path)
		// Somebody may have removed or replaced the file while we waited for
		// it. Whoever comes next would lock another file than ours.
		if err == nil && !isStillThere(file, path) {
			_ = file.Unlock()
			continue
		}
		if err == nil {
			if err = checkLockFile(path, filepath.Dir(path)); err != nil {
				_ = file.Unlock()
			}
		}
		switch {
		case errors.Is(err, errLockTimeout):
			return nil, timeoutError(path, time.Since(start))
		case err != nil && ctx.Err() != nil:
			return nil, ownError(errOther, "nothing was changed", "gave up waiting for %s: %w", path, err)
		case err != nil:
			return nil, ownError(types.ErrIOFailure,
				"lockwrap must run as root, and needs a lock file on a file system that can lock, in a directory that only root can write to; see lockFile",
				"cannot lock %q: %w", path, err)
		}
		l := &hostLock{file: file, note: n}
		l.begin(path)
		return l, nil
	}
}

var errLockTimeout = errors.New("lock timeout")

func openAndLock(ctx context.Context, path string) (*flock.Flock, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// Any other user who can open the file could lock it and stop the service.
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if info, err := os.Stat(dir); err == nil && filepath.Base(dir) == pluginName && info.Mode().Perm() != 0o700 {
		_ = os.Chmod(dir, 0o700) // it is ours, unlike /run
	}
	if err := checkLockFile(path, dir); err != nil {
		return nil, err
	}
	file := flock.New(path, flock.SetPermissions(0o600))
	locked := make(chan error)
	go func() {
		err := file.Lock()
		// The directory can vanish between MkdirAll and here.
		for tries := 0; errors.Is(err, syscall.EINTR) || errors.Is(err, fs.ErrNotExist) && tries < 3; tries++ {
			_ = os.MkdirAll(dir, 0o700)
			err = file.Lock()
		}
		select {
		case locked <- err:
		case <-ctx.Done():
			_ = file.Unlock()
		}
	}()
	select {
	case err := <-locked:
		return file, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func isStillThere(file *flock.Flock, path string) bool {
	locked, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(locked, there)
}

func timeoutError(path string, waited time.Duration) *types.Error {
	holder, waiters := lockUsers(path)
	held := "held by a process that cannot be seen from here"
	if holder != 0 {
		held = "held by " + describeHolder(path, holder)
	}
	return ownError(types.ErrTryAgainLater,
		fmt.Sprintf(`others waiting: %d; run "lockwrap status"; raise "lockTimeout" if the holder is only slow`,
			len(slices.DeleteFunc(waiters, func(pid int) bool { return pid == os.Getpid() }))),
		"waited %s for %s, %s", round(waited), path, held)
}

// begin writes the holder's note, after waiting for what a holder before us who
// was killed left running. Nothing here can fail the call.
func (l *hostLock) begin(path string) {
	l.note.PID, l.note.Since = os.Getpid(), time.Now()
	l.note.Session, _ = unix.Getsid(0)
	l.note.Mark = heldMark(os.Getpid(), path)
	out, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return
	}
	locked, err1 := l.file.Stat()
	opened, err2 := out.Stat()
	if err1 != nil || err2 != nil || !os.SameFile(locked, opened) {
		_ = out.Close() // replaced this very moment; the note is for readers only
		return
	}
	l.out = out
	if dead := readNote(path); dead.Group > 0 && dead.Mark != "" {
		waitForStragglers(dead.Mark, inSession(dead.Session, dead.Started))
	}
	l.running(0, 0, "")
}

// running notes the delegate that runs now, and its process group.
func (l *hostLock) running(group int, started uint64, plugin string) {
	if l.out == nil {
		return
	}
	l.note.Group, l.note.Started, l.note.Plugin = group, started, plugin
	data, err := json.Marshal(l.note)
	if err != nil {
		return
	}
	data = append(data, '\n')
	_, _ = l.out.WriteAt(data, 0)
	_ = l.out.Truncate(int64(len(data)))
}

// unlock gives the lock to the next in the queue. The file stays: removing it
// would give two waiters two different files.
func (l *hostLock) unlock() {
	if l.out != nil {
		_ = l.out.Truncate(0)
		_ = l.out.Close()
	}
	faultPoint("note removed")
	_ = l.file.Unlock()
}

// watchCaller returns a context that is cancelled when the process that called
// lockwrap has ended. Nobody is left then to receive a result.
func watchCaller(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := func() { cancel(nil) }
	caller := os.Getppid()
	// 0 is a caller in another pid namespace, 1 may have adopted us long ago.
	if caller <= 1 {
		return ctx, stop
	}
	fd, err := unix.PidfdOpen(caller, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		if os.Getppid() != caller {
			cancel(errCallerGone)
		}
		return ctx, stop // a kernel before 5.3 can't tell
	}
	if os.Getppid() != caller {
		cancel(errCallerGone)
		return ctx, stop
	}
	// Go's poller waits for it; unix.Poll would keep a thread.
	ended, err := os.NewFile(uintptr(fd), "caller").SyscallConn()
	if err != nil {
		return ctx, stop
	}
	go func() {
		err := ended.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err == nil && n > 0
		})
		if err == nil {
			cancel(errCallerGone)
		}
	}()
	return ctx, stop
}
