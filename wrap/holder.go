// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// note is what a holder writes into the lock file, for the reader of an error
// message. Who holds the lock is the kernel's to say; a note of anybody else is
// ignored (azure-container-networking#364).
type note struct {
	PID       int       `json:"pid"`
	Verb      string    `json:"verb"`
	Network   string    `json:"network"`
	Container string    `json:"container,omitempty"`
	IfName    string    `json:"ifname,omitempty"`
	Since     time.Time `json:"since"`
	// Group is the process group of the delegate that runs now. A holder that
	// was killed leaves it for the next one, who waits for what carries the
	// Mark and has been started in the Session since Started.
	Group   int    `json:"group,omitempty"`
	Started uint64 `json:"started,omitempty"` // the delegate, in clock ticks since boot
	Session int    `json:"session,omitempty"`
	Mark    string `json:"mark,omitempty"`
	Plugin  string `json:"plugin,omitempty"` // the delegate's type
}

func readNote(path string) note {
	var n note
	data, err := readFile(path)
	// A decoder stops behind the first value: a note is written over a longer
	// one before the rest of that is cut off.
	if err != nil || json.NewDecoder(bytes.NewReader(data)).Decode(&n) != nil {
		return note{}
	}
	return n
}

// lockUsers reads from /proc/locks who holds the lock and who waits for it, in
// the order of the queue. Holder is 0 if nobody does.
func lockUsers(path string) (holder int, waiters []int) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, nil
	}
	locks, err := readLocks()
	if err != nil {
		return 0, nil
	}
	holder, waiters = parseLocks(string(locks), fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino))
	if holder == 0 && hidesDevice(path) {
		return parseLocks(string(locks), fmt.Sprintf(":%d", st.Ino))
	}
	return holder, waiters
}

// hidesDevice reports whether the file system has another device number in stat
// than in /proc/locks. On any other the inode number alone may be that of somebody
// else's lock.
func hidesDevice(path string) bool {
	var fs unix.Statfs_t
	err := unix.Statfs(path, &fs)
	return err == nil && (fs.Type == unix.BTRFS_SUPER_MAGIC || fs.Type == unix.OVERLAYFS_SUPER_MAGIC)
}

// readLocks reads /proc/locks in as few pieces as the kernel allows. Locks come
// and go between two of them, and then a line is missed: with os.ReadFile and
// sixty waiters about one look in three hundred did not see the holder.
func readLocks() ([]byte, error) {
	file, err := os.Open("/proc/locks")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var locks []byte
	for buf := make([]byte, 64<<10); ; {
		n, err := file.Read(buf)
		locks = append(locks, buf[:n]...)
		if errors.Is(err, io.EOF) {
			return locks, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// parseLocks understands proc_pid_locks(5). File is a device and inode as they
// stand there, or the end of one.
//
//	1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF
//	1: -> FLOCK  ADVISORY  WRITE 4712 00:19:1234 0 EOF
func parseLocks(locks, file string) (holder int, waiters []int) {
	for line := range strings.Lines(locks) {
		fields := strings.Fields(line)
		waits := len(fields) > 1 && fields[1] == "->"
		if waits {
			fields = fields[1:]
		}
		if len(fields) < 6 || fields[1] != "FLOCK" {
			continue
		}
		// A part begins with a colon, lest 100:00:7 be taken for 00:00:7.
		if fields[5] != file && !(file[0] == ':' && strings.HasSuffix(fields[5], file)) {
			continue
		}
		pid, err := strconv.Atoi(fields[4])
		switch {
		case err != nil:
		case waits:
			waiters = append(waiters, pid)
		default:
			holder = pid
		}
	}
	return holder, waiters
}

// describeHolder says for an error message who holds the lock since when.
func describeHolder(path string, pid int) string {
	what := command(pid)
	since := time.Duration(0)
	if n := readNote(path); n.PID == pid {
		what = "lockwrap " + n.Verb
		if n.Container != "" {
			what += ", container " + n.Container
		}
		what += ", network " + n.Network
		since = time.Since(n.Since)
	} else if p, err := readProcess(pid); err == nil {
		since = p.age()
	}
	if p, err := readProcess(pid); err == nil && strings.ContainsAny(p.state, "TtDZ") {
		what += ", " + stateName(p.state)
	}
	return fmt.Sprintf("pid %d (%s) for %s", pid, what, round(since))
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// process is what /proc/PID/stat says of a process.
type process struct {
	state   string
	parent  int
	group   int
	session int
	start   uint64 // clock ticks since boot
}

func readProcess(pid int) (process, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	return parseStat(string(data))
}

// parseStat reads proc_pid_stat(5). The command in parentheses may contain
// anything.
func parseStat(stat string) (process, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return process{}, fmt.Errorf("cannot read %q as the state of a process", stat)
	}
	parent, err1 := strconv.Atoi(fields[1])
	group, err2 := strconv.Atoi(fields[2])
	session, err3 := strconv.Atoi(fields[3])
	start, err4 := strconv.ParseUint(fields[19], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		return process{}, fmt.Errorf("cannot read %q as the state of a process", stat)
	}
	return process{state: fields[0], parent: parent, group: group, session: session, start: start}, nil
}

func (p process) age() time.Duration {
	const ticks = 100 // USER_HZ, the same on every Linux that Go runs on
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano()) - time.Duration(p.start)*time.Second/ticks
}

// command is a process's command line, or its name if it has none.
func command(pid int) string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if len(line) == 0 {
		line, _ = os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	}
	words := strings.Join(strings.FieldsFunc(string(line), func(r rune) bool { return r == 0 || r == '\n' }), " ")
	return strings.ToValidUTF8(words[:min(len(words), 100)], "")
}

// isAncestor reports whether a process is among our parents.
func isAncestor(pid int) bool {
	for at := os.Getppid(); at > 1; {
		if at == pid {
			return true
		}
		p, err := readProcess(at)
		if err != nil {
			return false
		}
		at = p.parent
	}
	return false
}

// waitForStragglers waits for what a killed lockwrap's delegate has left behind:
// one iptables call or an IPAM plugin that lives for a moment longer. Past the
// limit it is killed.
func waitForStragglers(mark string, belongs func(process) bool) {
	outwait(5*time.Second, func() []int { return stragglers(mark, belongs) })
}

// outwait returns when nobody is left, and kills who is left when its patience is
// at an end. One look at /proc is not enough: a process whose parent dies just
// then is in the list too late, and has no environment to see while it execs.
func outwait(patience time.Duration, look func() []int) {
	const looks = 2
	start := time.Now()
	for clean := 0; clean < looks && time.Since(start) < patience+time.Second; time.Sleep(5 * time.Millisecond) {
		left := look()
		clean++
		if len(left) > 0 {
			clean = 0
		}
		if time.Since(start) > patience {
			kill(left)
		}
	}
}

// stragglers are the processes that carry a holder's mark and belong to what he
// has started. Numbers of groups and sessions alone may be somebody else's by
// now. What is above us waits for us, and is nobody's leftover.
func stragglers(mark string, belongs func(process) bool) []int {
	return slices.DeleteFunc(processes(belongs), func(pid int) bool {
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		return !bytes.Contains(environ, []byte(heldVariable+"="+mark+"\x00")) || pid == os.Getpid() || isAncestor(pid)
	})
}

func kill(pids []int) {
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

func inGroup(group int) func(process) bool {
	return func(p process) bool { return p.group == group && p.state != "Z" }
}

// inSession is for what a plugin, or a lockwrap below it in groups of its own, has
// started since the plugin's start. A daemon has left the session.
func inSession(session int, start uint64) func(process) bool {
	return func(p process) bool { return p.session == session && p.start >= start && p.state != "Z" }
}

// groupMembers are the processes of a process group, without zombies.
func groupMembers(group int) []int {
	return processes(inGroup(group))
}

// processes are the pids of those that fit.
func processes(fits func(process) bool) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue // no process
		}
		if p, err := readProcess(pid); err == nil && fits(p) {
			pids = append(pids, pid)
		}
	}
	return pids
}
