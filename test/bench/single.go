// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lockwrap/lockwrap/test/rig"
)

// single measures one ADD and one DEL at a time, on hosts that have had some before.
func (b *bench) single() error {
	fmt.Printf("\nOne ADD and one DEL at a time, warm, %d rounds; ratios to the bare list with their quarter points\n", b.pairs)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "iptables\tverb\tlist\tms\tx bare\tcpu ms\tcpu x bare\t")
	for _, backend := range b.backends {
		if err := b.singleOn(backend); err != nil {
			return err
		}
		for _, verb := range []string{"add", "del"} {
			for _, s := range sides {
				k := what{"single", backend, 1, "warm", verb, s.name, "wall"}
				cpu := k.of("cpu")
				fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\t%s\t%.1f\t%s\t\n", backend, strings.ToUpper(verb), s.name,
					b.median(k), spread(b.ratios(k, bare)), b.median(cpu), spread(b.ratios(cpu, bare)))
			}
		}
	}
	w.Flush()
	for _, backend := range b.backends {
		if err := b.breakdown(backend); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) singleOn(backend string) error {
	hosts := map[string]*rig.Host{}
	containers := map[string]*rig.Container{}
	for _, s := range sides {
		h, err := s.newHost(backend)
		if err != nil {
			return err
		}
		defer h.Close()
		c, err := h.NewContainer()
		if err != nil {
			return err
		}
		hosts[s.name], containers[s.name] = h, c
	}
	const warmUp = 2
	for i := range warmUp + b.pairs {
		for _, verb := range []string{"add", "del"} {
			for _, s := range turn(i) {
				run := hosts[s.name].Tool(verb, containers[s.name])
				if !run.OK() {
					return fmt.Errorf("%s, %s: %v", s.name, verb, run)
				}
				if i >= warmUp {
					k := what{"single", backend, 1, "warm", verb, s.name, "wall"}
					b.add(k, ms(run.Took))
					b.add(k.of("cpu"), ms(run.CPU))
				}
			}
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// part is one of a call in lockwrap's log at debug.
var part = regexp.MustCompile(` (\S+)=([0-9.]+[mµn]?s)\b`)

// breakdown prints where the time of a wrapped call goes, by lockwrap's own log.
func (b *bench) breakdown(backend string) error {
	const calls = 20
	h, err := rig.NewHost(rig.New, backend)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.Wrapped(h.Usual()...); err != nil {
		return err
	}
	log, err := debugLog(h)
	if err != nil {
		return err
	}
	c, err := h.NewContainer()
	if err != nil {
		return err
	}
	for range calls {
		for _, verb := range []string{"add", "del"} {
			if run := h.Tool(verb, c); !run.OK() {
				return fmt.Errorf("%s: %v", verb, run)
			}
		}
	}
	for _, verb := range []string{"ADD", "DEL"} {
		names, took, err := readParts(log, verb)
		if err != nil {
			return err
		}
		fmt.Printf("\nWhere the time of one wrapped %s goes, %s, median of %d, ms\n ", verb, backend, calls)
		own := 0.0
		for _, name := range names {
			k := what{"breakdown", backend, 1, "warm", strings.ToLower(verb), "wrapped", name}
			for _, v := range took[name] {
				b.add(k, v)
			}
			fmt.Printf(" %s %.2f ", name, b.median(k))
			if !isDelegate(name) {
				own += b.median(k)
			}
		}
		fmt.Printf("\n  lockwrap's own: %.2f\n", own)
	}
	return nil
}

func isDelegate(part string) bool { return part == "bridge" || part == "firewall" || part == "portmap" }

// readParts reads the times of the parts of all calls of a verb from lockwrap's log, and their names in order.
func readParts(log, verb string) (names []string, took map[string][]float64, err error) {
	data, err := os.ReadFile(log)
	if err != nil {
		return nil, nil, err
	}
	took = map[string][]float64{}
	for line := range strings.Lines(string(data)) {
		if !strings.Contains(line, `msg="where the time went" verb=`+verb+" ") {
			continue
		}
		for _, m := range part.FindAllStringSubmatch(line, -1) {
			d, err := time.ParseDuration(m[2])
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", line, err)
			}
			if _, seen := took[m[1]]; !seen {
				names = append(names, m[1])
			}
			took[m[1]] = append(took[m[1]], ms(d))
		}
	}
	if len(names) == 0 {
		return nil, nil, fmt.Errorf("%s tells no times of %s", log, verb)
	}
	return names, took, nil
}
