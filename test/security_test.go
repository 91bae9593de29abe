// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockwrap/lockwrap/test/rig"
)

// asNobody runs a line of shell on the host as a user without any right.
func asNobody(h *rig.Host, line string) rig.Run {
	return h.Exec("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "sh", "-c", line)
}

// What a user without rights can do to lock, records and links: nothing.
func TestSecurity_otherUser(t *testing.T) {
	h := newHost(t, rig.New, rig.NFT)
	ok(t, h.StandIns("bridge"))
	ok(t, h.Wrapped(h.Usual()...))
	c := newContainer(t, h)
	must(t, "ADD", h.Add(c))
	record := fmt.Sprintf("%s/attachments/%s:%s:eth0.json", h.StateDir(), h.Name, c.ID)
	lock, links := filepath.Join(h.StateDir(), "lock"), filepath.Join(h.Dir, "stand-ins")
	must(t, "what nobody may do", asNobody(h, "id -u; ls "+links))
	for _, line := range []string{
		"flock -n " + lock + " true",
		"flock -n " + h.StateDir() + " true",
		"cat " + lock, "rm -f " + lock, "mv " + h.StateDir() + " " + h.StateDir() + ".old", "echo x >" + lock,
		"ls " + h.StateDir() + "/attachments", "cat " + record, "rm " + record, "echo {} >" + record,
		"touch " + h.StateDir() + "/attachments/x.json",
		"rm " + links + "/bridge", "ln -sf /bin/true " + links + "/firewall", "echo x >" + links + "/portmap",
		"mv " + links + " " + links + ".old",
		rig.Bin("lockwrap") + " status --json | grep -q " + c.ID,
	} {
		if run := asNobody(h, line); run.OK() {
			t.Errorf("nobody may: %s", line)
		}
	}
	// Calling the plugin does not help him.
	run := asNobody(h, fmt.Sprintf(`CNI_COMMAND=DEL CNI_CONTAINERID=%s CNI_IFNAME=eth0 CNI_NETNS= %s <%s`, c.ID, rig.Bin("lockwrap"), entryFile(t, h)))
	if e, err := run.CNIError(); err != nil || e.Code != 5 {
		t.Errorf("DEL by nobody: %v, %v", run, err)
	}
	must(t, "DEL", h.Del(c))
	mustBeGone(t, h, "after DEL")
}

// entryFile has what the host's first plugin gets on stdin.
func entryFile(t *testing.T, h *rig.Host) string {
	t.Helper()
	data, err := os.ReadFile(h.ListFile())
	ok(t, err)
	var list struct {
		CNIVersion string
		Name       string
		Plugins    []map[string]any
	}
	ok(t, json.Unmarshal(data, &list))
	entry := list.Plugins[0]
	entry["name"], entry["cniVersion"] = list.Name, list.CNIVersion
	data, err = json.Marshal(entry)
	ok(t, err)
	file := filepath.Join(h.Dir, "entry.json")
	ok(t, os.WriteFile(file, data, 0o644))
	return file
}

// Traps that another user has laid where he can write: in a directory such as /tmp.
func TestSecurity_traps(t *testing.T) {
	tests := []struct {
		name string
		trap string // what nobody does in the directory $D; $F is a file of root's
		key  string // of the entry that leads there
		code uint   // of the error; 0 is success
	}{
		{"nothing", ":", "lockFile", 0},
		{"a lock file", "touch $D/lock", "lockFile", 5},
		{"a lock file for all", "touch $D/lock; chmod 666 $D/lock", "lockFile", 5},
		{"a link for a lock file", "ln -s $F $D/lock", "lockFile", 5},
		{"a link to where a lock file can be made", "ln -s $F.new $D/lock", "lockFile", 5},
		{"a pipe for a lock file", "mkfifo $D/lock", "lockFile", 5},
		{"a link for a log", "ln -s $F $D/log", "logFile", 0},
		{"a pipe for a log", "mkfifo $D/log", "logFile", 0},
		{"the records", "mkdir -m 777 $D/attachments", "stateDir", 0},
		{"a link for the records", "ln -s ${F%/*} $D/attachments", "stateDir", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, rig.New, rig.NFT)
			ok(t, h.Wrapped(h.Bridge(rig.Net4)))
			dir, file := filepath.Join(h.Dir, "tmp"), filepath.Join(h.Dir, "roots", "file")
			must(t, "mkdir", h.Exec("sh", "-c", `mkdir -m 1777 $0; chmod 1777 $0; mkdir -p ${1%/*}; echo precious >$1`, dir, file))
			must(t, "the trap", asNobody(h, fmt.Sprintf("D=%s F=%s; %s", dir, file, tt.trap)))
			ok(t, h.Edit(func(entry rig.Plugin) {
				entry[tt.key] = filepath.Join(dir, map[string]string{"lockFile": "lock", "logFile": "log", "stateDir": "."}[tt.key])
			}))
			c := newContainer(t, h)
			add := h.Direct("ADD", c)
			if tt.code == 0 {
				must(t, "ADD", add)
			} else if e, err := add.CNIError(); err != nil || e.Code != tt.code || !strings.Contains(e.Msg, dir) {
				t.Errorf("ADD: %v, %v", add, err)
			}
			data, err := os.ReadFile(file)
			ok(t, err)
			if string(data) != "precious\n" {
				t.Errorf("root's file is %q", data)
			}
			if others, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "*.json*")); len(others) > 0 {
				t.Errorf("written: %q", others)
			}
			if tt.code == 0 {
				must(t, "DEL", h.Direct("DEL", c))
			}
			mustBeClean(t, h, c, "in the end")
		})
	}
}

// A record that another user could have written must not decide what is deleted.
func TestSecurity_plantedRecord(t *testing.T) {
	h := newHost(t, rig.New, rig.NFT)
	ok(t, h.Wrapped(h.Usual()...))
	c := newContainer(t, h)
	must(t, "ADD", h.Add(c))
	ok(t, h.Forget(c))
	for _, path := range h.Records() {
		must(t, "plant", h.Exec("sh", "-c", `sed -i s/added/undone/ $0; chown 65534 ${0%/*}`, path))
	}
	ok(t, h.Remove(c))
	must(t, "DEL", h.Del(c))
	if addresses := stateOf(t, h).Addresses; len(addresses) > 0 {
		t.Errorf("still reserved: %q", addresses)
	}
}

// Neither what the plugins are configured with nor their environment shows in an error or in the log.
func TestSecurity_secrets(t *testing.T) {
	const secret = "hunter2"
	h := newHost(t, rig.New, rig.NFT)
	ok(t, h.Wrapped(h.Bridge(rig.Net4).With("password", secret), rig.Firewall(), rig.Portmap()))
	ok(t, h.Shim("firewall", "exit 3"))
	c := newContainer(t, h)
	run := h.Direct("ADD", c, "TOKEN="+secret, "CNI_ARGS=IgnoreUnknown=1;TOKEN="+secret)
	if run.OK() || strings.Contains(run.Stdout+run.Stderr, secret) {
		t.Errorf("%s%s", run.Stdout, run.Stderr)
	}
	for _, broken := range []any{map[string]any{"type": "bridge", "password": secret}, []any{[]any{secret}}} {
		ok(t, h.Edit(func(entry rig.Plugin) { entry["delegates"] = broken }))
		run := h.Direct("ADD", c)
		if run.OK() || strings.Contains(run.Stdout+run.Stderr, secret) {
			t.Errorf("%s%s", run.Stdout, run.Stderr)
		}
	}
}
