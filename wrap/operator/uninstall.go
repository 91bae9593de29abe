// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockwrap/lockwrap/conflist"
)

func uninstallCommand() command {
	return command{
		name:  "uninstall",
		about: "remove lockwrap from the plugins, unless something needs it",
		help: `It is refused while a list, a stand-in or a running container needs lockwrap:
without it, no container of that network could start or be deleted. Nomad, podman
and CRI-O delete a container by the list with which it was started. Stand-ins are
looked for in /opt/cni/lockwrap and on CNI_PATH.
`,
		setup: func(flags *flag.FlagSet) func(*console, []string) int {
			dir := installDirFlag(flags)
			confDirs := confDirFlag(flags)
			const about = "say whether it would be refused, and change nothing"
			dryRun := flags.Bool("dry-run", false, about)
			flags.BoolVar(dryRun, "n", false, about)
			return func(c *console, args []string) int {
				if len(args) > 0 {
					return c.tooMany(args)
				}
				at, err := installed(*dir)
				if err != nil {
					c.errorf("%v", err)
					return misused
				}
				u := &uninstaller{console: c}
				if !u.unneeded(at, *confDirs) {
					return 1
				}
				return u.remove(at, *dryRun)
			}
		},
	}
}

// An uninstaller looks for what needs lockwrap.
type uninstaller struct {
	*console
	needed bool // something does
}

// unneeded says what on this host still leads to a lockwrap. What can't be read may.
func (u *uninstaller) unneeded(at string, dirs []string) bool {
	if len(dirs) == 0 {
		dirs = confDirs
	}
	for _, dir := range dirs {
		u.unnamed(dir, 3)
	}
	u.uncached()
	u.idle()
	for _, link := range standInsOf(at) {
		u.need(fmt.Sprintf("run \"lockwrap stand-in --dir %s --remove %s\" first", filepath.Dir(link), filepath.Base(link)),
			"%s: the stand-in still leads to %s", link, at)
	}
	return !u.needed
}

func (u *uninstaller) need(todo, format string, args ...any) {
	u.needed = true
	u.errorf(format, args...)
	u.hintf("%s", todo)
}

// unread is needed for what can't be looked at.
func (u *uninstaller) unread(err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		u.need(asRoot("move it away if it is no list"), "cannot tell whether lockwrap is needed: %v", err)
	}
}

// unnamed looks at the lists of a directory and below: there are drop-in directories,
// and nerdctl has one for each of its namespaces.
func (u *uninstaller) unnamed(dir string, depth int) {
	entries, err := os.ReadDir(dir)
	u.unread(err)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		switch {
		case err == nil && info.IsDir() && depth > 0:
			u.unnamed(path, depth-1)
			continue
		case err == nil && info.IsDir(), !slices.Contains(listExtensions, filepath.Ext(path)):
			continue
		}
		file, err := conflist.Open(path)
		if err != nil {
			u.unread(err)
		} else if callsLockwrap(file.Data) {
			u.need(fmt.Sprintf("run \"lockwrap unwrap %s\" first", path), "%s: the list still names lockwrap", path)
		}
	}
}

// uncached looks for attachments whose list named lockwrap when they were made:
// podman and CRI-O delete a container by the list that libcni has cached for it, and
// Nomad by the one that it read when its agent or the allocation was started.
func (u *uninstaller) uncached() {
	const cache = "/var/lib/cni/results" // libcni/api.go, getCacheDir
	entries, err := os.ReadDir(cache)
	u.unread(err)
	for _, e := range entries {
		path := filepath.Join(cache, e.Name())
		file, err := conflist.Open(path)
		if err != nil {
			u.unread(err)
			continue
		}
		var cached struct {
			Config      []byte `json:"config"`
			ContainerID string `json:"containerId"`
			NetworkName string `json:"networkName"`
		}
		if json.Unmarshal(file.Data, &cached) == nil && callsLockwrap(cached.Config) {
			u.need("delete the container first, or, if there is no such container, the file "+path,
				"container %s was started in network %q with lockwrap, and some runtimes delete it so", cached.ContainerID, cached.NetworkName)
		}
	}
}

// idle looks for a call that runs: its runtime will want to delete what it adds.
func (u *uninstaller) idle() {
	all, err := readStatus(os.Environ())
	u.unread(err)
	for _, s := range all {
		for _, err := range s.errs {
			u.unread(err)
		}
		if s.Lock != nil && s.Lock.Holder != nil {
			u.need("wait for its end", "%s is held by %s", s.LockFile, describe(*s.Lock.Holder))
		}
	}
}

// callsLockwrap reports whether lockwrap is a plugin of the list, at any depth: a
// delegating plugin such as multus may call it.
func callsLockwrap(data []byte) bool {
	var root any
	if json.Unmarshal(data, &root) != nil {
		return bytes.Contains(data, []byte(`"`+conflist.PluginName+`"`))
	}
	return calls(root)
}

func calls(value any) bool {
	switch value := value.(type) {
	case []any:
		return slices.ContainsFunc(value, calls)
	case map[string]any:
		for key, inner := range value {
			if strings.EqualFold(key, "type") && inner == conflist.PluginName || calls(inner) {
				return true
			}
		}
	}
	return false
}

// standInsOf are the links to a lockwrap under other names.
func standInsOf(at string) (links []string) {
	binary, err := os.Stat(at)
	if err != nil {
		return nil
	}
	for _, dir := range append(filepath.SplitList(os.Getenv("CNI_PATH")), standInDir) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			link := filepath.Join(dir, e.Name())
			info, err := os.Stat(link)
			if err == nil && os.SameFile(info, binary) && e.Name() != conflist.PluginName && !slices.Contains(links, link) {
				links = append(links, link)
			}
		}
	}
	return links
}

func (u *uninstaller) remove(file string, dryRun bool) int {
	_, err := lstat(file)
	done := "would be removed"
	if err == nil && !dryRun {
		err, done = os.Remove(file), "removed"
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		done = "not there, nothing to do"
	case err != nil:
		u.errorf("%v", err)
		u.hintRoot(err)
		return 1
	}
	u.linef("uninstall: %s: %s", file, done)
	return 0
}
