// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lockwrap/lockwrap/wrap"
)

// locks looks at every lock file that the host's configuration or a list names.
func (x *examiner) locks() {
	var files []string
	if host, err := wrap.HostSettings(x.environ); err != nil {
		x.add(fail, "configuration", "correct it: no container starts like this", "%s", ownWords(err))
	} else {
		files = append(files, host.LockFile)
	}
	for _, l := range x.lists {
		for _, conf := range l.entries {
			if !slices.Contains(files, conf.LockFile) {
				files = append(files, conf.LockFile)
			}
		}
	}
	for _, file := range files {
		x.lock(file)
	}
}

// remote are the file systems on which flock(2) is no lock of this host, or none
// at all. The numbers are the kernel's (include/uapi/linux/magic.h).
var remote = map[int64]string{
	unix.NFS_SUPER_MAGIC:  "NFS",
	unix.SMB_SUPER_MAGIC:  "SMB",
	unix.CIFS_SUPER_MAGIC: "CIFS",
	unix.SMB2_SUPER_MAGIC: "SMB2",
	unix.FUSE_SUPER_MAGIC: "FUSE",
	unix.V9FS_MAGIC:       "9p",
	unix.CEPH_SUPER_MAGIC: "Ceph",
	unix.AFS_SUPER_MAGIC:  "AFS",
}

func (x *examiner) lock(file string) {
	dir := filepath.Dir(file)
	info, err := os.Stat(dir)
	made := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		made = " will be made"
		// What will be made is made in the nearest directory that there is.
		for errors.Is(err, fs.ErrNotExist) && dir != "/" {
			dir = filepath.Dir(dir)
			info, err = os.Stat(dir)
		}
	case errors.Is(err, fs.ErrPermission):
		x.add(warn, file, "run it as root", "%v", err)
		return
	}
	if err != nil {
		x.add(fail, file, "name another lockFile", "its directory can't be made: %v", err)
		return
	}
	worst := fine
	complain := func(s severity, todo, format string, args ...any) *finding {
		worst = s
		return x.add(s, file, todo, format, args...)
	}
	if !info.IsDir() {
		complain(fail, "name another lockFile", "%s is not a directory", dir)
		return
	}
	var fsys unix.Statfs_t
	if err := unix.Statfs(dir, &fsys); err == nil {
		if name, is := remote[int64(fsys.Type)]; is {
			complain(fail, "name a lockFile on a local file system, best none", "%s is on %s, which can't lock for this host", dir, name)
		}
		if fsys.Flags&unix.ST_RDONLY != 0 {
			complain(fail, "name a lockFile on a writable file system, best none", "%s is read-only", dir)
		}
	}
	// Whoever can open the lock file can hold it for ever; whoever can write
	// to its directory can put another in its place.
	if mode := info.Mode(); mode.Perm()&0o022 != 0 && mode&fs.ModeSticky == 0 {
		complain(fail, "take the right away", "%s is writable by others (mode %04o), who can take the lock", dir, mode.Perm()).
			Commands = []string{"chmod go-w " + quoteShell(dir)}
	} else if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		complain(fail, "give it to root", "%s belongs to uid %d; lockwrap refuses it", dir, st.Uid).
			Commands = []string{"chown root " + quoteShell(dir)}
	} else if made == "" && filepath.Base(dir) == "lockwrap" && mode.Perm() != 0o700 {
		complain(warn, "none: the next container start corrects it", "%s has mode %04o, not 0700", dir, mode.Perm())
	}
	if lock, err := os.Stat(file); errors.Is(err, fs.ErrPermission) {
		complain(warn, "run it as root", "%v", err)
	} else if err == nil {
		switch {
		case !lock.Mode().IsRegular():
			complain(fail, "remove it", "it is not a regular file")
		case lock.Mode().Perm()&0o077 != 0:
			complain(warn, "none: the next container start corrects it", "it has mode %04o, so others can hold the lock", lock.Mode().Perm())
		}
	}
	switch other, err := elsewhere(dir); {
	case err != nil:
		complain(warn, "run it as root, and not in a container", "cannot tell whether pid 1 sees the same %s: %v", dir, errors.Unwrap(err))
	case other:
		complain(fail, "run lockwrap, and every runtime, where the host's "+dir+" is mounted",
			"%s here is not the one that pid 1 sees: what runs here does not exclude the rest of the host", dir)
	}
	if worst == fine {
		x.add(fine, file, "", "%s", strings.TrimSpace(made+" on a local file system"))
	}
}

// elsewhere reports whether pid 1 sees another directory at the same path: then
// this is another mount namespace, and another lock (kubespray#3192). The error
// is an *fs.PathError.
func elsewhere(dir string) (bool, error) {
	here, err := os.Stat(dir)
	if err != nil {
		return false, err
	}
	if _, err := os.Stat("/proc/1/root"); err != nil {
		return false, err
	}
	there, err := os.Stat(filepath.Join("/proc/1/root", dir))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return err == nil && !os.SameFile(here, there), err
}
