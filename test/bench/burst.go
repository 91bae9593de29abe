// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/lockwrap/lockwrap/test/rig"
)

// burst measures many calls at once: ADD on a host without any chain, DEL of all, and the same once more on the host as
// it is then.
func (b *bench) burst() error {
	fmt.Printf("\nMany calls at once, %d rounds; ratios of the time until the last one ends, median and between what\n", b.rounds)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "iptables\tat once\thost\tverb\tlist\ts\tx bare\tx flock\tp50 s\tp99 s\tfailed\tduplicated\t")
	pool, err := rig.NewHost(rig.New, rig.NFT)
	if err != nil {
		return err
	}
	defer pool.Close()
	var containers []*rig.Container
	for range slices.Max(b.sizes) {
		c, err := pool.NewContainer()
		if err != nil {
			return err
		}
		containers = append(containers, c)
	}
	for _, backend := range b.backends {
		for _, n := range b.sizes {
			for round := range b.rounds {
				for _, s := range turn(round) {
					if err := b.burstOf(s, backend, pool, containers[:n]); err != nil {
						return fmt.Errorf("%s, %s, %d at once: %w", s.name, backend, n, err)
					}
				}
			}
			b.burstLines(w, backend, n)
		}
		w.Flush()
	}
	return nil
}

func (b *bench) burstLines(w *tabwriter.Writer, backend string, n int) {
	for _, host := range []string{"cold", "warm"} {
		for _, verb := range []string{"add", "del"} {
			for _, s := range sides {
				k := what{"burst", backend, n, host, verb, s.name, "wall"}
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%.2f\t%s\t%s\t%.2f\t%.2f\t%.0f\t%.0f\t\n", backend, n, host,
					strings.ToUpper(verb), s.name, b.median(k)/1000, spread(b.ratios(k, bare)), spread(b.ratios(k, floor)),
					b.median(k.of("p50"))/1000, b.median(k.of("p99"))/1000, b.sum(k.of("failed")), b.sum(k.of("duplicated")))
			}
		}
	}
}

// burstOf is one side of one round. The containers are another host's: namespaces that come and go would be in the way
// of the next measurement.
func (b *bench) burstOf(s side, backend string, pool *rig.Host, containers []*rig.Container) error {
	h, err := s.newHost(backend)
	if err != nil {
		return err
	}
	defer h.Close()
	for _, host := range []string{"cold", "warm"} {
		for _, verb := range []string{"add", "del"} {
			runs, took := rig.All(containers, func(c *rig.Container) rig.Run { return h.Tool(verb, c) })
			k := what{"burst", backend, len(containers), host, verb, s.name, "wall"}
			b.add(k, ms(took))
			var each []float64
			failed := 0
			for _, run := range runs {
				each = append(each, ms(run.Took))
				if !run.OK() {
					failed++
				}
			}
			b.add(k.of("p50"), quantile(each, 0.5))
			b.add(k.of("p99"), quantile(each, 0.99))
			b.add(k.of("failed"), float64(failed))
			state, err := h.State()
			if err != nil {
				return err
			}
			b.add(k.of("duplicated"), float64(len(state.Duplicates())))
		}
	}
	for _, c := range containers {
		links, err := pool.ContainerLinks(c)
		if err != nil {
			return err
		}
		if len(links) > 0 { // of an ADD that failed
			if run := pool.In(c, "ip", "link", "del", "eth0"); !run.OK() {
				return fmt.Errorf("ip link del: %v", run)
			}
		}
	}
	return nil
}
