// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/lockwrap/lockwrap/conflist"
	"github.com/lockwrap/lockwrap/wrap"
)

func doctorCommand() command {
	return command{
		name:  "doctor",
		about: "look at the whole host: lists, plugins, iptables, lock, records, rules",
		help: `Each finding is ok, warn or fail, with what to do. The exit code is 1 if there is
a fail. Plugins and iptables are asked for their versions, and iptables for its
rules; nothing is changed. Run it as root: others can't see all of it.
`,
		setup: func(flags *flag.FlagSet) func(*console, []string) int {
			dirs := confDirFlag(flags)
			binDirs := binDirFlag(flags)
			asJSON := jsonFlag(flags)
			return func(c *console, args []string) int {
				if len(args) > 0 {
					return c.tooMany(args)
				}
				f := examineHost(os.Environ(), *dirs, searchPath(*binDirs))
				return c.report(f, *asJSON, finding.paragraph)
			}
		},
	}
}

func confDirFlag(flags *flag.FlagSet) *pathList {
	var dirs pathList
	flags.Var(&dirs, "conf-dir", "look for lists in `DIR` (default: "+strings.Join(confDirs, " and ")+"); may be repeated")
	return &dirs
}

func defaultBinDirs() []string {
	there := slices.DeleteFunc(wrap.DefaultPluginDirs(), func(dir string) bool {
		info, err := os.Stat(dir)
		return err != nil || !info.IsDir()
	})
	if len(there) == 0 {
		return wrap.DefaultPluginDirs()[:1]
	}
	return there
}

// examineHost says all that there is to say, in the order in which one would
// look.
func examineHost(environ, dirs []string, path string) findings {
	var f findings
	x := &examiner{findings: &f, environ: environ, bins: newBinaries(path)}
	x.examineDirs(dirs)
	x.sameNames()
	x.compareLocks()
	x.praise()
	ipt := x.iptables()
	x.releases(ipt)
	x.standIns()
	x.locks()
	x.attachments()
	x.rules(ipt)
	return f
}

// examineDirs checks the lists in the given directories, or in those of the
// default directories that there are.
func (x *examiner) examineDirs(given []string) {
	dirs := given
	if len(dirs) == 0 {
		dirs = confDirs
	}
	files := 0
	for _, dir := range dirs {
		if _, err := os.ReadDir(dir); err != nil {
			switch {
			case !errors.Is(err, fs.ErrNotExist):
				x.add(fail, dir, asRoot("see why"), "cannot be read: %v", err)
			case len(given) > 0:
				x.add(fail, dir, "give the directory in which your runtime looks for lists", "there is no such directory")
			}
			continue
		}
		for _, file := range listFiles(dir) {
			if files++; !x.known(file) {
				x.examine(file)
			}
		}
	}
	if files == 0 {
		x.add(warn, "lists", "name the directory of your runtime's lists with --conf-dir", "none in %s", strings.Join(dirs, " and "))
	}
}

// known reports whether a file has been looked at already, by another name.
func (x *examiner) known(path string) bool {
	info, err := os.Stat(path)
	return err == nil && slices.ContainsFunc(x.lists, func(l *examined) bool {
		other, err := os.Stat(l.path)
		return err == nil && os.SameFile(info, other)
	})
}

// sameNames finds networks that two files describe.
func (x *examiner) sameNames() {
	seen := map[string]string{}
	for _, l := range x.lists {
		other, twice := seen[l.Name]
		switch {
		case !twice:
			seen[l.Name] = l.path
		case filepath.Dir(other) == filepath.Dir(l.path):
			x.add(fail, l.path, "remove one of them, or give it a name of its own",
				"network %q is in %s, too, and a runtime takes the first it finds", l.Name, other)
		default:
			x.add(warn, l.path, "give it a name of its own while no container runs",
				"network %q is in %s, too: they share addresses and per-container chains", l.Name, other)
		}
	}
}

// releases tells the plugins' versions and what is known of them.
func (x *examiner) releases(ipt iptables) {
	lists := map[string][]string{} // where a plugin stands bare
	var types []string
	for _, l := range x.lists {
		for _, p := range slices.Concat(l.Plugins, l.delegates) {
			if p.Type != conflist.PluginName && !slices.Contains(types, p.Type) {
				types = append(types, p.Type)
			}
		}
		for _, p := range l.bare {
			lists[p.Type] = append(lists[p.Type], l.path)
		}
	}
	slices.Sort(types)
	for _, name := range types {
		a, err := x.bins.ask(name)
		if err != nil {
			continue // said already
		}
		release := a.release
		if release == "" {
			release = "of unknown release"
		}
		known := ""
		if name == "firewall" || name == "portmap" {
			switch {
			case olderThan(a.release, "0.8.4"):
				known = "before v0.8.4 its ADDs race on the shared chains, and DEL fails without prevResult"
			case olderThan(a.release, "1.10.1") && ipt.backends["iptables"] == "nf_tables":
				known = "up to v1.10.0 its ADDs race with iptables-nft (exit status 4, File exists)"
			}
		}
		switch {
		case known == "":
			x.add(fine, name, "", "%s, %s", release, a.path)
		case len(lists[name]) == 0:
			x.add(fine, name, "", "%s, %s; %s, but not under lockwrap", release, a.path, known)
		default:
			x.add(warn, name, "wrap "+strings.Join(lists[name], " and "), "%s, %s; %s", release, a.path, known)
		}
	}
	if a, err := x.bins.ask(conflist.PluginName); err == nil && a.release != wrap.Version() {
		x.add(warn, conflist.PluginName, "install one version", "this is %s, the runtime runs %s of %s", wrap.Version(), a.path, a.release)
	}
}

// olderThan reports whether a release such as "v1.10.0-rc1" is known to be
// before another.
func olderThan(release, other string) bool {
	number, _, _ := strings.Cut(strings.TrimPrefix(release, "v"), "-")
	number, _, _ = strings.Cut(number, "+")
	older, err := version.GreaterThan(other, number)
	return number != "" && err == nil && older // package version takes "" for 0.1.0
}

// attachments tells what is stuck: the lock's holder and the records.
func (x *examiner) attachments() {
	all, err := readStatus(x.environ)
	if err != nil {
		return // locks has said it
	}
	now := time.Now()
	running := map[string]int{} // containers of a network
	for _, s := range slices.Concat(all, x.namedStatus(all)) {
		for _, err := range s.errs {
			x.add(warn, "status", asRoot("see why"), "%v", err)
		}
		if s.Lock != nil && s.Lock.Holder != nil && now.Sub(s.Lock.Holder.Since) > s.limit {
			x.add(fail, s.LockFile, `"lockwrap status" tells what it waits for`, "held for %s by %s", age(now, s.Lock.Holder.Since), describe(*s.Lock.Holder))
		}
		stuck := 0
		for _, a := range s.Attachments {
			if a.Stuck == "" {
				if a.State == "added" { // one that is being added may be the first
					running[a.Network]++
				}
				continue
			}
			stuck++
			switch {
			case a.Foreign:
				x.add(warn, a.File, "install the lockwrap that wrote it; this one deletes the attachment as the bare list would", "%s", a.Stuck)
				continue
			case a.State == "unreadable":
				x.add(warn, a.File, "remove it: an attachment without a record is deleted as the bare list would", "%s", a.Stuck)
				continue
			}
			at := x.add(warn, a.File, "let the runtime delete the container again", "network %q, container %s, interface %s is %s for %s: %s",
				a.Network, a.Container, a.IfName, a.State, age(now, a.Since), a.Stuck)
			if command := x.deleteByHand(a); command != "" {
				at.Todo += "; if it knows it no more"
				at.Commands = append(at.Commands, command)
			}
		}
		if stuck == 0 && len(s.errs) == 0 {
			x.add(fine, filepath.Join(s.StateDir, "attachments"), "", "%d on record, none stuck", len(s.Attachments))
		}
	}
	for _, l := range x.lists {
		if n := running[l.Name]; n > 0 {
			x.flushed(l, n)
		}
	}
}

// flushed looks for the chains that the firewall plugin makes for every container
// (portmap makes its own only for those with host ports).
func (x *examiner) flushed(l *examined, containers int) {
	var wanted []wrap.SharedChain
	for _, conf := range l.entries {
		for _, chain := range conf.SharedChains() {
			if chain.Table == "filter" && !slices.Contains(conf.Chains, chain.Chain) {
				wanted = append(wanted, chain)
			}
		}
	}
	found, _ := wrap.FindChains(context.Background(), wanted)
	for _, chain := range wanted {
		if there, known := found[chain]; known && !there {
			x.add(fail, l.path, "start them anew: no command brings back a container's rules",
				"chain %s is gone, so something has flushed the tables, and %d containers of network %q are without their rules", chain.Name, containers, l.Name)
			return
		}
	}
}

// namedStatus is for lists in directories that were given.
func (x *examiner) namedStatus(known []status) (more []status) {
	for _, l := range x.lists {
		for _, conf := range l.entries {
			if slices.ContainsFunc(slices.Concat(known, more), func(s status) bool {
				return s.LockFile == conf.LockFile && s.StateDir == conf.StateDir
			}) {
				continue
			}
			more = append(more, statusOf(conf.Settings))
		}
	}
	return more
}

// deleteByHand is a DEL that no runtime will send any more.
func (x *examiner) deleteByHand(a wrap.Attachment) string {
	for _, l := range x.lists {
		if l.Name != a.Network || l.Single {
			continue
		}
		i := slices.IndexFunc(l.Plugins, func(p conflist.Plugin) bool { return p.Type == conflist.PluginName })
		binary, err := x.bins.find(conflist.PluginName)
		if i < 0 || err != nil {
			continue
		}
		return fmt.Sprintf("jq '.plugins[%d] + {name, cniVersion}' %s | CNI_COMMAND=DEL CNI_CONTAINERID=%s CNI_IFNAME=%s CNI_PATH=%s %s",
			i, quoteShell(l.path), quoteShell(a.Container), quoteShell(a.IfName), quoteShell(x.bins.path), quoteShell(binary))
	}
	return ""
}
