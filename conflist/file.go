// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// File is a file that can be replaced in one step.
type File struct {
	Data []byte

	target string // behind all links
	info   fs.FileInfo
}

// Open reads a file. Errors are *fs.PathError.
func Open(path string) (*File, error) {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(target)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	data, err := os.ReadFile(target)
	if err != nil {
		return nil, err
	}
	return &File{Data: data, target: target, info: info}, nil
}

// keepAttributes gives the new file what the old one has beside its content:
// owner, access control list, security label, mode.
func (f *File) keepAttributes(temp *os.File) error {
	if owner, ok := f.info.Sys().(*syscall.Stat_t); ok {
		if err := temp.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return fmt.Errorf("cannot keep the owner: %w", err)
		}
		if owner.Nlink > 1 {
			return fmt.Errorf("it has %d hard links, and the others would keep the old content; make them symbolic links", owner.Nlink)
		}
	}
	names := make([]byte, 64<<10)
	n, err := unix.Listxattr(f.target, names)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("cannot keep the extended attributes: %w", err)
	}
	for _, name := range strings.FieldsFunc(string(names[:max(n, 0)]), func(r rune) bool { return r == 0 }) {
		value := make([]byte, 64<<10)
		n, err := unix.Getxattr(f.target, name, value)
		if err == nil {
			err = unix.Fsetxattr(int(temp.Fd()), name, value[:n], 0)
		}
		if err != nil {
			return fmt.Errorf("cannot keep the extended attribute %s: %w", name, err)
		}
	}
	// Last: a new owner or access list changes it.
	return temp.Chmod(f.info.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky))
}

// Replace puts new content in the file's place, in one step and on disk before
// it returns: runtimes scan the directory at any time, and one unreadable file
// there stops them all. Mode and owner stay; a link is followed. On error the
// file is as it was.
//
// The temporary file's name ends in digits, so no scanner takes it for a list.
func (f *File) Replace(data []byte) error {
	dir := filepath.Dir(f.target)
	temp, err := renameio.NewPendingFile(f.target,
		renameio.WithTempDir(dir),
		renameio.WithStaticPermissions(f.info.Mode().Perm()))
	if err != nil {
		return err
	}
	defer temp.Cleanup()
	if _, err := temp.Write(data); err != nil {
		return err
	}
	if err := f.keepAttributes(temp.File); err != nil { // the kernel takes some away at a write
		return err
	}
	if now, err := os.Stat(f.target); err != nil || !os.SameFile(now, f.info) ||
		now.ModTime() != f.info.ModTime() || now.Size() != f.info.Size() {
		return errors.New("somebody else has just changed the file; try again")
	}
	if err := temp.CloseAtomicallyReplace(); err != nil {
		return err
	}
	// renameio leaves this to its callers: without it the old file could be
	// back after a power failure.
	parent, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.Sync()
}
