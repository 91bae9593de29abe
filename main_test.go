// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	// Under the last two names it stands in.
	testscript.Main(m, map[string]func(){"lockwrap": main, "bridge": main, "firewall": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: filepath.Join("wrap", "operator", "testdata", "script")})
}

// What runs at every container start stays small and quick to start.
func TestBudget(t *testing.T) {
	t.Run("dependencies", func(t *testing.T) {
		out, err := exec.Command("go", "list", "-deps", ".").Output()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(out), "github.com/lockwrap/lockwrap/wrap\n") {
			t.Fatalf("cannot read the dependencies:\n%s", out)
		}
		for _, pkg := range strings.Fields(string(out)) {
			if pkg == "net/http" || strings.HasPrefix(pkg, "go.opentelemetry.io/") {
				t.Errorf("%s is linked", pkg)
			}
		}
	})
	t.Run("size", func(t *testing.T) {
		const limit = 4_000_000
		file := filepath.Join(t.TempDir(), "lockwrap")
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() >= limit {
			t.Errorf("the binary has %d bytes, the limit is %d", info.Size(), limit)
		}
		t.Logf("%d bytes", info.Size())
	})
}
