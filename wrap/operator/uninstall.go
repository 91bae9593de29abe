// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
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
and CRI-O delete a container by the list with which it was started.
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
				at := filepath.Join(absolute(*dir), conflist.PluginName)
				if !c.unneeded(at, *confDirs) {
					return 1
				}
				return c.remove(at, *dryRun)
			}
		},
	}
}

// unneeded says what on this host still leads to a lockwrap. What can't be read may.
func (c *console) unneeded(at string, dirs []string) bool {
	free := true
	if len(dirs) == 0 {
		dirs = confDirs
	}
	for _, dir := range dirs {
		if !c.unnamed(dir) {
			free = false
		}
	}
	if !c.uncached() {
		free = false
	}
	for _, link := range standInsOf(at) {
		free = false
		c.errorf("%s: the stand-in still leads to %s", link, at)
		c.hintf("run \"lockwrap stand-in --dir %s --remove %s\" first", filepath.Dir(link), filepath.Base(link))
	}
	return free
}

// unnamed looks at the lists of a directory, and at the drop-in directories in it.
func (c *console) unnamed(dir string) bool {
	entries, err := os.ReadDir(dir)
	files := listFiles(dir)
	for _, e := range entries {
		files = append(files, listFiles(filepath.Join(dir, e.Name()))...)
	}
	free := true
	for _, file := range files {
		data, unread := os.ReadFile(file)
		if unread != nil && !errors.Is(unread, fs.ErrNotExist) {
			err = unread
		}
		if callsLockwrap(data) {
			free = false
			c.errorf("%s: the list still names lockwrap", file)
			c.hintf("run \"lockwrap unwrap %s\" first", file)
		}
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return free
	}
	c.errorf("%v", err)
	c.hintRoot(err)
	return false
}

// uncached looks for attachments whose list named lockwrap when they were made:
// podman and CRI-O delete a container by the list that libcni has cached for it, and
// Nomad by the one that it read when its agent or the allocation was started.
func (c *console) uncached() bool {
	const cache = "/var/lib/cni/results" // libcni/api.go, getCacheDir
	entries, _ := os.ReadDir(cache)
	free := true
	for _, e := range entries {
		file := filepath.Join(cache, e.Name())
		data, _ := os.ReadFile(file)
		var cached struct {
			Config      []byte `json:"config"`
			ContainerID string `json:"containerId"`
			NetworkName string `json:"networkName"`
		}
		if json.Unmarshal(data, &cached) == nil && callsLockwrap(cached.Config) {
			free = false
			c.errorf("container %s was started in network %q with lockwrap, and some runtimes delete it so", cached.ContainerID, cached.NetworkName)
			c.hintf("delete the container first, or, if there is no such container, the file %s", file)
		}
	}
	return free
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

func (c *console) remove(file string, dryRun bool) int {
	_, err := lstat(file)
	done := "would be removed"
	if err == nil && !dryRun {
		err, done = os.Remove(file), "removed"
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		done = "not there, nothing to do"
	case err != nil:
		c.errorf("%v", err)
		c.hintRoot(err)
		return 1
	}
	c.linef("uninstall: %s: %s", file, done)
	return 0
}
