// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lockwrap/lockwrap/test/rig"
)

// A fault is how iptables ends when it goes wrong.
type fault struct {
	name    string
	backend string // whose text it is
	exit    int    // 0 for killed by a signal
	text    string
	victim  string // the delegate that it hits half-way, "" if to delegates it is the same as "unavailable"
}

var faults = []fault{
	// The plugins, and nobody else, take it for "exists" by the text alone.
	{"exists", rig.Legacy, 1, "iptables: Chain already exists.", "portmap"},
	// nomad#8838; the chain is not there.
	{"file exists", rig.NFT, 4,
		"iptables v1.8.9 (nf_tables):  CHAIN_USER_ADD failed (File exists): chain CNI-HOSTPORT-DNAT", ""},
	// podman#5446: the exit status by which go-iptables knows that a chain or rule is missing.
	{"incompatible", rig.NFT, 1, "iptables v1.8.2 (nf_tables): table `nat' is incompatible, use 'nft' tool.", "bridge"},
	{"unavailable", rig.Legacy, 4, "iptables: Resource temporarily unavailable.", "firewall"}, // go-cni#60
	{"locked", rig.Legacy, 4,
		"Another app is currently holding the xtables lock. Perhaps you want to use the -w option?", ""},
	{"no table", rig.Legacy, 3, "iptables v1.8.9 (legacy): can't initialize iptables table `nat': " +
		"Table does not exist (do you need to insmod?)", "portmap"},
	{"option", rig.NFT, 2, "iptables v1.8.9 (nf_tables): unknown option \"--wait\"\n" +
		"Try `iptables -h' or 'iptables --help' for more information.", ""},
	{"killed", rig.NFT, 0, "", "firewall"},
}

// When a call fails, by the number of calls n that the same program made before to the same table.
const (
	once    = `$n = 0`
	third   = `$((n % 3)) = 2`
	forever = `$n -ge 0`
)

// script breaks the calls that match "caller program verb arguments". They are counted by table and program, since
// lockwrap makes its chains in all of them at once.
func (f fault) script(calls, when string) string {
	version := "*--version) ;;"
	end := fmt.Sprintf("printf '%%s\\n' '%s' >&2; exit %d", strings.ReplaceAll(f.text, "'", `'\''`), f.exit)
	if f.exit == 0 {
		end = "kill -9 $$"
		if when == forever {
			version = ""
		}
	}
	return fmt.Sprintf(`
case "$caller ${0##*/} $CNI_COMMAND $*" in
%s
%s)
	n=0
	at="$dir/calls-$caller-${0##*/}-$2"
	[ -e "$at" ] && read -r n <"$at"
	echo $((n+1)) >"$at"
	if [ %s ]; then
		: >"$dir/hit"
		%s
	fi
esac`, version, pattern(calls), when, end)
}

// pattern is one of the shell's with spaces in it.
func pattern(calls string) string { return strings.ReplaceAll(calls, " ", `\ `) }

// lockwrap's own iptables fails now and then, with any text and status: it makes all chains in the end. The delegates
// make none here, so that none is taken for made that is not.
func TestIPTables_ownNowAndThen(t *testing.T) {
	for _, f := range faults {
		for when, condition := range map[string]string{"once": once, "every third": third} {
			t.Run(f.name+"/"+when, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, rig.New, f.backend)
				// The first call is a listing, and the first chain is the next.
				ok(t, h.IPTables(f.script("lockwrap* -N *", condition)))
				ok(t, h.Wrapped(h.Bridge(rig.Net4, rig.Net6).With("ipMasq", false), rig.Firewall(), rig.Portmap()))
				pass(t, h, "firewall", "portmap")
				must(t, "ADD", h.Direct("ADD", newContainer(t, h)))
				mustBeHit(t, h)
				if diff := cmp.Diff(in46(forward, dnat, masq), chainsOf(t, h)); diff != "" {
					t.Errorf("chains (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// lockwrap's own iptables always fails: the delegates do without it.
func TestIPTables_own(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, rig.New, f.backend)
			ok(t, h.IPTables(f.script("lockwrap*", forever)))
			ok(t, h.Wrapped(h.Usual()...))
			c := newContainer(t, h)
			run := h.Direct("ADD", c)
			must(t, "ADD", run)
			mustBeHit(t, h)
			if !strings.Contains(run.Stderr, "cannot pre-create chains") {
				t.Errorf("the log does not tell that chains could not be made: %s", run.Stderr)
			}
			if diff := cmp.Diff(in4(forward, dnat, masq), chainsOf(t, h)); diff != "" {
				t.Errorf("chains (-want +got):\n%s", diff)
			}
			must(t, "DEL", h.Del(c))
			mustBeGone(t, h, "after DEL")
			mustBeFree(t, h)
		})
	}
}

// iptables always fails, for everybody: ADD ends as it does on the bare list, and all is well once iptables is.
func TestIPTables_always(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			mustBeHit(t, asBare(t, f.backend, (*rig.Host).Usual, func(h *rig.Host) {
				ok(t, h.IPTables(f.script("*", forever)))
			}))
		})
		if f.victim == "" {
			continue
		}
		t.Run(f.name+"/IPv6 of dual stack", func(t *testing.T) {
			t.Parallel()
			mustBeHit(t, asBare(t, f.backend, (*rig.Host).Dual, func(h *rig.Host) {
				ok(t, h.IPTables(f.script("* ip6tables *", forever)))
			}))
		})
	}
}

// iptables fails for each plugin the first time that it uses a table. Every failed ADD leaves nothing, and the first
// try after all of that succeeds, with no DEL in between.
func TestIPTables_once(t *testing.T) {
	for i, f := range faults {
		if f.victim == "" {
			continue
		}
		set := rig.Sets[i%2] // by turns
		t.Run(f.name+"/"+set.Name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, set, f.backend)
			ok(t, h.IPTables(f.script("* ADD *", once)))
			ok(t, h.Wrapped(h.Usual()...))
			c := newContainer(t, h)
			run := h.Direct("ADD", c)
			for try := 1; !run.OK(); try++ {
				if named := mustTell(t, h, run); try > 6 {
					t.Fatalf("try %d: still %s fails", try, named)
				}
				mustBeClean(t, h, c, "after a failed ADD")
				run = h.Direct("ADD", c)
			}
			mustBeHit(t, h)
			must(t, "DEL", h.Del(c))
			mustBeGone(t, h, "after DEL")
		})
	}
}

// Every third call of lockwrap's and of one delegate's ADD fails, half-way through its work.
func TestIPTables_everyThird(t *testing.T) {
	for _, f := range faults {
		if f.victim == "" {
			continue
		}
		t.Run(f.name+"/"+f.victim, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, rig.New, f.backend)
			ok(t, h.IPTables(f.script("lockwrap*|"+f.victim+"*ADD*", third)))
			ok(t, h.Wrapped(h.Usual()...))
			c := newContainer(t, h)
			run := h.Direct("ADD", c)
			mustBeHit(t, h)
			if !run.OK() {
				if named := mustTell(t, h, run); named != f.victim {
					t.Errorf("%s failed: %v", named, run)
				}
				mustBeClean(t, h, c, "after the failed ADD")
			}
			mustRecover(t, h, c, run.OK())
		})
	}
}

// iptables is not there, or not what it should be.
func TestIPTables_program(t *testing.T) {
	const garbage = "#!/bin/sh\necho Segmentation violation, sort of\n"
	for i, tt := range []struct {
		name            string
		list            func(*rig.Host) []rig.Plugin
		broken          []string
		mode            os.FileMode // of what is there instead; 0 for nothing
		onlyForLockwrap bool
	}{
		{"missing", (*rig.Host).Usual, []string{"iptables", "ip6tables"}, 0, false},
		{"not executable", (*rig.Host).Usual, []string{"iptables"}, 0o644, false},
		{"garbage", (*rig.Host).Usual, []string{"iptables"}, 0o755, false},
		{"no ip6tables, IPv4", (*rig.Host).Usual, []string{"ip6tables"}, 0, false},
		{"ip6tables garbage, IPv4", (*rig.Host).Usual, []string{"ip6tables"}, 0o755, false},
		{"no ip6tables, dual stack", (*rig.Host).Dual, []string{"ip6tables"}, 0, false},
		{"ip6tables not executable, dual stack", (*rig.Host).Dual, []string{"ip6tables"}, 0o644, false},
		{"ip6tables garbage, dual stack", (*rig.Host).Dual, []string{"ip6tables"}, 0o755, false},
		{"missing for lockwrap", (*rig.Host).Dual, []string{"iptables", "ip6tables"}, 0, true},
		{"garbage for lockwrap", (*rig.Host).Dual, []string{"iptables", "ip6tables"}, 0o755, true},
	} {
		backend := []string{rig.NFT, rig.Legacy}[i%2] // by turns
		t.Run(tt.name+"/"+backend, func(t *testing.T) {
			t.Parallel()
			asBare(t, backend, tt.list, func(h *rig.Host) {
				dir := filepath.Join(h.Dir, "only")
				ok(t, os.Mkdir(dir, 0o755))
				for _, cmd := range []string{"iptables", "ip6tables"} {
					ok(t, os.Symlink(filepath.Join(h.Dir, "bin", cmd), filepath.Join(dir, cmd)))
				}
				for _, cmd := range tt.broken {
					ok(t, os.Remove(filepath.Join(dir, cmd)))
					if tt.mode != 0 {
						ok(t, os.WriteFile(filepath.Join(dir, cmd), []byte(garbage), tt.mode))
					}
				}
				h.Env = []string{"PATH=" + dir}
				if tt.onlyForLockwrap {
					for _, plugin := range []string{"bridge", "firewall", "portmap"} {
						ok(t, h.Shim(plugin, `export PATH="$dir/bin"`))
					}
				}
			})
		})
	}
}

// Another program has the xtables lock for a while: everybody waits, and nobody fails.
func TestIPTables_lockedForAWhile(t *testing.T) {
	t.Parallel()
	h := newHost(t, rig.New, rig.Legacy)
	ok(t, h.Wrapped(h.Dual()...))
	c := newContainer(t, h)
	unlock := flock(t, filepath.Join(h.Dir, "xtables.lock"))
	timer := time.AfterFunc(2*time.Second, unlock)
	must(t, "ADD", h.Direct("ADD", c))
	if timer.Stop() {
		t.Error("ADD has not waited for the xtables lock, so this shows nothing")
	}
	must(t, "DEL", h.Del(c))
	mustBeGone(t, h, "after DEL")
}

// Another program never gives the xtables lock back: the plugin is killed when its time is up, and lockwrap tells what
// it was waiting for.
func TestIPTables_lockedForEver(t *testing.T) {
	t.Parallel()
	h := newHost(t, rig.New, rig.Legacy)
	ok(t, h.Wrapped(h.Usual()...))
	ok(t, h.Edit(func(entry rig.Plugin) { entry["pluginTimeout"] = "4s" }))
	c := newContainer(t, h)
	unlock := flock(t, filepath.Join(h.Dir, "xtables.lock"))
	run := h.Direct("ADD", c)
	if run.OK() {
		t.Fatal("ADD succeeded without the xtables lock")
	}
	mustTakeAtMost(t, run, 100*time.Second)
	mustTell(t, h, run)
	if e, err := run.CNIError(); err != nil || !strings.Contains(e.Msg, "pluginTimeout (4s)") ||
		!regexp.MustCompile(`it was running ".*iptables -t nat `).MatchString(e.Details) {
		t.Errorf("the answer does not tell what hangs: %+v, %v", e, err)
	}
	unlock()
	ok(t, h.Edit(func(entry rig.Plugin) { delete(entry, "pluginTimeout") })) // a well plugin may be slow
	mustRecover(t, h, c, false)
}

// lockwrap's own iptables hangs: ADD goes on without the chains.
func TestIPTables_hangs(t *testing.T) {
	for _, calls := range []string{"--version", "-t filter -N*"} {
		t.Run(calls, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, rig.New, rig.NFT)
			ok(t, h.IPTables(fmt.Sprintf(`
case "$caller $*" in %s) : >"$dir/hit"; exec sleep 600 ;; esac`, pattern("lockwrap "+calls))))
			ok(t, h.Wrapped(h.Usual()...))
			c := newContainer(t, h)
			run := h.Direct("ADD", c)
			must(t, "ADD", run)
			mustTakeAtMost(t, run, 100*time.Second)
			mustBeHit(t, h)
			mustBeFree(t, h)
			must(t, "DEL", h.Del(c))
			mustBeGone(t, h, "after DEL")
		})
	}
}

// asBare makes two hosts with one fault. ADD must end on the wrapped list as it does on the bare one, in the same
// words, and the next one succeed when the fault is gone. It returns the wrapped one.
func asBare(t *testing.T, backend string, list func(*rig.Host) []rig.Plugin, breakIt func(*rig.Host)) *rig.Host {
	t.Helper()
	bareHost := newHost(t, rig.New, backend)
	breakIt(bareHost)
	ok(t, bareHost.Bare(list(bareHost)...))
	bareC := newContainer(t, bareHost)
	bare := bareHost.Add(bareC)

	h := newHost(t, rig.New, backend)
	breakIt(h)
	ok(t, h.Wrapped(list(h)...))
	c := newContainer(t, h)
	run := h.Direct("ADD", c)
	if run.OK() != bare.OK() {
		t.Errorf("ADD with the bare list: %v\nwrapped: %v", bare, run)
	}
	if !run.OK() {
		mustTell(t, h, run)
		e, err := run.CNIError()
		ok(t, err)
		msg := e.Msg
		if e.Details != "" {
			msg += "; " + e.Details
		}
		// What iptables did not let it undo comes after the plugin's own words.
		msg, _, _ = strings.Cut(msg, "; could not undo ")
		want, got := likeAll(bare.Stderr, bareHost, bareC), likeAll(msg, h, c)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("error (-bare +wrapped):\n%s", diff)
		}
		mustBeClean(t, h, c, "after the failed ADD")
	}
	mustRecover(t, h, c, run.OK())
	return h
}

var hashed = regexp.MustCompile(`CNI-(DN-)?[0-9a-f]{20,}`)

// likeAll is a text without what differs from host to host.
func likeAll(text string, h *rig.Host, c *rig.Container) string {
	text = strings.NewReplacer(h.Dir, "DIR", h.Name, "NAME", c.ID, "ID").Replace(strings.TrimSpace(text))
	return veth.ReplaceAllString(hashed.ReplaceAllString(text, "CNI-HASH"), "vethN")
}

// mustRecover makes iptables well again. Then a container that was added is deleted, and another ADD succeeds and can
// be deleted.
func mustRecover(t *testing.T, h *rig.Host, c *rig.Container, added bool) {
	t.Helper()
	mustBeFree(t, h)
	ok(t, os.RemoveAll(filepath.Join(h.Dir, "first")))
	h.Env = nil
	if !added {
		must(t, "ADD with iptables well", h.Add(c))
	}
	must(t, "DEL", h.Del(c))
	mustBeGone(t, h, "after DEL")
	mustBeFree(t, h)
}

var failedPlugin = regexp.MustCompile(`^plugin type="(\w+)" failed \(add\): .`)

// mustTell fails the test if a failed ADD does not answer with one CNI error that names the plugin, or keeps the lock.
func mustTell(t *testing.T, h *rig.Host, run rig.Run) (plugin string) {
	t.Helper()
	mustBeFree(t, h)
	e, err := run.CNIError()
	ok(t, err)
	named := failedPlugin.FindStringSubmatch(e.Msg)
	if named == nil || e.Code == 0 {
		t.Fatalf("not an error that names a plugin: %q", run.Stdout)
	}
	return named[1]
}

func mustTakeAtMost(t *testing.T, run rig.Run, limit time.Duration) {
	t.Helper()
	if run.Took > limit {
		t.Errorf("took %v, more than %v", run.Took, limit)
	}
}

// mustBeHit fails the test if the fault was never met.
func mustBeHit(t *testing.T, h *rig.Host) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(h.Dir, "hit")); err != nil {
		t.Errorf("no iptables call was broken, so this shows nothing: %v", err)
	}
}

// mustBeFree fails the test if somebody holds lockwrap's lock.
func mustBeFree(t *testing.T, h *rig.Host) {
	t.Helper()
	flock(t, filepath.Join(h.StateDir(), "lock"))()
}

// flock takes a lock as iptables and lockwrap do, at once or never.
func flock(t *testing.T, path string) (unlock func()) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	ok(t, err)
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Errorf("%s is locked: %v", path, err)
	}
	return func() { file.Close() }
}
