// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/lockwrap/lockwrap/test/rig"
)

// growth measures lockwrap's own time, that is a call's without the delegates', on hosts with ever more attachments.
func (b *bench) growth() error {
	const calls = 20
	fmt.Printf("\nlockwrap's own time in a call by the attachments on the host, median of %d, ms\n", calls)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "iptables\tverb\tattachments\town\tof it chains\tdelegates\t")
	for _, backend := range b.backends {
		h, err := sides[2].newHost(backend)
		if err != nil {
			return err
		}
		defer h.Close()
		first, err := h.NewContainer()
		if err != nil {
			return err
		}
		c, err := h.NewContainer()
		if err != nil {
			return err
		}
		if run := h.Add(first); !run.OK() {
			return fmt.Errorf("add: %v", run)
		}
		log, err := debugLog(h)
		if err != nil {
			return err
		}
		state, err := h.State()
		if err != nil {
			return err
		}
		there := 1
		for _, want := range []int{1, 100, 500} {
			if err := multiply(h, state, there, want); err != nil {
				return err
			}
			there = want
			_ = os.Remove(log)
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
				k := what{"growth", backend, 1, strconv.Itoa(want), strings.ToLower(verb), "wrapped", ""}
				for i := range took[names[0]] {
					own, delegates := 0.0, 0.0
					for _, name := range names {
						if isDelegate(name) {
							delegates += took[name][i]
						} else {
							own += took[name][i]
						}
					}
					b.add(k.of("own"), own)
					b.add(k.of("delegates"), delegates)
					if chains := took["chains"]; chains != nil {
						b.add(k.of("chains"), chains[i])
					}
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%.2f\t%.2f\t%.0f\t\n", backend, verb, want,
					b.median(k.of("own")), b.median(k.of("chains")), b.median(k.of("delegates")))
			}
		}
	}
	w.Flush()
	return nil
}

var (
	hash    = regexp.MustCompile(`\b(CNI-(?:DN-|SN-)?[0-9a-f]{12})[0-9a-f]+`)
	address = regexp.MustCompile(`\b10\.99\.\d+\.\d+\b`)
)

// multiply makes of one attachment so many, as far as lockwrap and iptables can tell them from real ones: rules and chains
// with other names and addresses, records with other containers. Real ones would take the plugins minutes.
func multiply(h *rig.Host, one *rig.State, from, to int) error {
	tables := map[string]*strings.Builder{}
	for i := from; i < to; i++ {
		for _, line := range one.Leftovers() {
			line = hash.ReplaceAllString(line, fmt.Sprintf("${1}%08x", i))
			line = address.ReplaceAllString(line, fmt.Sprintf("10.99.%d.%d", 1+i/250, 1+i%250))
			cmd, rest, _ := strings.Cut(line, " -t ")
			table, rule, _ := strings.Cut(rest, " ")
			if cmd != "iptables" {
				continue // the usual list is of IPv4
			}
			if tables[table] == nil {
				tables[table] = &strings.Builder{}
			}
			if chain, ok := strings.CutPrefix(rule, "-N "); ok {
				rule = ":" + chain + " - [0:0]"
			}
			fmt.Fprintln(tables[table], rule)
		}
		for _, record := range one.Records {
			path := filepath.Join(h.StateDir(), "attachments", record)
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			parts := strings.Split(record, ":")
			other := fmt.Sprintf("%s-%d", parts[1], i)
			data = []byte(strings.ReplaceAll(string(data), parts[1], other))
			path = filepath.Join(filepath.Dir(path), strings.ReplaceAll(record, parts[1], other))
			if err := os.WriteFile(path, data, 0o600); err != nil {
				return err
			}
		}
	}
	for table, rules := range tables {
		path, err := exec.LookPath("iptables-" + h.Backend + "-restore")
		if err != nil {
			return err
		}
		cmd := exec.Command(path, "--noflush")
		cmd.Stdin = strings.NewReader("*" + table + "\n" + rules.String() + "COMMIT\n")
		if run := h.Cmd(cmd); !run.OK() {
			return fmt.Errorf("%s: %v", path, run)
		}
	}
	return nil
}
