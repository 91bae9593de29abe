// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lockwrap/lockwrap/test/rig"
)

// Each script is an operator's session on a cold host of its own, with the newest plugins and nft. What exec starts
// runs there, with the host's iptables and all variables that cnitool and lockwrap need. Containers have the host
// ports 10001, 10002, ... in the order of their first ADD. $NETWORK is the name of its network, $BIN is bin/ and $SELF
// the program of the tests, which can be a helper. The commands, beside testscript's own:
//
//	host [old] [legacy]   the same with the old plugins, iptables-legacy or both; comes first
//	list bare             write the usual list, IPv4 and IPv6, to $LIST
//	shim PLUGIN SCRIPT    run a line of shell before the plugin, from now on
//	lockwrap ARGS...      run bin/lockwrap; its settings keep records in $STATE/attachments
//	doctor ARGS...        run its doctor on this host's lists
//	container NAME...     a namespace for each; then $NAME_NETNS, $NAME_ID and $NAME_PORTS are what "exec cnitool" needs
//	add NAME...           the same and ADD of each, one after the other; then $NAME is its address
//	check NAME...         CHECK of each
//	del NAME...           DEL of each; the namespaces stay, so they hide no link that DEL has left
//	reach NAME...         each answers at its host port
//	clean                 nothing of a container is left on the host or in a namespace
//	gone                  clean, and no record is left
//
// With "!" before it a command has to fail, for each NAME.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			s := &session{}
			env.Values[sessionKey{}] = s
			env.Defer(s.close)
			err := s.open(rig.New, rig.NFT, env.Setenv)
			if errors.Is(err, rig.ErrNotRoot) {
				env.T().Skip(err)
			}
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"host":      host,
			"list":      list,
			"shim":      shim,
			"lockwrap":  lockwrap,
			"doctor":    doctor,
			"container": container,
			"add":       add,
			"check":     tool("check"),
			"del":       tool("del"),
			"reach":     reach,
			"clean":     state((*rig.State).Clean),
			"gone":      state((*rig.State).Gone),
		},
	})
}

// A session is what the commands of one script share.
type session struct {
	*rig.Host
	containers map[string]*rig.Container
	listeners  []net.Listener
}

type sessionKey struct{}

func sessionOf(ts *testscript.TestScript) *session { return ts.Value(sessionKey{}).(*session) }

// open makes the host. It has to be called on the script's own goroutine, as setup and commands are: that is where
// testscript starts processes, too, so they all are on this host from now on.
func (s *session) open(set rig.Set, backend string, setenv func(key, value string)) error {
	h, err := rig.NewHost(set, backend)
	if err != nil {
		return err
	}
	s.Host, s.containers = h, map[string]*rig.Container{}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	own := []string{
		"LIST=" + h.ListFile(), "STATE=" + h.StateDir(), "NETWORK=" + h.Name, "BIN=" + rig.Bin(""), "SELF=" + self,
	}
	for _, v := range append(h.Vars(), own...) {
		key, value, _ := strings.Cut(v, "=")
		setenv(key, value)
	}
	return h.Join()
}

func (s *session) close() {
	// A socket would keep the namespace of its container.
	for _, l := range s.listeners {
		l.Close()
	}
	if s.Host != nil {
		s.Host.Close()
	}
}

// serve answers with the container's name at the port that its first host port leads to.
func (s *session) serve(name string, c *rig.Container) error {
	l, err := s.Listen(c, 80)
	if err != nil {
		return err
	}
	s.listeners = append(s.listeners, l)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			io.WriteString(conn, name)
			conn.Close()
		}
	}()
	return nil
}

// expect ends the script unless the command failed or succeeded as it should.
func expect(ts *testscript.TestScript, neg bool, what string, err error) {
	switch {
	case err != nil && !neg:
		ts.Fatalf("%s: %v", what, err)
	case err == nil && neg:
		ts.Fatalf("%s: unexpected success", what)
	}
}

// usage ends the script if the command was not used in its way.
func usage(ts *testscript.TestScript, right bool, text string) {
	if !right {
		ts.Fatalf("usage: %s", text)
	}
}

func host(ts *testscript.TestScript, neg bool, args []string) {
	s := sessionOf(ts)
	set, backend := rig.New, rig.NFT
	for _, arg := range args {
		switch arg {
		case "old":
			set = rig.Old
		case "legacy":
			backend = rig.Legacy
		default:
			usage(ts, false, "host [old] [legacy]")
		}
	}
	usage(ts, !neg && len(s.containers) == 0, "host [old] [legacy], before any container")
	s.Host.Close()
	ts.Check(s.open(set, backend, ts.Setenv))
}

func list(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && slices.Equal(args, []string{"bare"}), "list bare")
	h := sessionOf(ts).Host
	ts.Check(h.Bare(h.Dual()...))
}

func shim(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 2, "shim PLUGIN SCRIPT")
	h := sessionOf(ts).Host
	ts.Check(h.Shim(args[0], args[1]))
	ts.Setenv("CNI_PATH", h.PluginPath())
}

func lockwrap(ts *testscript.TestScript, neg bool, args []string) {
	expect(ts, neg, "lockwrap", ts.Exec(rig.Bin("lockwrap"), args...))
}

// doctor is pid 1 of a namespace of processes. The real one sees the machine's /run and not that of the tests, which
// doctor would complain of wherever it may look.
func doctor(ts *testscript.TestScript, neg bool, args []string) {
	cmd := []string{"-pf", "--mount-proc", rig.Bin("lockwrap"), "doctor", "--conf-dir", ts.Getenv("NETCONFPATH")}
	expect(ts, neg, "doctor", ts.Exec("unshare", append(cmd, args...)...))
}

func container(ts *testscript.TestScript, neg bool, names []string) {
	s := sessionOf(ts)
	usage(ts, !neg && len(names) > 0, "container NAME...")
	for _, name := range names {
		usage(ts, s.containers[name] == nil, "container NAME..., each once")
		c, err := s.NewContainer()
		ts.Check(err)
		ts.Setenv(name+"_NETNS", c.NetNS)
		ts.Setenv(name+"_ID", c.ID)
		ts.Setenv(name+"_PORTS", c.Ports)
		s.containers[name] = c
	}
}

func add(ts *testscript.TestScript, neg bool, names []string) {
	s := sessionOf(ts)
	for _, name := range names {
		if s.containers[name] == nil {
			container(ts, false, []string{name})
			// Nobody listens in one that a script made itself: the script may want to remove its namespace.
			ts.Check(s.serve(name, s.containers[name]))
		}
	}
	eachNamed(ts, "add", names, func(name string, c *rig.Container) {
		run := s.Add(c)
		show(ts, run)
		expect(ts, neg, "add "+name, run.Err)
		if neg {
			return
		}
		var result struct {
			IPs []struct{ Address netip.Prefix }
		}
		ts.Check(json.Unmarshal([]byte(run.Stdout), &result))
		if len(result.IPs) == 0 {
			ts.Fatalf("add %s: no address", name)
		}
		ts.Setenv(name, result.IPs[0].Address.Addr().String())
	})
}

func tool(verb string) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, names []string) {
		eachNamed(ts, verb, names, func(name string, c *rig.Container) {
			run := sessionOf(ts).Tool(verb, c)
			show(ts, run)
			expect(ts, neg, verb+" "+name, run.Err)
		})
	}
}

func reach(ts *testscript.TestScript, neg bool, names []string) {
	eachNamed(ts, "reach", names, func(name string, c *rig.Container) {
		expect(ts, neg, "reach "+name, dial(name, c))
	})
}

// dial asks who is at the container's first host port. It makes the socket on its caller's goroutine, so on the host.
func dial(name string, c *rig.Container) error {
	var ports struct {
		PortMappings []struct{ HostPort int }
	}
	if err := json.Unmarshal([]byte(c.Ports), &ports); err != nil {
		return err
	}
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", ports.PortMappings[0].HostPort), 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := io.ReadAll(conn)
	if err == nil && string(answer) != name {
		err = fmt.Errorf("%q answered", answer)
	}
	return err
}

// eachNamed calls f for the containers with these names.
func eachNamed(ts *testscript.TestScript, cmd string, names []string, f func(string, *rig.Container)) {
	usage(ts, len(names) > 0, cmd+" NAME...")
	for _, name := range names {
		c := sessionOf(ts).containers[name]
		if c == nil {
			ts.Fatalf("%s: %s has never been added", cmd, name)
		}
		f(name, c)
	}
}

// show is for the stdout and stderr of a script.
func show(ts *testscript.TestScript, run rig.Run) {
	io.WriteString(ts.Stdout(), run.Stdout)
	io.WriteString(ts.Stderr(), run.Stderr)
}

// state tells what left finds, and what is in the containers.
func state(left func(*rig.State) error) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		usage(ts, len(args) == 0, "clean, gone")
		s := sessionOf(ts)
		now, err := s.State()
		ts.Check(err)
		errs := []error{left(now)}
		for name, c := range s.containers {
			links, err := s.ContainerLinks(c)
			ts.Check(err)
			if len(links) > 0 {
				errs = append(errs, fmt.Errorf("%s has %q", name, links))
			}
		}
		expect(ts, neg, "state", errors.Join(errs...))
	}
}
