// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lockwrap/lockwrap/test/rig"
)

// "make torture" sets these.
var (
	seedFlag  = flag.Uint64("seed", 0, "seed of TestTorture (0: from the clock)")
	killsFlag = flag.Int("kills", 40, "how many processes TestTorture kills")
	allFlag   = flag.Bool("all", false, "TestTorture_steps makes every next call after every step, and _flush takes every step")
)

// what follows a call that was disturbed.
var nextCalls = []string{"ADD", "DEL", "DEL without prevResult"}

// next is the runtime's next call after one that failed. It must succeed, but for one: an ADD of a container that
// lives, since the failed call was a DEL that has not begun, or an ADD that had printed and recorded its result before
// it died. That is refused, and touches nothing. The answer is whether the container lives now.
func next(h *rig.Host, c *rig.Container, call string) (live bool, err error) {
	var run rig.Run
	switch call {
	case "ADD":
		refused := records(h)[fmt.Sprintf("%s:%s:eth0.json", h.Name, c.ID)] == "added"
		if run = h.Add(c); refused && run.OK() {
			return true, fmt.Errorf("%s: a second ADD succeeded", c.Name)
		} else if refused {
			return true, nil
		}
		live = true
	case "DEL":
		run = h.Del(c)
	case "DEL without prevResult":
		if err := h.Forget(c); err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		run = h.Tool("del", c, "CAP_ARGS=")
	}
	if !run.OK() {
		err = fmt.Errorf("%s: %s: %v", c.Name, call, run)
	}
	return live, err
}

// TestTorture kills at random, from outside and at random steps, what runs for several containers at once, and then
// lets the runtime go on. After each round exactly that is there which should be.
func TestTorture(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	fmt.Printf("TestTorture: -seed=%d -kills=%d\n", seed, *killsFlag)
	var total atomic.Int64
	t.Run("hosts", func(t *testing.T) {
		hosts := []struct {
			set     rig.Set
			backend string
			dual    bool
		}{{rig.New, rig.NFT, true}, {rig.New, rig.Legacy, false}, {rig.Old, rig.NFT, false}}
		for i, host := range hosts {
			t.Run(host.set.Name+"/"+host.backend, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, host.set, host.backend)
				plugins := h.Usual()
				if host.dual {
					plugins = h.Dual()
				}
				r := newTorture(t, h, rand.New(rand.NewPCG(seed, uint64(i))), plugins)
				for r.kills.Load() < int64(*killsFlag/len(hosts)+1) {
					before := r.kills.Load()
					if r.round(); r.kills.Load()/50 > before/50 {
						fmt.Printf("%s: %d kills\n", t.Name(), r.kills.Load())
					}
					if t.Failed() {
						t.Fatalf("that was after %d kills with -seed=%d", r.kills.Load(), seed)
					}
				}
				total.Add(r.kills.Load())
			})
		}
	})
	fmt.Printf("TestTorture: %d kills\n", total.Load())
}

// A torture is one host on which containers come and go.
type torture struct {
	t          *testing.T
	h          *rig.Host
	rand       *rand.Rand
	exact      *exact
	containers []*rig.Container
	live       map[*rig.Container]bool
	kills      atomic.Int64
	took       time.Duration // of one call among many
}

func newTorture(t *testing.T, h *rig.Host, random *rand.Rand, plugins []rig.Plugin) *torture {
	t.Helper()
	ok(t, h.WithFaults())
	ok(t, h.Wrapped(plugins...))
	r := &torture{t: t, h: h, rand: random, live: map[*rig.Container]bool{}}
	r.containers = newContainers(t, h, 4)
	r.exact = learn(t, h, r.containers)
	for _, call := range []func(*rig.Container) rig.Run{h.Add, h.Del} {
		_, took := rig.All(r.containers, call)
		r.took = max(r.took, took)
	}
	return r
}

// A disturbance is what happens to one call.
type disturbance struct {
	kind string // step, lockwrap, caller, plugin, stop, nothing
	at   int    // the step
	when time.Duration
	next string
}

// round disturbs one call for each container, all at once, and then the runtime goes on.
func (r *torture) round() {
	plan := map[*rig.Container]disturbance{}
	for _, c := range r.containers {
		plan[c] = disturbance{
			kind: []string{"step", "step", "lockwrap", "lockwrap", "caller", "plugin", "stop", "nothing"}[r.rand.IntN(8)],
			at:   1 + r.rand.IntN(25),
			when: time.Duration(r.rand.Int64N(int64(r.took))),
			next: nextCalls[r.rand.IntN(len(nextCalls))],
		}
	}
	failed := map[*rig.Container]bool{}
	var mu sync.Mutex
	rig.All(r.containers, func(c *rig.Container) rig.Run {
		run, hit := r.disturbed(c, plan[c])
		mu.Lock()
		defer mu.Unlock()
		failed[c] = !run.OK()
		if hit {
			r.kills.Add(1)
		} else if !run.OK() {
			r.t.Errorf("%s failed though nothing was killed: %v", c.Name, run)
		}
		return run
	})
	r.awaitQuiet()
	rig.All(r.containers, func(c *rig.Container) rig.Run {
		mu.Lock()
		live, err := !r.live[c], error(nil)
		mu.Unlock()
		if failed[c] {
			if live, err = next(r.h, c, plan[c].next); err != nil {
				r.t.Errorf("after %+v: %v", plan[c], err)
			}
		}
		mu.Lock()
		r.live[c] = live
		mu.Unlock()
		return rig.Run{}
	})
	var live []*rig.Container
	for _, c := range r.containers {
		if r.live[c] {
			live = append(live, c)
		}
	}
	if err := r.exact.check(live); err != nil {
		r.t.Errorf("%v\nafter %v", err, plan)
	}
}

// disturbed adds the container, or deletes it if it lives, and kills something meanwhile.
func (r *torture) disturbed(c *rig.Container, d disturbance) (run rig.Run, hit bool) {
	verb := "add"
	if r.live[c] {
		verb = "del"
	}
	if d.kind == "step" {
		run := r.h.Tool(verb, c, "LOCKWRAP_FAULT_AT="+strconv.Itoa(d.at))
		return run, !run.OK()
	}
	done := make(chan rig.Run)
	go func() { done <- r.h.Tool(verb, c) }()
	time.Sleep(d.when)
	switch d.kind {
	case "lockwrap":
		hit = kill(c, syscall.SIGKILL, "lockwrap")
	case "stop":
		hit = kill(c, syscall.SIGTERM, "lockwrap")
	case "plugin":
		hit = kill(c, syscall.SIGKILL, "bridge", "firewall", "portmap")
	case "caller":
		hit = kill(c, syscall.SIGKILL, "cnitool")
	}
	return <-done, hit
}

// kill sends a signal to a program that works for a container.
func kill(c *rig.Container, signal syscall.Signal, programs ...string) (hit bool) {
	for pid, p := range rig.Processes() {
		if slices.Contains(programs, p.Name) && p.WorksFor(c) {
			hit = syscall.Kill(pid, signal) == nil || hit
		}
	}
	return hit
}

// awaitQuiet waits until nothing runs on the host.
func (r *torture) awaitQuiet() {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		var busy []string
		for pid, p := range rig.Processes() {
			if p.On(r.h) {
				busy = append(busy, fmt.Sprintf("%d %s", pid, p.Name))
			}
		}
		if len(busy) == 0 {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("still running: %q", busy)
		}
	}
}

// A stage is a call whose every step is a place to die.
type stage struct {
	name   string
	adding bool
	fails  bool // portmap does, so there is an undo
	dead   bool // an ADD was killed before it, so there is a recovery
}

// TestTorture_steps kills lockwrap at each step of each kind of call.
func TestTorture_steps(t *testing.T) {
	stages := []stage{
		{name: "ADD", adding: true},
		{name: "ADD that fails", adding: true, fails: true},
		{name: "ADD after a killed one", adding: true, dead: true},
		{name: "DEL"},
	}
	var points atomic.Int64
	t.Run("stages", func(t *testing.T) {
		for _, s := range stages {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				h := newHost(t, rig.New, rig.NFT)
				// A portmap that fails when it is told to, having done its work.
				ok(t, h.Shim("portmap", `if [ "$CNI_COMMAND" = ADD ] && [ -e "$dir/fail" ]; then
	"$real" "$@" >/dev/null; exit 3
fi`))
				ok(t, h.WithFaults())
				ok(t, h.Wrapped(h.Usual()...))
				c := newContainer(t, h)
				x := learn(t, h, []*rig.Container{c})
				for at := 1; ; at++ {
					died := false
					for i, call := range nextCalls {
						if !*allFlag && i != at%len(nextCalls) {
							continue
						}
						died = killedAt(t, h, c, x, s, at, call)
						points.Add(1)
						if t.Failed() {
							t.Fatalf("that was step %d of %s, then %s; the steps are\n%s", at, s.name, call, steps(h))
						}
						if !died {
							break
						}
					}
					if !died {
						fmt.Printf("TestTorture_steps: %s has %d steps: %s\n", s.name, at-1, strings.ReplaceAll(strings.TrimSpace(steps(h)), "\n", ", "))
						return
					}
				}
			})
		}
	})
	fmt.Printf("TestTorture_steps: %d calls\n", points.Load())
}

func steps(h *rig.Host) string {
	data, _ := os.ReadFile(filepath.Join(h.Dir, "steps"))
	return string(data)
}

// killedAt kills one call at a step, makes the runtime's next one and looks at the host. It tells whether the call had
// so many steps.
func killedAt(t *testing.T, h *rig.Host, c *rig.Container, x *exact, s stage, at int, call string) (died bool) {
	t.Helper()
	log, fail := filepath.Join(h.Dir, "steps"), filepath.Join(h.Dir, "fail")
	if s.dead {
		if run := h.Tool("add", c, "LOCKWRAP_FAULT_AT=14"); run.OK() {
			t.Fatal("ADD was not killed")
		}
	}
	if !s.adding {
		must(t, "ADD", h.Add(c))
	}
	if s.fails {
		ok(t, os.WriteFile(fail, nil, 0o600))
	}
	_ = os.Remove(log)
	verb := "del"
	if s.adding {
		verb = "add"
	}
	run := h.Tool(verb, c, "LOCKWRAP_FAULT_AT="+strconv.Itoa(at), "LOCKWRAP_FAULT_LOG="+log)
	_ = os.Remove(fail)
	died = strings.Count(steps(h), "\n") == at
	if run.OK() != (!died && !s.fails) {
		t.Fatalf("%s: %v", s.name, run)
	}
	live := s.adding
	if !run.OK() {
		var err error
		live, err = next(h, c, call)
		ok(t, err)
	}
	if live {
		ok(t, x.check([]*rig.Container{c}))
		must(t, "DEL", h.Del(c))
	}
	ok(t, x.check(nil))
	return died
}

// TestTorture_flush removes all rules and chains between any two steps of ADD and of DEL, as firewalld does when it is
// restarted (plugins#512). An ADD may fail then; nothing is left, and the next one works.
func TestTorture_flush(t *testing.T) {
	for _, verb := range []string{"add", "del"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, rig.New, rig.NFT)
			ok(t, h.WithFaults())
			ok(t, h.Wrapped(h.Usual()...))
			flush, err := h.FlushScript()
			ok(t, err)
			c := newContainer(t, h)
			log := filepath.Join(h.Dir, "steps")
			stride := 3
			if *allFlag {
				stride = 1
			}
			for at := 1; ; at += stride {
				_ = os.Remove(log)
				if verb == "del" {
					must(t, "ADD", h.Add(c))
				}
				run := h.Tool(verb, c, "LOCKWRAP_FAULT_AT="+strconv.Itoa(at), "LOCKWRAP_FAULT_DO="+flush, "LOCKWRAP_FAULT_LOG="+log)
				what := fmt.Sprintf("%s flushed at step %d (%s)", verb, at, lastLine(steps(h)))
				switch {
				case !run.OK() && verb == "add":
					mustBeClean(t, h, c, what)
				case !run.OK():
					t.Errorf("%s: %v", what, run)
				}
				must(t, "DEL after "+what, h.Del(c))
				must(t, "ADD after "+what, h.Add(c))
				must(t, "CHECK after "+what, h.Check(c))
				must(t, "DEL after "+what, h.Del(c))
				mustBeGone(t, h, what)
				if strings.Count(steps(h), "\n") < at {
					return
				}
				if t.Failed() {
					return
				}
			}
		})
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
