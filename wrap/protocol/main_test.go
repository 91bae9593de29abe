// SPDX-License-Identifier: Apache-2.0

// Package protocol drives the built lockwrap binary from outside, as a runtime does, with fake plugins as delegates.
// It needs no root: no test enters a namespace or calls iptables.
package protocol

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
)

var (
	seedFlag  = flag.Uint64("seed", 1, "seed of the first generated list (0: from the clock); a gate must not be a lottery")
	listsFlag = flag.Int("lists", 0, "how many lists to generate (0: 500, or 15 with -short)")
)

// What TestMain built. lockwrapDir holds nothing but lockwrap, so it can stand on CNI_PATH.
var (
	lockwrapDir string
	lockwrapBin string
	fakeBin     string
)

func TestMain(m *testing.M) {
	// Most of the time goes into waiting for children, and some of it into waiting for a timeout.
	_ = flag.Set("test.parallel", "6")
	flag.Parse()
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	tmp, err := os.MkdirTemp("", "lockwrap-protocol")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(tmp)
	lockwrapDir = filepath.Join(tmp, "lockwrap")
	lockwrapBin = filepath.Join(lockwrapDir, "lockwrap")
	fakeBin = filepath.Join(tmp, "fakeplugin")

	// A host that runs lockwrap may have a configuration; it must not reach these tests.
	hostConf := filepath.Join(tmp, "config.json")
	if err := os.WriteFile(hostConf, []byte("{}\n"), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv("LOCKWRAP_CONFIG", hostConf)
	os.Unsetenv("LOCKWRAP_HELD")
	if signal.Ignored(os.Interrupt) { // a shell's background job; our children must not inherit that
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}

	lockwrapArgs := []string{"build", "-o", lockwrapBin}
	if raceEnabled {
		lockwrapArgs = append(lockwrapArgs, "-race")
	}
	for _, b := range []struct {
		cgo  bool
		args []string
	}{
		{raceEnabled, append(lockwrapArgs, "github.com/lockwrap/lockwrap")},
		{false, []string{"build", "-o", fakeBin, "./testdata/fakeplugin"}},
	} {
		cmd := exec.Command("go", b.args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b.cgo {
			cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go %v: %v\n%s", b.args, err, out)
			return 1
		}
	}
	return m.Run()
}
