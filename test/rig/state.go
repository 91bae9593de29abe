// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// State is what the plugins have left on a host at one moment.
type State struct {
	Rules     []string // chains and rules of both families, as iptables -S prints them
	Links     []string // all but lo and the bridges
	Addresses []string // reservations of host-local
	Records   []string // lockwrap's attachment records
}

// State looks at the host.
func (h *Host) State() (*State, error) {
	s := &State{}
	for _, cmd := range []string{"iptables", "ip6tables"} {
		// One process for all tables, and unlike -S it does not make a table by looking at it.
		run := h.Exec(cmd + "-" + h.Backend + "-save")
		if !run.OK() {
			return nil, fmt.Errorf("%s-save: %v", cmd, run)
		}
		s.Rules = append(s.Rules, rules(cmd, run.Stdout)...)
	}
	var err error
	if s.Links, err = h.links(); err != nil {
		return nil, err
	}
	s.Addresses = files(filepath.Join(h.Dir, "ipam", h.Name, "*"))
	s.Addresses = slices.DeleteFunc(s.Addresses, func(name string) bool {
		return name == "lock" || strings.HasPrefix(name, "last_reserved_ip")
	})
	s.Records = files(filepath.Join(h.StateDir(), "attachments", "*"))
	return s, nil
}

// The bridge stays when its last container goes, as the reference plugin has it.
func isBridge(link string) bool { return strings.HasPrefix(link, "lw") }

func files(pattern string) []string {
	names, _ := filepath.Glob(pattern)
	for i, name := range names {
		names[i] = filepath.Base(name)
	}
	return names
}

// rules turns the output of iptables-save into lines of iptables -S, without the built-in chains.
func rules(cmd, saved string) []string {
	var lines []string
	table := ""
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			chain, policy, _ := strings.Cut(line[1:], " ")
			if strings.HasPrefix(policy, "-") {
				lines = append(lines, fmt.Sprintf("%s -t %s -N %s", cmd, table, chain))
			}
		case strings.HasPrefix(line, "-A"):
			lines = append(lines, fmt.Sprintf("%s -t %s %s", cmd, table, line))
		}
	}
	return lines
}

// Shared chains, by what the plugins make of them.
var (
	sharedChain = regexp.MustCompile(`^(CNI-FORWARD|CNI-ADMIN|NOMAD-ADMIN|CNI-ISOLATION-STAGE-[12]|CNI-HOSTPORT-(DNAT|SETMARK|MASQ))$`)
	builtin     = regexp.MustCompile(`^(INPUT|FORWARD|OUTPUT|PREROUTING|POSTROUTING)$`)
	// In these every rule is for all containers.
	sharedWhole = regexp.MustCompile(`^(CNI-ISOLATION-STAGE-[12]|CNI-HOSTPORT-(SETMARK|MASQ))$`)
	ruleChain   = regexp.MustCompile(` -[AN] (\S+)`)
	ruleTarget  = regexp.MustCompile(` -j (\S+)`)
)

// Shared tells whether a chain or rule serves all containers and so may stay when they are gone: the shared chains,
// the jumps to them, and the rules without an address of a container.
func Shared(line string) bool {
	chain := ruleChain.FindStringSubmatch(line)
	if strings.Contains(line, " -N ") {
		return sharedChain.MatchString(chain[1])
	}
	jump := sharedChain.MatchString(Target(line)) && (builtin.MatchString(chain[1]) || sharedChain.MatchString(chain[1]))
	return jump || sharedWhole.MatchString(chain[1])
}

// Leftovers are the chains and rules of single containers.
func (s *State) Leftovers() []string {
	return slices.DeleteFunc(slices.Clone(s.Rules), Shared)
}

// Duplicates are the lines that are there more than once, each with its number.
func (s *State) Duplicates() []string {
	count := map[string]int{}
	for _, line := range s.Rules {
		count[line]++
	}
	var twice []string
	for line, n := range count {
		if n > 1 {
			twice = append(twice, fmt.Sprintf("%d x %s", n, line))
		}
	}
	slices.Sort(twice)
	return twice
}

// Clean tells what of single containers is left: nil if nothing. Records do not count: one stays after a failed ADD.
func (s *State) Clean() error {
	return left(map[string][]string{"rules": s.Leftovers(), "links": s.Links, "addresses": s.Addresses})
}

// Gone is Clean with the records: what must be true after DEL of all.
func (s *State) Gone() error {
	return errors.Join(s.Clean(), left(map[string][]string{"records": s.Records}))
}

func left(things map[string][]string) error {
	var errs []error
	for _, what := range slices.Sorted(maps.Keys(things)) {
		if names := things[what]; len(names) > 0 {
			errs = append(errs, fmt.Errorf("%d %s left:\n\t%s", len(names), what, strings.Join(names, "\n\t")))
		}
	}
	return errors.Join(errs...)
}

// links are those of the host.
func (h *Host) links() ([]string, error) { return linksIn(h.Name) }

// ContainerLinks are those of a container.
func (h *Host) ContainerLinks(c *Container) ([]string, error) { return linksIn(c.Name) }

func linksIn(netns string) (names []string, err error) {
	err = inNetns(netns, func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			if l.Name != "lo" && !isBridge(l.Name) {
				names = append(names, l.Name)
			}
		}
		return err
	})
	return names, err
}

// Records are the paths of lockwrap's attachment records.
func (h *Host) Records() []string {
	paths, _ := filepath.Glob(filepath.Join(h.StateDir(), "attachments", "*"))
	return paths
}

// RemoveRecords loses them, as a reboot does.
func (h *Host) RemoveRecords() error {
	for _, path := range h.Records() {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// Target is the chain that a rule jumps to.
func Target(rule string) string {
	if target := ruleTarget.FindStringSubmatch(rule); target != nil {
		return target[1]
	}
	return ""
}

// SharedRules are the shared rules in their order, by command, table and chain.
func (s *State) SharedRules() map[string][]string {
	byChain := map[string][]string{}
	for _, line := range s.Rules {
		where, rule, isRule := strings.Cut(line, " -A ")
		if isRule && Shared(line) {
			chain, _, _ := strings.Cut(rule, " ")
			byChain[where+" "+chain] = append(byChain[where+" "+chain], line)
		}
	}
	return byChain
}

// Chains are all chains but the built-in ones, as "iptables nat CNI-HOSTPORT-DNAT", sorted.
func (s *State) Chains() []string {
	var names []string
	for _, line := range s.Rules {
		if where, chain, isChain := strings.Cut(line, " -N "); isChain {
			names = append(names, strings.Replace(where, " -t ", " ", 1)+" "+chain)
		}
	}
	slices.Sort(names)
	return names
}
