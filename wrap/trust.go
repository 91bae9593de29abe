// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// onlyOurs looks whether none but root and lockwrap's own user can change what is
// in a directory. Others would hold the lock for ever, part the host's calls by
// another lock file, or have plugins run with a record of theirs (fwlive#167).
// In a sticky directory such as /tmp nobody can touch the files of another; but
// he can make some, so it is not for what lockwrap reads.
//
// Errors complete "the directory ...". One that is not there has none: whoever
// opens something in it will see.
func onlyOurs(dir string, sticky bool) error {
	for _, st := range lookAt(dir) {
		others := st.Mode&unix.S_IWOTH != 0 || st.Mode&unix.S_IWGRP != 0 && st.Gid != 0 && int(st.Gid) != os.Getegid()
		switch kind := st.Mode & unix.S_IFMT; {
		case kind != unix.S_IFDIR && kind != unix.S_IFLNK:
			return errors.New("is not a directory")
		case !isOurs(st.Uid):
			return fmt.Errorf("belongs to uid %d, and must be root's", st.Uid)
		case kind == unix.S_IFDIR && others && (st.Mode&unix.S_ISVTX == 0 || !sticky):
			return fmt.Errorf("has mode %04o, so others can write to it", st.Mode&0o7777)
		}
	}
	return nil
}

// trustRecords looks whether what is in the records is lockwrap's own.
func trustRecords(stateDir string) error {
	dir := filepath.Join(stateDir, "attachments")
	err := onlyOurs(dir, false)
	if err == nil {
		dir, err = stateDir, onlyOurs(stateDir, true)
	}
	if err != nil {
		return fmt.Errorf("directory %q %w", dir, err)
	}
	return nil
}

// checkLockFile looks whether a lock can be trusted before it is touched, and
// again once it is held: in a sticky directory somebody may have been faster with
// a file or a link of that name. Errors complete "cannot lock ...: ".
func checkLockFile(path, dir string) error {
	if err := onlyOurs(dir, true); err != nil {
		return fmt.Errorf("its directory %w", err)
	}
	for _, st := range lookAt(path) {
		switch kind := st.Mode & unix.S_IFMT; {
		case kind != unix.S_IFREG && kind != unix.S_IFLNK:
			return errors.New("it is not a regular file")
		case !isOurs(st.Uid):
			return fmt.Errorf("it belongs to uid %d, who could hold it for ever, and must be root's", st.Uid)
		case kind == unix.S_IFREG && st.Nlink > 1:
			return errors.New("it is another file, too (a hard link)")
		case kind == unix.S_IFREG && st.Mode&0o7777 != 0o600:
			_ = os.Chmod(path, 0o600)
		}
	}
	return nil
}

// lookAt returns what is at a path and, if that is a link, behind it.
func lookAt(path string) (found []unix.Stat_t) {
	for _, look := range []func(string, *unix.Stat_t) error{unix.Lstat, unix.Stat} {
		var st unix.Stat_t
		if look(path, &st) == nil {
			found = append(found, st)
		}
	}
	return found
}

func isOurs(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }
