// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// iptables is what plugins find on PATH.
type iptables struct {
	there    []string          // iptables, ip6tables
	backends map[string]string // of each: "nf_tables" or "legacy"
}

// iptables tells which iptables there is, and whether another one has rules too.
func (x *examiner) iptables() iptables {
	ipt := iptables{backends: map[string]string{}}
	for _, name := range []string{"iptables", "ip6tables"} {
		stdout, stderr, err := run(x.environ, "", name, "-V")
		if err != nil {
			x.add(warn, name, "install it, unless all plugins use nftables or firewalld", "cannot be run: %v", errorText(err, stderr))
			continue
		}
		version := strings.TrimSpace(stdout)
		ipt.backends[name] = "legacy" // before 1.8 there was nothing else to say
		if strings.Contains(version, "nf_tables") {
			ipt.backends[name] = "nf_tables"
		}
		ipt.there = append(ipt.there, name)
		x.add(fine, name, "", "%s", version)
	}
	if v4, v6 := ipt.backends["iptables"], ipt.backends["ip6tables"]; v4 != "" && v6 != "" && v4 != v6 {
		x.add(warn, "ip6tables", "set both with update-alternatives or install one package", "it is %s, but iptables is %s", v6, v4)
	}
	for _, name := range ipt.there {
		other, rules := x.otherRules(name, ipt.backends[name])
		if rules != "" {
			x.add(warn, name, fmt.Sprintf("see \"%s-save\" and remove what should not be there; both sets of rules apply", other),
				"it is %s, but %s has rules too: %s", ipt.backends[name], other, rules)
		}
	}
	return ipt
}

func errorText(err error, stderr string) string {
	if s := excerpt(stderr); s != "" {
		return s
	}
	return err.Error()
}

// otherRules looks for rules in the implementation of iptables that is not in
// use. A listing by iptables-legacy would load the kernel's old tables, so it is
// asked only if they are loaded.
func (x *examiner) otherRules(name, backend string) (other, rules string) {
	other = name + "-nft"
	if backend == "nf_tables" {
		other = name + "-legacy"
		tables := loadedTables(name)
		if len(tables) == 0 {
			return other, ""
		}
		if _, err := exec.LookPath(other + "-save"); err != nil {
			return other, "the tables " + strings.Join(tables, ", ")
		}
	}
	stdout, _, err := run(x.environ, "", other+"-save")
	if err != nil {
		return other, ""
	}
	n := 0
	for line := range strings.Lines(stdout) {
		if strings.HasPrefix(line, "-A ") {
			n++
		}
	}
	if n == 0 {
		return other, ""
	}
	return other, fmt.Sprintf("%d", n)
}

// loadedTables are the tables of iptables-legacy that the kernel has.
func loadedTables(name string) []string {
	tables, _ := os.ReadFile("/proc/net/" + strings.Replace(name, "tables", "_tables_names", 1))
	return strings.Fields(string(tables))
}

func loaded(name, table string) bool { return slices.Contains(loadedTables(name), table) }

// rules finds what races have left in the rules that containers share.
func (x *examiner) rules(ipt iptables) {
	clean := true
	for _, name := range ipt.there {
		for _, table := range []string{"filter", "nat"} {
			if ipt.backends[name] == "legacy" && !loaded(name, table) {
				continue // a listing would load it
			}
			// Without -w an iptables beside us would make it fail.
			stdout, stderr, err := run(x.environ, "", name, "-w", "2", "-t", table, "-S")
			if err != nil {
				x.add(warn, name, asRoot("see what it says by hand"), "cannot list table %s: %s", table, errorText(err, stderr))
				clean = false
				continue
			}
			for _, each := range judge(name, table, stdout) {
				*x.findings = append(*x.findings, each)
				clean = false
			}
		}
	}
	if clean && len(ipt.there) > 0 {
		x.add(fine, "rules", "", "no shared rule is there more than once")
	}
}

// judge finds rules of CNI plugins that are in a listing ("iptables -S") more
// than once, and a FORWARD chain whose order defeats ingressPolicy.
//
// The commands name a rule by its text, which removes its first copy. A number
// could hit another rule by the time somebody runs them.
func judge(command, table, listing string) findings {
	var f findings
	var rules, once []string
	count := map[string]int{}
	for line := range strings.Lines(listing) {
		if rule, ok := forShell(strings.TrimSpace(line)); ok && strings.HasPrefix(rule, "-A ") {
			rules = append(rules, rule)
		}
	}
	for _, rule := range slices.Backward(rules) {
		isCNI := strings.Contains(rule, "CNI") || strings.Contains(rule, "NOMAD-ADMIN")
		if count[rule]++; count[rule] == 1 || !isCNI {
			once = append(once, rule) // what stays is the last copy
		}
		if !isCNI {
			count[rule] = 1
		}
	}
	slices.Reverse(once)
	isolation, wrong := misordered(rules)
	_, wrongThen := misordered(once)
	for _, rule := range once {
		if count[rule] == 1 {
			continue
		}
		at := f.add(warn, command, "ADDs that raced did that; remove the extra ones", "table %s has this rule %d times: %s", table, count[rule], rule)
		for range count[rule] - 1 {
			at.Commands = append(at.Commands, change(command, table, "-D", rule))
		}
		if rule == isolation && wrongThen {
			at.Commands = append(at.Commands, putFirst(command, rule)...)
		}
	}
	if wrong {
		at := f.add(fail, command, "put it first again", "FORWARD jumps to CNI-FORWARD before CNI-ISOLATION-STAGE-1, so ingressPolicy has no effect")
		at.Commands = putFirst(command, isolation)
	}
	return f
}

// forShell writes a line of a listing so that a shell reads the same words:
// iptables quotes them, but leaves $ and ` in them alive.
func forShell(line string) (_ string, ok bool) {
	var words []string
	for rest := strings.TrimLeft(line, " "); rest != ""; rest = strings.TrimLeft(rest, " ") {
		word, after, _ := strings.Cut(rest, " ")
		if quoted, is := strings.CutPrefix(rest, `"`); is {
			var b strings.Builder
			i := 0
			for ; i < len(quoted) && quoted[i] != '"'; i++ {
				if quoted[i] == '\\' && i+1 < len(quoted) {
					i++
				}
				b.WriteByte(quoted[i])
			}
			if i == len(quoted) {
				return "", false // a comment with a line break in it, for instance
			}
			word, after = b.String(), quoted[i+1:]
		}
		const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,+=@%"
		if word == "" || word != "!" && strings.Trim(word, harmless) != "" {
			word = quoteShell(word)
		}
		words, rest = append(words, word), after
	}
	return strings.Join(words, " "), true
}

// misordered finds the jump to the isolation stages, and reports whether one to
// CNI-FORWARD, which accepts all of a container's traffic, stands before it
// (plugins/meta/firewall/ingresspolicy.go puts it first; two ADDs that race can
// turn them round for good).
func misordered(rules []string) (isolation string, wrong bool) {
	accepted := false
	for _, rule := range rules {
		if !strings.HasPrefix(rule, "-A FORWARD ") {
			continue
		}
		switch {
		case strings.HasSuffix(rule, " -j CNI-FORWARD"):
			accepted = true
		case strings.HasSuffix(rule, " -j CNI-ISOLATION-STAGE-1"):
			return rule, accepted
		}
	}
	return "", false
}

func putFirst(command, rule string) []string {
	return []string{
		change(command, "filter", "-D", rule),
		change(command, "filter", "-I", strings.Replace(rule, "-A FORWARD ", "-A FORWARD 1 ", 1)),
	}
}

// change is a command for a rule as it is listed.
func change(command, table, option, rule string) string {
	return fmt.Sprintf("%s -t %s %s %s", command, table, option, strings.TrimPrefix(rule, "-A "))
}
