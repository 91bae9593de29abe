// SPDX-License-Identifier: Apache-2.0

// Demo starts many containers' networks at once with cnitool, on a cold host each time: with the bare list, then with
// the same list wrapped by lockwrap, for the newest reference plugins and for the pair of nomad#6567. It exits with 1
// if the wrapped list failed an ADD, duplicated a rule or left anything behind.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/lockwrap/lockwrap/test/rig"
)

var sizes = []int{8, 24}

func main() {
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

	fmt.Println("Containers' networks started at once with cnitool: bridge, firewall, portmap, two host ports each,")
	fmt.Println("iptables-nft, on a host without any chain. Then all are deleted.")
	var rounds []*round
	for _, set := range []rig.Set{rig.Old, rig.New} {
		for _, size := range sizes {
			for _, wrapped := range []bool{false, true} {
				r := &round{set: set, size: size, wrapped: wrapped}
				fmt.Printf("\n%s, %d at once, %s\n", set.Name, size, r.list())
				if err := r.run(); err != nil {
					fail(err)
				}
				rounds = append(rounds, r)
			}
		}
	}
	fmt.Println()
	table(rounds)
	for _, set := range []rig.Set{rig.Old, rig.New} {
		firstError(set, rounds)
	}

	bad := false
	for _, r := range rounds {
		if r.wrapped && (r.failed > 0 || len(r.duplicates) > 0 || r.left != nil) {
			fmt.Printf("\nFAIL: %s wrapped, %d at once: %d failed, %d rules duplicated, %v\n",
				r.set.Name, r.size, r.failed, len(r.duplicates), r.left)
			bad = true
		}
	}
	if bad {
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "demo:", err)
	os.Exit(1)
}

// A round is one cold host and what was seen on it.
type round struct {
	set     rig.Set
	size    int
	wrapped bool

	failed     int // ADDs
	firstError string
	duplicates []string
	rules      int // of single containers, after DEL of all
	addresses  int
	left       error
	adds, dels time.Duration
}

func (r *round) list() string {
	if r.wrapped {
		return "wrapped"
	}
	return "bare"
}

func (r *round) run() error {
	h, err := rig.NewHost(r.set, rig.NFT)
	if err != nil {
		return err
	}
	defer h.Close()
	use := h.Bare
	if r.wrapped {
		use = h.Wrapped
	}
	if err := use(h.Usual()...); err != nil {
		return err
	}
	var containers []*rig.Container
	for range r.size {
		c, err := h.NewContainer()
		if err != nil {
			return err
		}
		containers = append(containers, c)
	}

	runs, took := rig.All(containers, h.Add)
	r.adds = took
	for _, run := range runs {
		if run.OK() {
			continue
		}
		if r.failed++; r.firstError == "" {
			r.firstError = strings.TrimSpace(run.Stderr)
		}
	}
	state, err := h.State()
	if err != nil {
		return err
	}
	r.duplicates = state.Duplicates()
	fmt.Printf("  ADD  %6.2f s  %d of %d failed, %d kinds of rule duplicated\n",
		r.adds.Seconds(), r.failed, r.size, len(r.duplicates))

	runs, r.dels = rig.All(containers, h.Del)
	failed := 0
	for _, run := range runs {
		if !run.OK() {
			failed++
		}
	}
	if state, err = h.State(); err != nil {
		return err
	}
	r.rules, r.addresses = len(state.Leftovers()), len(state.Addresses)
	r.left = state.Gone()
	if failed > 0 && r.left == nil {
		r.left = fmt.Errorf("%d DELs failed", failed)
	}
	fmt.Printf("  DEL  %6.2f s  %d of %d failed, left behind: %d rules and chains, %d addresses\n",
		r.dels.Seconds(), failed, r.size, r.rules, r.addresses)
	return nil
}

func table(rounds []*round) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "plugins\tat once\tlist\tADDs failed\tduplicated\trules left\taddresses\tADD all\tDEL all\t")
	for _, r := range rounds {
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%d\t%d\t%d\t%.2f s\t%.2f s\t\n", r.set.Name, r.size, r.list(),
			r.failed, len(r.duplicates), r.rules, r.addresses, r.adds.Seconds(), r.dels.Seconds())
	}
	w.Flush()
	fmt.Println("\nduplicated: kinds of rule that iptables -S lists more than once")
	fmt.Println("rules left, addresses: what is left of single containers after DEL of all")
}

func firstError(set rig.Set, rounds []*round) {
	for _, r := range rounds {
		if r.set.Name == set.Name && !r.wrapped && r.firstError != "" {
			fmt.Printf("\nfirst error of the bare list, %s:\n%s", set.Name, indent(r.firstError))
			return
		}
	}
	fmt.Printf("\nno ADD of the bare list failed with %s in this run (a few in a hundred do)\n", set.Name)
	for _, r := range rounds {
		if r.set.Name == set.Name && !r.wrapped && len(r.duplicates) > 0 {
			fmt.Printf("but this is there more than once:\n%s", indent(r.duplicates[0]))
			return
		}
	}
}

// indent breaks the text between words, for a terminal of 100 columns.
func indent(text string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		if column > 0 && column+1+len(word) > 96 {
			b.WriteByte('\n')
			column = 0
		}
		if column == 0 {
			b.WriteString("  ")
		} else {
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	b.WriteByte('\n')
	return b.String()
}
