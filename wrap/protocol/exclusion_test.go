// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// storm is many calls at once on one host. Every call has a number of its own in the variable CALL, which all that runs
// for it inherits, so that the fakes can tell whom they work for (see present in testdata/fakeplugin).
type storm struct {
	*host
	mu    sync.Mutex
	rand  *rand.Rand // with mu
	drawn atomic.Int64
}

// behaviours are the delegates of a storm by name, and what they do at each verb.
var behaviours = map[string][]string{
	"quick":  nil,
	"slow":   {"sleep 3ms"},
	"fails":  {"sleep 1ms", failure(100, "no", "")},
	"leaves": {"child 15ms", failure(100, "left a child", "")}, // whose work goes on for a moment, as an iptables call's
	"busy":   {"child 30ms", "sleep 10ms", "exit 1"},
	"works":  {"child 80ms", "sleep 50ms", failure(100, "was at work", "")}, // is killed in the middle, mostly
	// Its child has to be killed, and before that it is waited for, which takes a second.
	"lingers": {"child 20s", "exit 1"},
	"hangs":   {"child 20s", "sleep 1m"},
	// It and its child ignore SIGTERM.
	"stubborn": {"ignore", "child 20s", "sleep 1m"},
}

// newStorm makes the host: the delegates, and those that call a lockwrap below this one.
func newStorm(t *testing.T, seed uint64) *storm {
	t.Helper()
	s := &storm{host: newHost(t), rand: rand.New(rand.NewPCG(seed, 0x65786d))}
	verbs := []string{"ADD", "DEL", "CHECK", "GC"}
	for name, steps := range behaviours {
		s.link(name)
		for _, verb := range verbs {
			if steps == nil || verb == "DEL" && name != "slow" && name != "leaves" {
				continue // a DEL that fails is tried three times, and comes with each undo
			}
			s.on(name, verb, steps...)
		}
	}
	for name, inner := range map[string][]string{"below": {"slow", "quick"}, "belowfails": {"quick", "fails"}} {
		s.link(name)
		for _, verb := range verbs {
			s.on(name, verb, "call lockwrap "+strconv.Quote(s.conf("inner", "10s", inner...)))
		}
	}
	return s
}

// conf is the stdin of lockwrap for a network. Nobody gives up waiting for the lock: a CHECK would run without it.
func (s *storm) conf(network, pluginTimeout string, delegates ...string) string {
	s.t.Helper()
	var entries []entry
	for _, d := range delegates {
		entries = append(entries, entry{"type": d})
	}
	e := s.wrap(entry{"lockTimeout": "10m", "pluginTimeout": pluginTimeout}, entries...)
	e["name"], e["cniVersion"] = network, "1.1.0"
	b, err := json.Marshal(e)
	s.must(err)
	return string(b)
}

// atWork gives a process that works for a call, or 0: the lock it shows itself by.
func (s *storm) atWork(number int) int {
	f, err := os.OpenFile(filepath.Join(s.bin, "present"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return 0
	}
	defer f.Close()
	look := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(number), Len: 1}
	if unix.FcntlFlock(f.Fd(), unix.F_GETLK, &look) != nil || look.Type == unix.F_UNLCK {
		return 0
	}
	return int(look.Pid)
}

// plan is one call and what happens to it.
type plan struct {
	call
	number int
	fate   string
	after  time.Duration // of the start, or of the delegate's
}

// next draws a call. What takes seconds under the lock is rare.
func (s *storm) next(verb string) plan {
	s.mu.Lock()
	defer s.mu.Unlock()
	number := int(s.drawn.Add(1))
	p := plan{number: number, call: call{
		verb: verb, id: "c" + strconv.Itoa(s.rand.IntN(30)), env: []string{"CALL=" + strconv.Itoa(number)},
	}}
	names := []string{"quick", "quick", "quick", "quick", "quick", "slow", "slow", "slow", "slow", "below"}
	timeout := "20s"
	one := func(of ...string) string { return of[s.rand.IntN(len(of))] }
	delegates := []string{one(names...), one(names...)}[:1+s.rand.IntN(5)/4]
	switch n := s.rand.IntN(1000); {
	case n < 80:
		delegates = append(delegates, one("fails", "leaves", "leaves", "busy", "belowfails"))
	case n < 150:
		delegates = []string{"works"}
		p.fate, p.after = one("SIGKILL", "SIGKILL", "SIGTERM"), time.Duration(s.rand.IntN(40))*time.Millisecond
	case n < 153:
		delegates = []string{"lingers"}
	case n < 158:
		timeout = "150ms"
		delegates = []string{"hangs"}
	case n < 161:
		timeout = "150ms"
		delegates = []string{"stubborn"}
	case n < 210:
		p.fate = one("SIGKILL soon", "SIGTERM soon", "caller killed")
		p.after = time.Duration(s.rand.IntN(60)) * time.Millisecond
	}
	p.conf = s.conf(one("net1", "net2"), timeout, delegates...)
	return p
}

// run runs a call, lets its fate come over it, and looks at what it says.
func (s *storm) run(p plan) {
	if p.fate == "caller killed" {
		// A caller that was killed while lockwrap waits for it.
		sh := exec.Command("sh", "-c", `"$0"; :`, lockwrapBin)
		sh.Env, sh.Stdin = s.environ(p.call), strings.NewReader(p.conf)
		if err := sh.Start(); err != nil {
			s.t.Error(err)
			return
		}
		time.Sleep(p.after)
		_ = sh.Process.Kill()
		_ = sh.Wait()
		return
	}
	cmd := exec.Command(lockwrapBin)
	var stdout, stderr strings.Builder
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.environ(p.call), strings.NewReader(p.conf), &stdout, &stderr
	if err := cmd.Start(); err != nil {
		s.t.Error(err)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	sig := syscall.SIGTERM
	if strings.HasPrefix(p.fate, "SIGKILL") {
		sig = syscall.SIGKILL
	}
	switch p.fate {
	case "SIGKILL", "SIGTERM": // in the middle of a delegate
		for over := false; !over && s.atWork(p.number) == 0; {
			select {
			case err := <-ended:
				ended <- err
				over = true
			case <-time.After(2 * time.Millisecond):
			}
		}
		time.Sleep(p.after)
		_ = cmd.Process.Signal(sig)
	case "SIGKILL soon", "SIGTERM soon":
		time.Sleep(p.after)
		_ = cmd.Process.Signal(sig)
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Minute):
		_ = cmd.Process.Kill()
		s.t.Errorf("call %d hangs: %s %s", p.number, p.verb, p.conf)
		return
	}
	switch code := cmd.ProcessState.ExitCode(); {
	case panicked(stderr.String()):
		s.t.Errorf("a panic: %s", stderr.String())
	case code == 1 || code == 0 && p.verb == "ADD":
		var v map[string]any
		if err := json.Unmarshal([]byte(stdout.String()), &v); err != nil {
			s.t.Errorf("call %d, %s: exit %d with no JSON document: %v: %s", p.number, p.verb, code, err, stdout.String())
		}
	case code == 0 && stdout.Len() == 0, code == -1 && p.fate != "":
	default:
		s.t.Errorf("call %d, %s: exit %d, %s%s", p.number, p.verb, code, stdout.String(), stderr.String())
	}
}

// at is an interval in which somebody worked for a call.
type at struct {
	number     int
	start, end int64
	who        string
}

// verify looks for overlaps, by what the fakes saw at their start and by the clock, and gives how many calls ran
// delegates.
func (s *storm) verify() (ran int) {
	s.t.Helper()
	if b, err := os.ReadFile(filepath.Join(s.bin, "overlaps")); err == nil {
		s.t.Errorf("overlaps:\n%s", b)
	}
	spans := map[int]*at{}
	for _, r := range s.calls() {
		number, ok := r.getenv("CALL")
		if !ok {
			s.t.Fatalf("%s has lost its environment", r)
		}
		child := strings.Contains(r.Argv, "\x00child\x00")
		if r.Stdin == "" && !child {
			continue // killed before it was given anything to do
		}
		n := atoi(number)
		if spans[n] == nil {
			spans[n] = &at{number: n, start: r.Start, who: r.String()}
		}
		// A killed fake has logged no end. That it was gone when the next call began is what that call has looked at;
		// here it counts with what is certain.
		sp := spans[n]
		sp.start, sp.end = min(sp.start, r.Start), max(sp.end, r.Start, r.End)
	}
	var sorted []*at
	for _, sp := range spans {
		sorted = append(sorted, sp)
	}
	slices.SortFunc(sorted, func(a, b *at) int { return int(a.start - b.start) })
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; b.start < a.end {
			s.t.Errorf("call %d (%s) began %v before call %d (%s) had ended",
				b.number, b.who, time.Duration(a.end-b.start), a.number, a.who)
		}
	}
	return len(sorted)
}

// TestExclusion_storm: whatever happens to whom, nothing that belongs to two calls ever runs at once.
func TestExclusion_storm(t *testing.T) {
	t.Parallel()
	hosts, each := 4, 560
	if testing.Short() {
		hosts, each = 1, 100
	}
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1_000_000_000
	}
	var ran atomic.Int64
	t.Run("hosts", func(t *testing.T) {
		for i := range hosts {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				s := newStorm(t, seed+uint64(i)<<32)
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() {
						for int(s.drawn.Load()) < each && !t.Failed() {
							for _, verb := range []string{"ADD", "CHECK", "ADD", "DEL", "GC", "ADD"} {
								s.run(s.next(verb))
							}
						}
					})
				}
				wg.Wait()
				s.over()
				n := s.verify()
				ran.Add(int64(n))
				t.Logf("%d calls, of which %d ran delegates", s.drawn.Load(), n)
				if t.Failed() {
					t.Logf("again with -seed=%d", seed)
				}
			})
		}
	})
	if want := int64(hosts * each * 9 / 10); ran.Load() < want {
		t.Errorf("only %d calls ran delegates, not %d: again with -seed=%d", ran.Load(), want, seed)
	}
}

// TestExclusion_below: what a delegate of a lockwrap below another one has started may still be at work when one of the
// two is killed, and the next call waits for it as it does without another lockwrap between.
func TestExclusion_below(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"outer", "inner"} {
		t.Run(who+" killed", func(t *testing.T) {
			t.Parallel()
			s := &storm{host: newHost(t, "quick", "a", "b")}
			s.on("a", "ADD", "call lockwrap "+strconv.Quote(s.conf("inner", "2m", "b")))
			s.on("b", "ADD", "on 1", "child 12s", "sleep 1m") // longer than the patience with what is left behind
			r := s.start(call{verb: "ADD", conf: s.conf("net1", "2m", "a"), env: []string{"CALL=1"}})
			var b record
			eventually(t, "b and its child are at work", func() bool {
				calls := s.peek()
				for _, c := range calls {
					if len(c.Children) == 1 {
						b = c
					}
				}
				return len(calls) == 3 && b.Pid > 0 // a, b, the child
			})
			pid := r.cmd.Process.Pid
			if who == "inner" {
				pid = b.Ppid
			}
			s.must(syscall.Kill(pid, syscall.SIGKILL))
			next := call{verb: "ADD", id: "c2", conf: s.conf("net2", "2m", "quick"), env: []string{"CALL=2"}}
			s.call(next).ok(t)
			if a := r.wait(); who == "inner" {
				a.failure(t)
			}
			s.verify()
		})
	}
}

// over waits until nobody is left, and demands that whoever comes then is served at once.
func (s *storm) over() {
	s.t.Helper()
	p := s.next("DEL")
	p.conf = s.conf("net1", "20s", "quick")
	p.fate = ""
	began := time.Now()
	s.run(p)
	// A lockwrap whose caller was killed may be at work still, and one that was killed may have left a child.
	if took := time.Since(began); took > time.Minute {
		s.t.Errorf("the last call took %v", took)
	}
	for _, r := range s.peek() {
		eventually(s.t, fmt.Sprintf("%s, %d, is gone", r, r.Pid), func() bool {
			return r.End > 0 || !alive(r.Pid) || !isFake(r.Pid, s.bin)
		})
	}
}

// isFake tells a fake of this host from a process that has got its number since.
func isFake(pid int, bin string) bool {
	exe, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.HasPrefix(string(exe), bin)
}
