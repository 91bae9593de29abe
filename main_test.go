// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	// Under the last two names it stands in.
	testscript.Main(m, map[string]func(){"lockwrap": main, "bridge": main, "firewall": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("wrap", "operator", "testdata", "script"),
		Condition: func(name string) (bool, error) {
			if name != "cache" { // uninstall can look into that of libcni
				return false, errors.New("unknown condition")
			}
			_, err := os.ReadDir("/var/lib/cni/results")
			return err == nil || errors.Is(err, fs.ErrNotExist), nil
		},
	})
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
		info, err := os.Stat(build(t, "-trimpath", "-ldflags=-s -w"))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() >= limit {
			t.Errorf("the binary has %d bytes, the limit is %d", info.Size(), limit)
		}
		t.Logf("%d bytes", info.Size())
	})
}

// Nomad takes the first semantic version in the about line.
func TestVersion(t *testing.T) {
	const release = "-ldflags=-X github.com/lockwrap/lockwrap/wrap.release="
	tests := []struct {
		name  string
		flags []string
		want  string // a regular expression
	}{
		{"release", []string{release + "v1.2.3"}, `^v1\.2\.3$`},
		{"candidate", []string{release + "v1.2.3-rc.1"}, `^v1\.2\.3-rc\.1$`},
		{"no version", []string{release + "nightly", "-buildvcs=false"}, `^v0\.1\.0-dev$`},
		{"nothing known", []string{"-buildvcs=false"}, `^v0\.1\.0-dev$`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bare := exec.Command(build(t, tt.flags...))
			about, err := bare.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, about)
			}
			line, _, _ := strings.Cut(string(about), "\n")
			got, ok := strings.CutPrefix(line, "CNI lockwrap plugin ")
			if !ok || !regexp.MustCompile(tt.want).MatchString(got) {
				t.Errorf("%q, want the version %s", line, tt.want)
			}
		})
	}
}

func build(t *testing.T, flags ...string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "lockwrap")
	build := exec.Command("go", append(append([]string{"build"}, flags...), "-o", file, ".")...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}
