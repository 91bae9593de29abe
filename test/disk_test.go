// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockwrap/lockwrap/test/rig"
)

// Where the lock can't be had, nothing is done; where a record can't be written, it is done without. In the scripts $LOCK
// and $STATE are the directories of lock and records, on which a full or a read-only file system may be mounted.
func TestDisk(t *testing.T) {
	const (
		tmpfs = "mkdir -p %; mount -t tmpfs -o mode=700,size=64k,nr_inodes=100 lockwrap %; "
		fill  = "mkdir -p %/x; head -c 1M /dev/zero >%/x/fill 2>/dev/null; i=0; while touch %/x/$((i=i+1)) 2>/dev/null; do :; done"
	)
	on := func(dir string, parts ...string) string { return strings.ReplaceAll(strings.Join(parts, ""), "%", dir) }
	tests := []struct {
		name   string
		script string
		code   uint   // of the error; 0 is success
		want   string // in the error or in the log
	}{
		{"lock directory missing", "rm -rf $LOCK", 0, ""},
		{"lock directory full", on("$LOCK", tmpfs, fill), 5, "no space left on device"},
		{"full, with a lock file", on("$LOCK", tmpfs, "touch %/lock; ", fill), 0, ""},
		{"lock directory read-only", on("$LOCK", tmpfs, "mount -o remount,ro %"), 5, "read-only file system"},
		{"read-only, with a lock file", on("$LOCK", tmpfs, "touch %/lock; mount -o remount,ro %"), 0, ""},
		{"lock directory of another user", "mkdir -p $LOCK; chown 65534 $LOCK", 5, "its directory belongs to uid 65534"},
		{"lock directory for everybody", "mkdir -p $LOCK; chmod 777 $LOCK", 5, "its directory has mode 0777, so others can write to it"},
		{"lock directory for a group", "mkdir -p $LOCK; chmod 770 $LOCK; chgrp 65534 $LOCK", 5, "its directory has mode 0770"},
		{"lock file of another user", "mkdir -p $LOCK; touch $LOCK/lock; chown 65534 $LOCK/lock", 5, "it belongs to uid 65534"},
		{"another name of a file", "mkdir -p $LOCK; touch $LOCK/file; ln $LOCK/file $LOCK/lock", 5, "a hard link"},
		{"a directory in its place", "mkdir -p $LOCK/lock", 5, "it is not a regular file"},
		{"the default directory with another mode", "mkdir -p $LOCK/lockwrap; chmod 777 $LOCK/lockwrap", 0, ""},
		{"state directory missing", "rm -rf $STATE", 0, ""},
		{"state directory full", on("$STATE", tmpfs, fill), 0, "no space left on device"},
		{"state directory read-only", on("$STATE", tmpfs, "mount -o remount,ro %"), 0, "read-only file system"},
		{"state directory of another user", "mkdir -p $STATE; chown 65534 $STATE", 0, "belongs to uid 65534"},
		{"state directory for everybody", "mkdir -p $STATE; chmod 777 $STATE", 0, "has mode 0777"},
		{"records of another user", "mkdir -p $STATE/attachments; chown 65534 $STATE/attachments", 0, "belongs to uid 65534"},
		{"records for everybody", "mkdir -p $STATE/attachments; chmod 1777 $STATE/attachments", 0, "has mode 1777"},
		{"a file in the place of the records", "mkdir -p $STATE; touch $STATE/attachments", 0, "is not a directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, rig.New, rig.NFT)
			ok(t, h.Wrapped(h.Bridge(rig.Net4), rig.Portmap()))
			lock, state := filepath.Join(h.Dir, "lock.d"), filepath.Join(h.Dir, "state.d")
			ok(t, h.Edit(func(entry rig.Plugin) {
				entry["lockFile"], entry["stateDir"], entry["lockTimeout"] = filepath.Join(lock, "lock"), state, "30s"
				if strings.Contains(tt.script, "$LOCK/lockwrap") {
					entry["lockFile"] = filepath.Join(lock, "lockwrap", "lock")
				}
			}))
			t.Cleanup(func() { _, _ = unix.Unmount(lock, unix.MNT_DETACH), unix.Unmount(state, unix.MNT_DETACH) })
			c := newContainer(t, h)
			script := h.Exec("env", "LOCK="+lock, "STATE="+state, "sh", "-c", tt.script+"; :")
			must(t, "the script", script)

			add := h.Direct("ADD", c)
			if tt.code == 0 {
				must(t, "ADD", add)
				if !strings.Contains(add.Stderr, tt.want) {
					t.Errorf("%q is not in the log: %s", tt.want, add.Stderr)
				}
			}
			for verb, run := range map[string]rig.Run{"ADD": add, "DEL": h.Direct("DEL", c)} {
				if tt.code == 0 {
					must(t, verb, run)
					continue
				}
				e, err := run.CNIError()
				ok(t, err)
				if e.Code != tt.code || !strings.Contains(e.Msg, lock) || !strings.Contains(e.Msg, tt.want) {
					t.Errorf("%s: want code %d and %q: %+v", verb, tt.code, tt.want, e)
				}
			}
			mustBeClean(t, h, c, "after DEL")
			if left, _ := filepath.Glob(filepath.Join(state, "attachments", "*")); len(left) > 0 {
				t.Errorf("records left: %q", left)
			}
			if info, err := os.Stat(filepath.Join(lock, "lockwrap")); err == nil && info.Mode().Perm() != 0o700 {
				t.Errorf("the lock's directory has mode %v", info.Mode())
			}
		})
	}
}

// An ADD whose record can't be written must not leave the one of an earlier try, which says that nothing is there.
func TestDisk_fullLater(t *testing.T) {
	h := newHost(t, rig.New, rig.NFT)
	ok(t, h.Wrapped(h.Usual()...))
	ok(t, h.Shim("portmap", `[ "$CNI_COMMAND" = ADD ] && [ -e "$dir/fail" ] && exit 3`))
	must(t, "mount", h.Exec("sh", "-c", "mkdir -p $0; mount -t tmpfs -o mode=700,size=64k lockwrap $0", h.StateDir()))
	t.Cleanup(func() { _ = unix.Unmount(h.StateDir(), unix.MNT_DETACH) })
	c := newContainer(t, h)
	ok(t, os.WriteFile(filepath.Join(h.Dir, "fail"), nil, 0o600))
	if h.Add(c).OK() {
		t.Fatal("ADD succeeded with a portmap that fails")
	}
	if got := records(h); len(got) != 1 {
		t.Fatalf("records of an ADD that was undone: %v", got)
	}
	ok(t, os.Remove(filepath.Join(h.Dir, "fail")))
	must(t, "fill", h.Exec("sh", "-c", "head -c 1M /dev/zero >$0/fill 2>/dev/null; :", h.StateDir()))
	must(t, "ADD", h.Add(c))
	ok(t, h.Forget(c))
	ok(t, h.Remove(c))
	must(t, "DEL", h.Del(c))
	if addresses := stateOf(t, h).Addresses; len(addresses) > 0 {
		t.Errorf("reserved for ever: %q", addresses)
	}
}

// A DEL that can't write must not lose what the ADD has written: the next DEL needs it, if the runtime has nothing.
func TestDisk_fullAtDEL(t *testing.T) {
	h := newHost(t, rig.New, rig.NFT)
	ok(t, h.Wrapped(h.Usual()...))
	ok(t, h.Shim("portmap", `[ "$CNI_COMMAND" = DEL ] && [ -e "$dir/fail" ] && exit 3`))
	must(t, "mount", h.Exec("sh", "-c", "mkdir -p $0; mount -t tmpfs -o mode=700,size=64k lockwrap $0", h.StateDir()))
	t.Cleanup(func() { _ = unix.Unmount(h.StateDir(), unix.MNT_DETACH) })
	c := newContainer(t, h)
	must(t, "ADD", h.Add(c))
	must(t, "fill", h.Exec("sh", "-c", "head -c 1M /dev/zero >$0/fill 2>/dev/null; :", h.StateDir()))
	ok(t, os.WriteFile(filepath.Join(h.Dir, "fail"), nil, 0o600))
	ok(t, h.Forget(c))
	if h.Tool("del", c, "CAP_ARGS=").OK() {
		t.Fatal("DEL succeeded with a portmap that fails")
	}
	ok(t, os.Remove(filepath.Join(h.Dir, "fail")))
	must(t, "the next DEL", h.Tool("del", c, "CAP_ARGS="))
	mustBeGone(t, h, "after DEL")
}
