// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// LockStatus is who has the host's lock and who waits for it, as the kernel says
// (/proc/locks).
type LockStatus struct {
	Path    string     `json:"path"`
	Holder  *LockUser  `json:"holder"`  // nil if nobody holds it
	Waiters []LockUser `json:"waiters"` // in the order in which they will be served
	// Died is the note of a holder that was killed. The next call of its
	// attachment cleans up after it.
	Died *LockUser `json:"died,omitempty"`
}

// LockUser is a process that holds the lock or waits for it. What is not known
// of it is empty.
type LockUser struct {
	PID       int       `json:"pid"`
	Verb      string    `json:"verb,omitempty"`
	Network   string    `json:"network,omitempty"`
	Container string    `json:"container,omitempty"`
	IfName    string    `json:"ifname,omitempty"`
	Since     time.Time `json:"since"`             // holds it, or was started
	State     string    `json:"state,omitempty"`   // "stopped", ...; empty for a process that goes on
	Command   string    `json:"command,omitempty"` // of a process that is no lockwrap call
	// Plugin is the delegate that the holder runs now, and Running what that
	// has started.
	Plugin  string   `json:"plugin,omitempty"`
	Running []string `json:"running,omitempty"`
}

// InspectLock looks at a lock without touching it. Errors are *fs.PathError;
// errors.Is(err, fs.ErrNotExist) means that nobody has taken the lock since
// boot.
func InspectLock(path string) (LockStatus, error) {
	s := LockStatus{Path: path, Waiters: []LockUser{}}
	info, err := os.Stat(path)
	if err != nil {
		return s, err
	}
	if !info.Mode().IsRegular() {
		return s, &fs.PathError{Op: "look at", Path: path, Err: errors.New("not a regular file")}
	}
	holder, waiters := lockUsers(path)
	n := readNote(path)
	switch {
	case holder != 0:
		user := lockUser(holder, n)
		s.Holder = &user
	case n.PID != 0 && hasEnded(n.PID):
		user := LockUser{PID: n.PID, Verb: n.Verb, Network: n.Network, Container: n.Container, IfName: n.IfName, Since: n.Since, Plugin: n.Plugin}
		s.Died = &user
	}
	for _, pid := range waiters {
		s.Waiters = append(s.Waiters, lockUser(pid, note{}))
	}
	return s, nil
}

func hasEnded(pid int) bool {
	p, err := readProcess(pid)
	return errors.Is(err, fs.ErrNotExist) || err == nil && p.state == "Z"
}

// lockUser describes a process, by the note if it is the one who wrote it.
func lockUser(pid int, n note) LockUser {
	u := LockUser{PID: pid}
	p, err := readProcess(pid)
	if err == nil {
		u.Since, u.State = time.Now().Add(-p.age()), stateName(p.state)
	}
	if n.PID == pid {
		u.Verb, u.Network, u.Container, u.IfName, u.Since, u.Plugin = n.Verb, n.Network, n.Container, n.IfName, n.Since, n.Plugin
		if n.Group > 0 {
			for _, member := range groupMembers(n.Group) {
				u.Running = append(u.Running, fmt.Sprintf("%d %s", member, command(member)))
			}
		}
		return u
	}
	u.Command = command(pid)
	environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	vars := strings.Split(string(environ), "\x00")
	u.Verb, _ = lookupEnv(vars, "CNI_COMMAND")
	u.Container, _ = lookupEnv(vars, "CNI_CONTAINERID")
	u.IfName, _ = lookupEnv(vars, "CNI_IFNAME")
	return u
}

func stateName(state string) string {
	return map[string]string{"T": "stopped", "t": "being traced", "D": "in uninterruptible sleep", "Z": "a zombie"}[state]
}

// Attachment is what the record of one says.
type Attachment struct {
	Network   string    `json:"network"`
	Container string    `json:"container"`
	IfName    string    `json:"ifname"`
	State     string    `json:"state"` // adding, added, deleting, undone; "unreadable" if the record is of no use
	Since     time.Time `json:"since"` // in that state; of an unreadable record, its last change
	NetNS     string    `json:"netns"`
	Plugin    string    `json:"plugin,omitempty"` // the delegate that ran last, while adding or deleting
	File      string    `json:"file"`             // the record
	// Stuck is why only a call by the runtime, or somebody, can get it out of
	// this state; empty if nothing is wrong.
	Stuck string `json:"stuck,omitempty"`
	// Foreign: another version of lockwrap has written the record, and may want
	// it back.
	Foreign bool `json:"foreign,omitempty"`
}

// Attachments reads the records. A directory that does not exist has none. The
// error is an *fs.PathError; a record that can't be used is no error.
func Attachments(stateDir string) ([]Attachment, error) {
	dir := filepath.Join(stateDir, "attachments")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Attachment
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".json" {
			continue
		}
		file := filepath.Join(dir, e.Name())
		head, err := readRecord(file)
		switch {
		case err != nil:
			a := Attachment{State: "unreadable", File: file, Stuck: err.Error(), Foreign: errors.Is(err, errFormat)}
			if errors.Is(err, fs.ErrPermission) {
				return nil, err
			}
			if parts := strings.Split(strings.TrimSuffix(e.Name(), ".json"), ":"); len(parts) == 3 {
				a.Network, a.Container, a.IfName = parts[0], parts[1], parts[2]
			}
			if info, err := e.Info(); err == nil {
				a.Since = info.ModTime()
			}
			all = append(all, a)
		case head != nil: // else a DEL was faster than we
			for _, r := range append([]*record{head}, head.Others...) {
				all = append(all, r.attachment(file))
			}
		}
	}
	return all, nil
}

func (r *record) attachment(file string) Attachment {
	a := Attachment{Network: r.Network, Container: r.Container, IfName: r.IfName, State: r.State, Since: r.Since, NetNS: r.NetNS, File: file}
	switch r.State {
	case stateAdding, stateDeleting:
		a.Plugin = r.running()
		if !runsLockwrap(r.PID) {
			a.Stuck = map[string]string{
				stateAdding:   "its ADD failed or was killed, and something is left",
				stateDeleting: "its DEL failed or was killed, and something is left",
			}[r.State]
		}
	case stateAdded:
		// If in doubt it is there: what one does about it takes a container's rules.
		if r.NetNSID != (netnsID{}) && !identifyNetNS(r.NetNS).maybe(r.NetNSID) {
			a.Stuck = "its network namespace is gone, and nobody has sent a DEL"
		}
	}
	if a.Stuck == "" && r.Leftover != nil {
		a.Stuck = "an earlier ADD of it left something that could not be removed"
	}
	return a
}

// runsLockwrap reports whether the process still is the lockwrap that wrote a
// record, and not somebody who got its number.
func runsLockwrap(pid int) bool {
	exe, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
	if err != nil {
		// Not ours to look at, so there is one.
		return pid > 0 && errors.Is(unix.Kill(pid, 0), unix.EPERM)
	}
	return strings.HasPrefix(filepath.Base(exe), pluginName)
}
