// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

// netnsID tells network namespaces apart. A different inode is a different
// namespace; the same inode is not proof of the same one, since the kernel
// gives the number of a dead namespace to the next. Changed is the time at
// which the inode came to be: while a bind mount keeps it, it stays the same.
type netnsID struct {
	Dev     uint64 `json:"dev"`
	Ino     uint64 `json:"ino"`
	Changed int64  `json:"changed"`
}

// identifyNetNS returns the zero netnsID for a path at which there is no
// network namespace.
func identifyNetNS(path string) netnsID {
	fd, err := openNetNS(path)
	if err != nil {
		return netnsID{}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return netnsID{}
	}
	return netnsID{Dev: st.Dev, Ino: st.Ino, Changed: st.Ctim.Nano()}
}

// maybe reports whether two may be the same namespace: a path below /proc, which
// no bind mount keeps, shows the same one with another time at each look.
func (id netnsID) maybe(other netnsID) bool {
	return id.Dev == other.Dev && id.Ino == other.Ino
}

var errNoNetNS = errors.New("no network namespace")

// openNetNS opens a path only if it is a namespace. It never blocks, whatever
// else is there.
func openNetNS(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		unix.Close(fd)
		return -1, errNoNetNS
	}
	return fd, nil
}

// isNoNetNS reports whether there is something at the path, and it is no network
// namespace.
func isNoNetNS(path string) bool {
	fd, err := openNetNS(path)
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, errNoNetNS)
}

// hasInterface reports whether a network namespace has an interface of that
// name. An error means that there is no way to tell: no namespace at the path,
// or no right to enter it.
func hasInterface(netns, name string) (bool, error) {
	fd, err := openNetNS(netns)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)

	type answer struct {
		present bool
		err     error
	}
	answers := make(chan answer)
	go func() {
		// Never unlocked: the thread ends with the goroutine and takes the
		// foreign namespace with it.
		runtime.LockOSThread()
		present, err := func() (bool, error) {
			if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
				return false, err
			}
			sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return false, err
			}
			defer unix.Close(sock)
			ifr, err := unix.NewIfreq(name)
			if err != nil {
				return false, err
			}
			err = unix.IoctlIfreq(sock, unix.SIOCGIFINDEX, ifr)
			if errors.Is(err, unix.ENODEV) {
				return false, nil
			}
			return err == nil, err
		}()
		answers <- answer{present, err}
	}()
	a := <-answers
	return a.present, a.err
}
