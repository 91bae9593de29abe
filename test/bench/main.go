// SPDX-License-Identifier: Apache-2.0

// Bench measures lockwrap against what a user would run instead: the bare list, and the bare list with flock(1) around
// each container's whole chain, the floor for any lock. All sides are measured in one run, alternating, each on a host (a
// network namespace) of its own; what is compared are their ratios. It prints tables and writes all measurements to
// bench.csv and a plot to bench.svg, in the directory -out.
//
// It exits with 1 if a call through lockwrap failed or a rule was duplicated. Times never make it fail.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lockwrap/lockwrap/test/rig"
)

// bench is one run.
type bench struct {
	backends []string
	sizes    []int // calls at once
	rounds   int   // of each size
	pairs    int   // of single calls
	out      string
	results
}

var parts = []struct {
	name string
	run  func(*bench) error
}{
	{"start", (*bench).start},
	{"single", (*bench).single},
	{"growth", (*bench).growth},
	{"handover", (*bench).handover},
	{"burst", (*bench).burst},
}

func main() {
	var names, backends, sizes []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	list := func(p *[]string, name, value, usage string) {
		*p = strings.Split(value, ",")
		flag.Func(name, usage+" (default "+value+")", func(s string) error {
			*p = strings.Split(s, ",")
			return nil
		})
	}
	b := &bench{}
	list(&names, "parts", strings.Join(names, ","), "what to measure")
	list(&backends, "iptables", rig.NFT+","+rig.Legacy, "kinds of iptables")
	list(&sizes, "sizes", "1,2,8,24,50", "calls at once")
	flag.IntVar(&b.rounds, "rounds", 3, "measurements of each size")
	flag.IntVar(&b.pairs, "pairs", 50, "measurements of single calls")
	flag.StringVar(&b.out, "out", ".", "directory of the results")
	flag.Parse()
	b.backends = backends
	for _, s := range sizes {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			fail(fmt.Errorf("-sizes: %q is not a number of calls", s))
		}
		b.sizes = append(b.sizes, n)
	}

	if err := rig.Enter(); err != nil {
		fail(err)
	}
	if os.Geteuid() != 0 {
		fail(rig.ErrNotRoot)
	}
	// Whatever was made is in namespaces that end with this process.
	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-interrupt
		fmt.Println("\ninterrupted; all namespaces are gone")
		os.Exit(130)
	}()
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		fail(err)
	}

	fmt.Println(machine())
	for _, p := range parts {
		for _, name := range names {
			if name != p.name {
				continue
			}
			began := time.Now()
			if err := p.run(b); err != nil {
				fail(fmt.Errorf("%s: %w", p.name, err))
			}
			fmt.Printf("(%s took %s)\n", p.name, time.Since(began).Round(time.Second))
			if err := b.write(filepath.Join(b.out, "bench.csv")); err != nil { // so far
				fail(err)
			}
		}
	}
	if err := b.plot(filepath.Join(b.out, "bench.svg")); err != nil {
		fail(err)
	}
	if wrong := b.wrong(); len(wrong) > 0 {
		fmt.Println("\nFAIL: " + strings.Join(wrong, "\nFAIL: "))
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// machine is what the figures are of.
func machine() string {
	var uts syscall.Utsname
	_ = syscall.Uname(&uts)
	var release strings.Builder
	for _, c := range uts.Release {
		if c == 0 {
			break
		}
		release.WriteByte(byte(c))
	}
	cpu, cores := "unknown processor", 0
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			cpu = strings.TrimSpace(value)
			cores++
		}
	}
	return fmt.Sprintf("%d x %s, kernel %s, plugins %s", cores, cpu, release.String(), rig.New.Name)
}
