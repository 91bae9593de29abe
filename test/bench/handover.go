// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockwrap/lockwrap/test/rig"
)

const waiters = 100

// handover measures how long the lock is nobody's while many wait for it, and whether they are served in the order in
// which they came. Each has one delegate that costs nothing.
func (b *bench) handover() error {
	h, err := newFakeHost(1, true)
	if err != nil {
		return err
	}
	defer h.Close()
	log, err := debugLog(h)
	if err != nil {
		return err
	}
	var containers []*rig.Container
	for range waiters {
		c, err := h.NewContainer()
		if err != nil {
			return err
		}
		containers = append(containers, c)
	}
	if run := h.Add(containers[0]); !run.OK() { // makes the lock file
		return fmt.Errorf("add: %v", run)
	}
	if run := h.Del(containers[0]); !run.OK() {
		return fmt.Errorf("del: %v", run)
	}
	if err := os.Remove(log); err != nil {
		return err
	}

	lock, err := os.OpenFile(filepath.Join(h.StateDir(), "lock"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	released := make(chan error, 1)
	go func() { released <- releaseAt(lock, waiters) }()
	runs, _ := rig.All(containers, h.Add)
	for _, run := range runs {
		if !run.OK() {
			return fmt.Errorf("add: %v", run)
		}
	}
	if err := <-released; err != nil {
		return err
	}
	calls, err := readCalls(log)
	if err != nil {
		return err
	}
	if len(calls) != waiters {
		return fmt.Errorf("%s has %d calls, not %d", log, len(calls), waiters)
	}
	slices.SortFunc(calls, func(a, b call) int { return a["locked"].Compare(b["locked"]) })
	k := what{part: "handover", atOnce: waiters, verb: "add", side: "wrapped"}
	inOrder, pairs := 0, 0
	for i, c := range calls {
		if i > 0 {
			b.add(k.of("lock"), ms(c["locked"].Sub(calls[i-1]["unlocked"])))
			b.add(k.of("prepare"), ms(c["recovered"].Sub(c["locked"])))
			b.add(k.of("exec"), ms(c["fake1 started"].Sub(c["recovered"])))
			b.add(k.of("all"), ms(c["fake1 started"].Sub(calls[i-1]["unlocked"])))
		}
		for _, later := range calls[i+1:] {
			pairs++
			if c["located"].Before(later["located"]) {
				inOrder++
			}
		}
	}
	b.add(k.of("in order"), 100*float64(inOrder)/float64(pairs))
	fmt.Printf("\nHand-over of the lock, %d waiters, from one's release to the exec of the next one's delegate, ms: median (90 of 100)\n", waiters)
	for _, figure := range []string{"lock", "prepare", "exec", "all"} {
		fmt.Printf("  %-8s %.2f (%.2f)\n", figure, b.median(k.of(figure)), quantile(b.values[k.of(figure)], 0.9))
	}
	fmt.Printf("  %.1f %% of all pairs of calls were served in the order in which they came\n", b.sum(k.of("in order")))
	return nil
}

// releaseAt gives the lock away when so many wait for it.
func releaseAt(lock *os.File, n int) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(lock.Fd()), &st); err != nil {
		return err
	}
	waits := regexp.MustCompile(fmt.Sprintf(`-> FLOCK .*:%d 0 EOF`, st.Ino))
	for range 3000 {
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			return err
		}
		if len(waits.FindAll(locks, -1)) >= n {
			return unix.Flock(int(lock.Fd()), unix.LOCK_UN)
		}
		time.Sleep(10 * time.Millisecond)
	}
	_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
	return fmt.Errorf("after 30 s there are not %d who wait for the lock", n)
}

// call is when a call has reached its steps.
type call map[string]time.Time

var step = regexp.MustCompile(`^time=(\S+) .*msg=reached .*container=(\S+) .*step="?([^"=]+?)"? after=`)

func readCalls(log string) (calls []call, err error) {
	data, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	byContainer := map[string]call{}
	for line := range strings.Lines(string(data)) {
		m := step.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		if byContainer[m[2]] == nil {
			byContainer[m[2]] = call{}
			calls = append(calls, byContainer[m[2]])
		}
		byContainer[m[2]][m[3]] = at
	}
	return calls, nil
}
