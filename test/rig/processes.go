// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A Process is one of the machine's.
type Process struct {
	Name   string // of the program
	Parent int

	args, environ string // with a zero byte behind each part
}

// On tells whether the process runs on a host.
func (p Process) On(h *Host) bool {
	return strings.Contains(p.environ, "\x00LOCKWRAP_CONFIG="+filepath.Join(h.Dir, "config.json")+"\x00")
}

// WorksFor tells whether the process attaches or detaches a container: lockwrap, a plugin and what it has started by
// their environment, cnitool by its arguments.
func (p Process) WorksFor(c *Container) bool {
	return strings.Contains(p.environ, "\x00CNI_CONTAINERID="+c.ID+"\x00") || strings.HasSuffix(p.args, "\x00"+c.NetNS+"\x00")
}

// Processes are all that run, by pid. Zombies do not.
func Processes() map[int]Process {
	found := map[int]Process{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := "/proc/" + e.Name()
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		// The command name may hold spaces and parentheses: pid (comm) state ppid ...
		head, tail := string(stat), ""
		if i := strings.LastIndexByte(head, ')'); i >= 0 {
			head, tail = head[:i], head[i+1:]
		}
		fields := strings.Fields(tail)
		if len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		_, name, _ := strings.Cut(head, "(")
		p := Process{Name: name}
		p.Parent, _ = strconv.Atoi(fields[1])
		args, _ := os.ReadFile(dir + "/cmdline")
		environ, _ := os.ReadFile(dir + "/environ")
		p.args, p.environ = "\x00"+string(args), "\x00"+string(environ)
		found[pid] = p
	}
	return found
}
