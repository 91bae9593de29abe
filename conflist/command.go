// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/google/renameio/v2"
)

// Rewrite changes the files by change, which is Wrap or Unwrap, and reports each
// of them on out or errs. Each is done or is as it was. It returns false if any
// could not be done.
func Rewrite(out, errs io.Writer, verb string, change func([]byte) ([]byte, error), files []string) (ok bool) {
	ok = true
	for _, file := range files {
		switch err := rewriteFile(file, change); {
		case errors.Is(err, ErrNothingToDo):
			fmt.Fprintf(out, "%s: %s: %v\n", verb, file, err)
		case err != nil:
			fmt.Fprintf(errs, "lockwrap: error: %s: %v\n", file, err)
			ok = false
		default:
			fmt.Fprintf(out, "%s: %s: done\n", verb, file)
		}
	}
	return ok
}

// rewriteFile replaces a file's content in one step: runtimes scan the
// directory at any time, and one unreadable file there stops them all. The
// temporary file's name ends in digits, so no scanner takes it for a list.
func rewriteFile(file string, change func([]byte) ([]byte, error)) error {
	path, err := filepath.EvalSymlinks(file)
	if err != nil {
		return err
	}
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	data, err := change(old)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	temp, err := renameio.NewPendingFile(path,
		renameio.WithTempDir(filepath.Dir(path)),
		renameio.WithStaticPermissions(info.Mode().Perm()))
	if err != nil {
		return err
	}
	defer temp.Cleanup()
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := temp.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	if _, err := temp.Write(data); err != nil {
		return err
	}
	return temp.CloseAtomicallyReplace()
}
