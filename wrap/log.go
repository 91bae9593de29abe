// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// callLog is where a call's logs and the delegates' stderr go: into logFile at
// once, and to stderr at the end. A runtime that does not read its pipe would
// stop us when it is full, with the host's lock in hand.
type callLog struct {
	mu   sync.Mutex
	late bytes.Buffer
	file *os.File // nil if there is none
}

// openLog's error is no reason to refuse a container; there is a log in any
// case.
func openLog(path string) (*callLog, error) {
	l := &callLog{}
	if path == "" {
		return l, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return l, err
	}
	// Not blocking: opening a fifo would wait for its reader. In /tmp, a link
	// could be another user's, and lead to any of root's files.
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND | syscall.O_NONBLOCK | syscall.O_NOFOLLOW
	if at := lookAt(path); len(at) > 0 && isOurs(at[0].Uid) {
		flags &^= syscall.O_NOFOLLOW
	}
	file, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return l, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = file.Close()
		return l, &os.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	l.file = file
	return l, nil
}

func (l *callLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_, _ = l.file.Write(p)
	}
	return l.late.Write(p)
}

func (l *callLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.late.WriteTo(os.Stderr)
}

// timestamp shows a line's time in full: how long the lock takes from
// one call to the next is told by two calls' lines.
func timestamp(_ []string, attr slog.Attr) slog.Attr {
	if attr.Value.Kind() == slog.KindTime {
		attr.Value = slog.StringValue(attr.Value.Time().Format(time.RFC3339Nano))
	}
	return attr
}
