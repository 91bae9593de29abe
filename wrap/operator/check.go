// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/lockwrap/lockwrap/conflist"
	"github.com/lockwrap/lockwrap/wrap"
)

func checkCommand() command {
	return command{
		name:     "check",
		operands: "FILE...",
		about:    "say what would go wrong with a list at the first container start",
		help: `One line for each finding: ok, warn or fail, the place, what it is, what to do.
The exit code is 1 if there is a fail. The plugins are asked for their versions;
nothing is changed.
`,
		setup: func(flags *flag.FlagSet) func(*console, []string) int {
			binDirs, asJSON := binDirFlag(flags), jsonFlag(flags)
			return func(c *console, files []string) int {
				if len(files) == 0 {
					c.errorf("no FILE is given")
					return misused
				}
				var f findings
				x := &examiner{findings: &f, environ: os.Environ(), bins: newBinaries(searchPath(*binDirs))}
				for _, file := range files {
					x.examine(file)
				}
				if len(*binDirs) == 0 && os.Getenv("CNI_PATH") == "" {
					x.scattered()
				}
				x.compareLocks()
				x.praise()
				return c.report(f, *asJSON, func(each finding) string { return each.line() + "\n" })
			}
		},
	}
}

func binDirFlag(flags *flag.FlagSet) *pathList {
	var dirs pathList
	flags.Var(&dirs, "bin-dir", "look for plugins in `DIR` (default: CNI_PATH, else "+strings.Join(wrap.DefaultPluginDirs(), ", ")+"); may be repeated")
	return &dirs
}

func jsonFlag(flags *flag.FlagSet) *bool {
	return flags.Bool("json", false, "print JSON")
}

// searchPath is where the runtime looks for plugins, like CNI_PATH.
func searchPath(given pathList) string {
	if len(given) > 0 {
		return given.String()
	}
	if path := os.Getenv("CNI_PATH"); path != "" {
		return path
	}
	return strings.Join(defaultBinDirs(), ":")
}

// examiner looks at lists, one after the other.
type examiner struct {
	*findings
	environ []string
	bins    *binaries
	lists   []*examined
}

// examined is a list that could be loaded.
type examined struct {
	*conflist.List
	path string
	// entries are the lockwrap entries, as the plugin reads them. A bare list
	// has none.
	entries []*wrap.NetConf
	// bare are the plugins that share rules and stand outside lockwrap.
	bare      []conflist.Plugin
	delegates []conflist.Plugin
}

// summary is what there is to say of a list with which nothing is wrong.
func (l *examined) summary() string {
	if len(l.delegates) == 0 {
		return fmt.Sprintf("network %q has no plugin that needs lockwrap", l.Name)
	}
	return fmt.Sprintf("network %q has lockwrap around %s", l.Name, typesOf(l.delegates))
}

func typesOf(plugins []conflist.Plugin) string {
	var names []string
	for _, p := range plugins {
		if !slices.Contains(names, p.Type) {
			names = append(names, p.Type)
		}
	}
	return strings.Join(names, ", ")
}

// praise adds a line for each list with which nothing is wrong.
func (x *examiner) praise() {
	for _, l := range x.lists {
		if !slices.ContainsFunc(*x.findings, func(f finding) bool { return f.Subject == l.path }) {
			x.add(fine, l.path, "", "%s", l.summary())
		}
	}
}

// examine adds what is wrong with one file.
func (x *examiner) examine(path string) {
	list, err := loadList(path)
	if err != nil {
		x.notLoaded(path, err)
		return
	}
	l := &examined{List: list, path: path}
	x.lists = append(x.lists, l)
	if !slices.Contains(version.All.SupportedVersions(), orOldest(l.CNIVersion)) {
		x.add(fail, path, "use one of "+strings.Join(version.All.SupportedVersions(), ", "), "lockwrap does not know cniVersion %q", l.CNIVersion)
	}
	wrapped := 0
	for i, p := range l.Plugins {
		if p.Type != conflist.PluginName {
			x.outside(l, p)
			x.binary(l, p)
			x.backend(l, p)
			x.hostPorts(l, p)
			continue
		}
		if wrapped++; wrapped > 1 {
			x.addAt(fail, path, p, `run "lockwrap unwrap" and "lockwrap wrap" on the file`, "lockwrap is in the list twice; one is enough")
		} else if i > 0 {
			x.addAt(warn, path, p, "move them behind it or into its \"delegates\"",
				"lockwrap is not first in the list: %s before it run without the lock and are not undone by it", typesOf(l.Plugins[:i]))
		}
		x.entry(l, p)
	}
	x.dropIns(l, wrapped > 0)
	if wrapped == 0 && len(l.bare) > 0 {
		x.add(warn, path, `run "lockwrap wrap" on the file`,
			"the list is not wrapped: without the lock its %s race with those of all other lists", typesOf(l.bare))
	}
}

// loadList reads a network configuration.
func loadList(path string) (*conflist.List, error) {
	file, err := conflist.Open(path)
	if err != nil {
		return nil, err
	}
	return conflist.Parse(path, file.Data)
}

func (x *examiner) notLoaded(path string, err error) {
	if where := (*conflist.Error)(nil); errors.As(err, &where) {
		at := x.add(fail, path, where.Todo, "%s", where.What)
		at.Line, at.Column = where.Line, where.Column
		return
	}
	todo := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = errors.New("there is no such file")
	case errors.Is(err, fs.ErrPermission):
		todo = asRoot("")
	}
	x.add(fail, path, todo, "%v", err)
}

// outside looks at a plugin that is not under lockwrap.
func (x *examiner) outside(l *examined, p conflist.Plugin) {
	if !conflist.SharesRules(p.Type) || x.bins.stoodIn(p.Type) {
		return
	}
	l.bare = append(l.bare, p)
	if slices.ContainsFunc(l.Plugins, func(other conflist.Plugin) bool { return other.Type == conflist.PluginName }) {
		x.addAt(fail, l.path, p, `run "lockwrap unwrap" and "lockwrap wrap" on the file`, "%q stands outside lockwrap and runs without the lock", p.Type)
	}
}

// entry looks at a lockwrap entry as the plugin will.
func (x *examiner) entry(l *examined, p conflist.Plugin) {
	x.doubleKeys(l, p)
	x.binary(l, p)
	conf, err := wrap.ParseEntry(p.Raw, l.Name, l.CNIVersion, x.environ)
	if err == nil {
		l.entries = append(l.entries, conf)
		err = conf.CheckCapabilities()
	}
	if cniErr := (*types.Error)(nil); errors.As(err, &cniErr) {
		todo := cniErr.Details
		if todo == "" {
			todo = "correct it"
		}
		x.addAt(fail, l.path, p, todo, "%s", ownWords(cniErr))
	}
	delegates, err := l.Delegates(p)
	if err != nil {
		return // said already
	}
	for _, d := range delegates {
		l.delegates = append(l.delegates, d)
		x.binary(l, d)
		x.backend(l, d)
		x.hostPorts(l, d)
	}
}

// doubleKeys finds keys of an entry that are there twice. Only the last one
// counts, and whoever wrote the first does not know.
func (x *examiner) doubleKeys(l *examined, p conflist.Plugin) {
	keys := p.Keys()
	slices.Sort(keys)
	for i := 1; i < len(keys); i++ {
		if keys[i] == keys[i-1] {
			x.addAt(fail, l.path, p, "remove all but one", "%q is there more than once; only the last one counts", keys[i])
		}
	}
}

// scattered finds lists of which one directory has some plugins only. Nobody has
// said where the runtime looks, and most look in one directory.
func (x *examiner) scattered() {
	for _, l := range x.lists {
		for _, dir := range filepath.SplitList(x.bins.path) {
			there := newBinaries(dir)
			var has, lacks []conflist.Plugin
			for _, p := range slices.Concat(l.Plugins, l.delegates) {
				if _, err := there.find(p.Type); err != nil {
					lacks = append(lacks, p)
				} else if p.Type != conflist.PluginName { // which a package puts everywhere
					has = append(has, p)
				}
			}
			if len(has) > 0 && len(lacks) > 0 {
				x.add(warn, l.path, "name your runtime's directory with --bin-dir", "%s has %s, but not %s: a runtime that looks there cannot use the list",
					dir, typesOf(has), typesOf(lacks))
			}
		}
	}
}

// binary looks for a plugin's binary, and for that of its IPAM plugin.
func (x *examiner) binary(l *examined, p conflist.Plugin) {
	var conf struct {
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	_ = json.Unmarshal(p.Raw, &conf)
	for _, name := range []string{p.Type, conf.IPAM.Type} {
		if name == "" {
			continue
		}
		a, err := x.bins.ask(name)
		switch {
		case errors.Is(err, errNotExecutable):
			x.addAt(fail, l.path, p, "chmod 755 it", "%v", err)
		case err != nil:
			x.addAt(fail, l.path, p, "install it there", "%v", err)
		case a.err != nil:
			x.addAt(fail, l.path, p, "see whether it is the right file: "+a.path, "%q does not answer VERSION: %v", name, a.err)
		case !a.speaks(l.CNIVersion):
			x.addAt(fail, l.path, p, "upgrade the plugin, or lower the list's cniVersion", "%q does not speak cniVersion %q, only %s",
				name, orOldest(l.CNIVersion), strings.Join(a.versions, ", "))
		}
	}
}

// orOldest: a list without a version is of the oldest.
func orOldest(cniVersion string) string {
	if cniVersion == "" {
		return "0.1.0"
	}
	return cniVersion
}

// backend finds plugins that decide between iptables and nftables anew at each
// call: one failed iptables call at ADD puts a container's rules into nftables,
// where the DEL does not look (plugins v1.6.0 and later).
func (x *examiner) backend(l *examined, p conflist.Plugin) {
	var conf struct {
		IPMasq        bool   `json:"ipMasq"`
		IPMasqBackend string `json:"ipMasqBackend"`
		Backend       string `json:"backend"`
	}
	_ = json.Unmarshal(p.Raw, &conf)
	if a, err := x.bins.ask(p.Type); err == nil && olderThan(a.release, "1.6.0") {
		return // it knows only iptables
	}
	const what = "%q without a fixed %q: one failed iptables call flips a container to nftables, and its rules stay after DEL"
	switch {
	case p.Type == "portmap" && conf.Backend == "":
		x.addAt(warn, l.path, p, `add "backend": "iptables", or "nftables" on a host without iptables`, what, p.Type, "backend")
	case (p.Type == "bridge" || p.Type == "ptp") && conf.IPMasq && conf.IPMasqBackend == "":
		x.addAt(warn, l.path, p, `add "ipMasqBackend": "iptables", or "nftables" on a host without iptables`, what, p.Type, "ipMasqBackend")
	}
}

// hostPorts finds a portmap that gets none: the runtime passes a capability only to a
// plugin that declares it, and portmap without any does nothing, and says nothing.
func (x *examiner) hostPorts(l *examined, p conflist.Plugin) {
	if p.Type == "portmap" && !p.Capabilities["portMappings"] && !slices.Contains(p.Keys(), "runtimeConfig") {
		x.addAt(warn, l.path, p, `add "capabilities": {"portMappings": true} to it, and to the lockwrap entry around it`,
			"\"portmap\" does not declare the capability \"portMappings\": no host port will work")
	}
}

// dropIns looks into the directory from which libcni 1.3 and later append
// plugins to the list.
func (x *examiner) dropIns(l *examined, wrapped bool) {
	if l.Single || l.InlinedOnly || strings.ContainsRune(l.Name, filepath.Separator) {
		return
	}
	dir := filepath.Join(filepath.Dir(l.path), l.Name)
	files, err := libcni.ConfFiles(dir, []string{".conf"})
	if err != nil || len(files) == 0 {
		return
	}
	const todo = `move them into the list, or set "loadOnlyInlinedPlugins": true in it`
	var names []string
	for _, file := range files {
		content, err := conflist.Open(file)
		if err == nil {
			var conf *libcni.PluginConfig
			if conf, err = libcni.NetworkPluginConfFromBytes(content.Data); err == nil {
				names = append(names, conf.Network.Type)
				continue
			}
		}
		x.add(fail, file, "correct or remove it", "the CNI library (1.3 and later) would not load %s because of this file: %v", l.path, err)
	}
	if len(names) > 0 && wrapped {
		x.add(warn, l.path, todo, "the CNI library (1.3 and later) appends %s from %s: outside lockwrap, without the lock", strings.Join(names, ", "), dir)
	}
}

// realPath is a file's path without links in those of its directories that there
// are: /var/run is often one to /run.
func realPath(path string) string {
	dir := filepath.Dir(path)
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return filepath.Join(real, filepath.Base(path))
	}
	if dir == path {
		return path
	}
	return filepath.Join(realPath(dir), filepath.Base(path))
}

// compareLocks finds lists that do not exclude each other.
func (x *examiner) compareLocks() {
	var first *wrap.NetConf
	firstPath := ""
	for _, l := range x.lists {
		for _, conf := range l.entries {
			switch {
			case first == nil:
				first, firstPath = conf, l.path
			case realPath(conf.LockFile) != realPath(first.LockFile):
				x.add(fail, l.path, `let all lists of a host name the same "lockFile", best none`, "lockFile %s, but %s has %s: they do not exclude each other",
					conf.LockFile, firstPath, first.LockFile)
			}
		}
	}
	host, err := wrap.HostSettings(x.environ)
	if first != nil && err == nil && realPath(first.LockFile) != realPath(host.LockFile) {
		x.add(warn, firstPath, `remove "lockFile" from the list, or make sure that every list has it`, "lockFile %s is not the host's, which is %s", first.LockFile, host.LockFile)
	}
}
