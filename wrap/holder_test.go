// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseLocks(t *testing.T) {
	const locks = `1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF
1: -> FLOCK  ADVISORY  WRITE 4712 00:19:1234 0 EOF
1: -> FLOCK  ADVISORY  WRITE 4713 00:19:1234 0 EOF
2: POSIX  ADVISORY  WRITE 99 00:19:1234 0 EOF
3: FLOCK  ADVISORY  WRITE 98 00:19:12345 0 EOF
4: FLOCK
garbage
`
	tests := []struct {
		name, file string
		holder     int
		waiters    []int
	}{
		{"held and waited for", "00:19:1234", 4711, []int{4712, 4713}},
		{"held", "00:19:12345", 98, nil},
		{"not locked", "00:19:1", 0, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			holder, waiters := parseLocks(locks, tt.file)
			if holder != tt.holder || !cmp.Equal(waiters, tt.waiters) {
				t.Errorf("got %d, %v; want %d, %v", holder, waiters, tt.holder, tt.waiters)
			}
		})
	}
}

func TestParseStat(t *testing.T) {
	const fields = " S 10 20 20 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 555 1 2"
	tests := []struct {
		name, stat string
		want       process
		bad        bool
	}{
		{"plain", "7 (sh)" + fields, process{state: "S", parent: 10, group: 20, session: 20, start: 555}, false},
		{"a name like a stat line", "7 (a) S 1 (b))" + fields, process{state: "S", parent: 10, group: 20, session: 20, start: 555}, false},
		{"cut", "7 (sh) S 10", process{}, true},
		{"empty", "", process{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseStat(tt.stat)
			if got != tt.want || (err != nil) != tt.bad {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestReadProcess(t *testing.T) {
	p, err := readProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if p.parent != os.Getppid() {
		t.Errorf("parent is %d, want %d", p.parent, os.Getppid())
	}
	if age := p.age(); age < 0 || age > time.Hour {
		t.Errorf("age is %s", age)
	}
	if !isAncestor(os.Getppid()) || isAncestor(os.Getpid()) {
		t.Error("isAncestor is wrong about our parent or ourselves")
	}
}

// Only processes with the dead holder's mark are waited for and killed: the
// group's number may belong to somebody else by now.
func TestStragglers(t *testing.T) {
	start := func(env ...string) *exec.Cmd {
		cmd := exec.Command("sleep", "60")
		cmd.Env = env
		cmd.SysProcAttr = newGroup
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	marked := start(heldVariable + "=" + heldMark(7, "/l"))
	other := start(heldVariable + "=" + heldMark(77, "/l"))
	deadline := time.Now().Add(10 * time.Second)
	for len(stragglers(heldMark(7, "/l"), inGroup(marked.Process.Pid))) == 0 { // until it has exec'ed
		if time.Now().After(deadline) {
			t.Fatal("does not see the straggler")
		}
		time.Sleep(time.Millisecond)
	}
	if got := stragglers(heldMark(7, "/l"), inGroup(other.Process.Pid)); len(got) > 0 {
		t.Errorf("took %v for stragglers", got)
	}
}

func TestDescribeHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if got := describeHolder(path, os.Getpid()); !strings.Contains(got, filepath.Base(os.Args[0])) {
		t.Errorf("%q does not name the command", got)
	}
	if err := os.WriteFile(path, []byte(`{"pid": 1, "verb": "ADD", "container": "c1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := describeHolder(path, os.Getpid()); strings.Contains(got, "c1") {
		t.Errorf("%q believes the note of another process", got)
	}
}
