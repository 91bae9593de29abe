// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/lockwrap/lockwrap/test/rig"
)

// start measures what it costs to start lockwrap, by its bare run, and then what it does in a call by a list of plugins that
// cost nothing. Callgrind can't follow a whole call, so that is told in time and in pages.
func (b *bench) start() error {
	fmt.Println("\nStart of a process: the bare run (about line), median of 50")
	h, err := newFakeHost(3, true)
	if err != nil {
		return err
	}
	defer h.Close()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "program\tbytes\tinstructions\tpages\tcpu ms\tms\t")
	programs := [][2]string{{"lockwrap", rig.Bin("lockwrap")}}
	for _, plugin := range []string{"bridge", "host-local", "firewall", "portmap"} {
		programs = append(programs, [2]string{plugin, rig.Bin("plugins/v1.10.0/" + plugin)})
	}
	programs = append(programs, [2]string{"true", "/bin/true"})
	for _, p := range programs {
		if err := b.startOf(h, p[0], p[1]); err != nil {
			return fmt.Errorf("%s: %w", p[0], err)
		}
		k := what{part: "start", side: p[0]}
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t\n", p[0], b.median(k.of("bytes")), b.median(k.of("instructions")),
			b.median(k.of("pages")), b.median(k.of("cpu")), b.median(k.of("wall")))
	}
	w.Flush()

	return b.added()
}

// added measures what lockwrap adds to a list of three plugins that cost nothing: its start, and its own work.
func (b *bench) added() error {
	fmt.Printf("\nWhat lockwrap adds to a call of three plugins that cost nothing, median of %d pairs\n", b.pairs)
	hosts := map[string]*rig.Host{}
	containers := map[string]*rig.Container{}
	for _, wrapped := range []bool{false, true} {
		h, err := newFakeHost(3, wrapped)
		if err != nil {
			return err
		}
		defer h.Close()
		c, err := h.NewContainer()
		if err != nil {
			return err
		}
		name := bare
		if wrapped {
			name = "wrapped"
		}
		hosts[name], containers[name] = h, c
	}
	for i := range 2 + b.pairs {
		for _, verb := range []string{"add", "del"} {
			for _, s := range []string{bare, "wrapped"} {
				run := hosts[s].Tool(verb, containers[s])
				if !run.OK() {
					return fmt.Errorf("%s, %s: %v", s, verb, run)
				}
				if i < 2 {
					continue // warming up
				}
				k := what{part: "added", atOnce: 1, verb: verb, side: s}
				b.add(k.of("wall"), ms(run.Took))
				b.add(k.of("cpu"), ms(run.CPU))
				b.add(k.of("pages"), float64(run.Faults))
			}
		}
	}
	for _, verb := range []string{"add", "del"} {
		k := what{part: "added", atOnce: 1, verb: verb, side: "wrapped"}
		fmt.Printf("  %s  %.2f ms, %.2f ms of cpu, %.0f pages\n", strings.ToUpper(verb), b.more(k.of("wall")), b.more(k.of("cpu")), b.more(k.of("pages")))
	}
	return nil
}

// more is what a side takes beyond the bare one.
func (b *bench) more(k what) float64 {
	var differences []float64
	for i, v := range b.values[k] {
		differences = append(differences, v-b.values[k.beside(bare)][i])
	}
	return quantile(differences, 0.5)
}

func (b *bench) startOf(h *rig.Host, name, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	k := what{part: "start", side: name}
	b.add(k.of("bytes"), float64(info.Size()))
	n, err := instructions(h, path)
	if err != nil {
		return err
	}
	b.add(k.of("instructions"), n)
	for range 50 {
		run := h.Exec(path)
		if !run.OK() {
			return errors.New(run.String())
		}
		b.add(k.of("pages"), float64(run.Faults))
		b.add(k.of("cpu"), ms(run.CPU))
		b.add(k.of("wall"), ms(run.Took))
	}
	return nil
}

var refs = regexp.MustCompile(`I +refs: +([0-9,]+)`)

// instructions counts those that a program executes. Callgrind does not know an instruction by which the Go runtime, if
// two threads meet at a lock, reads the clock; so it is tried more than once.
func instructions(h *rig.Host, path string) (n float64, err error) {
	for range 5 {
		run := h.Exec("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", path)
		m := refs.FindStringSubmatch(run.Stderr)
		if run.OK() && m != nil {
			return strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64)
		}
		err = fmt.Errorf("callgrind: %v", run)
	}
	return 0, err
}
