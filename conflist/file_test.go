// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// writeFile needs a mode with all its bits: os.WriteFile leaves some out.
func writeFile(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t *testing.T, path string) *File {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// mustHave checks the content of a file, and that nothing else has been left in
// its directory.
func mustHave(t *testing.T, path, content string, files int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(data) != content {
		t.Errorf("%s has %q, not %q", path, data, content)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != files {
		t.Errorf("there are %v", entries)
	}
}

func TestReplace(t *testing.T) {
	for _, mode := range []fs.FileMode{0o600, 0o644, 0o666, 0o440, 0o644 | fs.ModeSetuid, 0o644 | fs.ModeSticky} {
		path := filepath.Join(t.TempDir(), "a.conflist")
		writeFile(t, path, "old", mode)
		if err := mustOpen(t, path).Replace([]byte("new")); err != nil {
			t.Fatal(err)
		}
		mustHave(t, path, "new", 1)
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("mode %v became %v, %v", mode, info.Mode(), err)
		}
	}
}

// Links lead to another directory, and that is where the file is.
func TestReplace_link(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"real", "net.d"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	target := filepath.Join(dir, "real", "b.json")
	writeFile(t, target, "old", 0o644)
	for link, to := range map[string]string{"net.d/a.conflist": "../net.d/second", "net.d/second": "../real/b.json"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := mustOpen(t, filepath.Join(dir, "net.d/a.conflist")).Replace([]byte("new")); err != nil {
		t.Fatal(err)
	}
	mustHave(t, target, "new", 1)
	mustHave(t, filepath.Join(dir, "net.d/a.conflist"), "new", 2)
}

// The other name would keep the old content, and a scanner would find two lists.
func TestReplace_hardLink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.conflist")
	writeFile(t, path, "old", 0o644)
	if err := os.Link(path, path+".2"); err != nil {
		t.Fatal(err)
	}
	if err := mustOpen(t, path).Replace([]byte("new")); err == nil || !strings.Contains(err.Error(), "2 hard links") {
		t.Errorf("got %v", err)
	}
	mustHave(t, path, "old", 2)
}

func TestReplace_attributes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.conflist")
	writeFile(t, path, "old", 0o644)
	const name, value = "user.lockwrap", "kept"
	if err := unix.Setxattr(path, name, []byte(value), 0); errors.Is(err, unix.ENOTSUP) {
		t.Log("the file system has no extended attributes, nothing to keep")
		return
	} else if err != nil {
		t.Fatal(err)
	}
	if err := mustOpen(t, path).Replace([]byte("new")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 10)
	n, err := unix.Getxattr(path, name, got)
	if err != nil || string(got[:n]) != value {
		t.Errorf("got %q, %v", got[:max(n, 0)], err)
	}
	mustHave(t, path, "new", 1)
}

// An editor that was faster than us must not lose its work.
func TestReplace_changedMeanwhile(t *testing.T) {
	changes := map[string]func(path string) error{
		"another size": func(path string) error { return os.WriteFile(path, []byte("theirs"), 0o644) },
		"another time": func(path string) error {
			return errors.Join(os.WriteFile(path, []byte("odd"), 0o644), os.Chtimes(path, time.Time{}, time.Unix(1, 0)))
		},
		"another file": func(path string) error {
			return errors.Join(os.WriteFile(path+"~", []byte("odd"), 0o644), os.Chtimes(path+"~", time.Time{}, time.Unix(2, 0)), os.Rename(path+"~", path))
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.conflist")
			writeFile(t, path, "old", 0o644)
			if err := os.Chtimes(path, time.Time{}, time.Unix(2, 0)); err != nil {
				t.Fatal(err)
			}
			f := mustOpen(t, path)
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			theirs, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Replace([]byte("new")); err == nil || !strings.Contains(err.Error(), "somebody else has just changed the file") {
				t.Errorf("got %v", err)
			}
			mustHave(t, path, string(theirs), 1)
		})
	}
}

func TestOpen_noFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "loop"), filepath.Join(dir, "none"), "/dev/null"} {
		if _, err := Open(path); err == nil {
			t.Errorf("opened %s", path)
		}
	}
}
