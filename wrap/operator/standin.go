// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockwrap/lockwrap/conflist"
	"github.com/lockwrap/lockwrap/wrap"
)

// standInDir is where the links are by default.
const standInDir = "/opt/cni/lockwrap"

func standInCommand() command {
	return command{
		name:     "stand-in",
		operands: "NAME...",
		about:    "let lockwrap stand in for plugins of a list that nobody can edit",
		help: `For Nomad's mode = "bridge", whose list is compiled in:

    lockwrap stand-in bridge firewall portmap

The directory of links must be the first one in which the runtime looks for
plugins. Each call then takes the lock, and runs the next plugin of that name on
the path. Running containers go on.
`,
		setup: func(flags *flag.FlagSet) func(*console, []string) int {
			dir := flags.String("dir", standInDir, "put the links into `DIR` (default: "+standInDir+")")
			binDir := flags.String("bin-dir", wrap.DefaultPluginDirs()[0], "the plugins are in `DIR` (default: "+wrap.DefaultPluginDirs()[0]+")")
			remove := flags.Bool("remove", false, "remove the links")
			return func(c *console, names []string) int {
				if len(names) == 0 {
					c.errorf("no NAME is given")
					return misused
				}
				s := &standIns{console: c, dir: absolute(*dir), binDir: absolute(*binDir)}
				if s.dir == s.binDir {
					c.errorf("--dir and --bin-dir are the same: the links would take the place of the plugins")
					return misused
				}
				code := 0
				for _, name := range names {
					err := s.change(name, *remove)
					if err != nil {
						c.errorf("%s: %v", name, err)
						code = 1
					}
				}
				if code == 0 {
					s.advise(*remove)
				}
				return code
			}
		},
	}
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// standIns makes and removes links.
type standIns struct {
	*console
	dir, binDir string
}

func (s *standIns) change(name string, remove bool) error {
	if name != filepath.Base(name) || name == "." || strings.HasPrefix(name, conflist.PluginName) {
		return errors.New("not the name of a plugin that lockwrap can stand in for")
	}
	link := filepath.Join(s.dir, name)
	info, err := os.Lstat(link)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if remove {
			s.linef("stand-in: %s: not there, nothing to do", link)
			return nil
		}
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink == 0 || !strings.HasPrefix(filepath.Base(target(link)), conflist.PluginName):
		return fmt.Errorf("%s is no link to lockwrap; move it away", link)
	}
	if remove {
		if err := os.Remove(link); err != nil {
			return err
		}
		s.linef("stand-in: %s: removed", link)
		return nil
	}
	real, err := wrap.FindPlugin(name, s.binDir)
	if err != nil {
		return fmt.Errorf("there is no such plugin in %s for a stand-in to run", s.binDir)
	}
	to, err := s.lockwrap()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	// By another name and a rename: a runtime may look at any time. What a killed
	// stand-in command has left has the same name.
	temp := filepath.Join(s.dir, "."+name+".new")
	_ = os.Remove(temp)
	if err := os.Symlink(to, temp); err != nil {
		return err
	}
	if err := os.Rename(temp, link); err != nil {
		return err
	}
	s.linef("stand-in: %s -> %s, in front of %s", link, to, real)
	return nil
}

// target is where a link leads, though there may be nothing.
func target(link string) string {
	to, _ := os.Readlink(link)
	return to
}

// lockwrap is the binary that is installed beside the plugins, or this one.
func (s *standIns) lockwrap() (string, error) {
	installed := filepath.Join(s.binDir, conflist.PluginName)
	if _, err := os.Stat(installed); err == nil {
		return installed, nil
	}
	return os.Executable()
}

func (s *standIns) advise(removed bool) {
	path := s.dir + ":" + s.binDir
	if removed {
		s.linef("When no link is left in %s, it must not stay in cni_path: a restarted Nomad finds no plugins in an empty directory.", s.dir)
		return
	}
	s.linef("Nomad: in the client block of its configuration")
	s.linef("    cni_path = %q", path)
	s.linef("Nomad before 0.12 reads it from the environment of its unit")
	s.linef("    Environment=CNI_PATH=%s", path)
	s.linef("Then restart the agent; running allocations go on. \"lockwrap doctor --bin-dir %s\" looks whether it is right.", path)
}

// standIns looks at directories of links to lockwrap: the usual one, and those on
// the path.
func (x *examiner) standIns() {
	dirs := filepath.SplitList(x.bins.path)
	onPath := len(dirs)
	dirs = append(dirs, standInDir)
	for at, dir := range dirs {
		if at == onPath && slices.Contains(dirs[:at], dir) {
			continue
		}
		entries, _ := os.ReadDir(dir)
		var links, plugins []string
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			switch {
			case e.Name() == conflist.PluginName:
			case strings.HasPrefix(filepath.Base(target(path)), conflist.PluginName):
				links = append(links, path)
			case e.Type().IsRegular():
				plugins = append(plugins, path)
			}
		}
		if len(links) == 0 {
			continue
		}
		for _, link := range links {
			x.standIn(link, filepath.Base(link), dirs[:onPath], at)
		}
		for _, plugin := range plugins {
			x.add(warn, plugin, `move it away and run "lockwrap stand-in" again`, "a plugin itself among the stand-ins: an upgrade may have replaced the link")
		}
	}
}

// standIn looks at one link, which is in the directory at that place of the
// path, or behind the path's end.
func (x *examiner) standIn(link, name string, path []string, at int) {
	if _, err := os.Stat(link); err != nil {
		x.add(fail, link, `install lockwrap there, or run "lockwrap stand-in" again`, "the stand-in leads to %s, where nothing is", target(link))
		return
	}
	real, err := wrap.FindPlugin(name, strings.Join(path, ":"))
	switch {
	case err != nil:
		x.add(fail, link, "install the plugin, or remove the stand-in", "there is no plugin %q behind the stand-in in %s", name, strings.Join(path, " or "))
	case at == len(path):
		x.add(warn, link, "put its directory first in cni_path; if it is, name the path with --bin-dir", "the stand-in is not on the path %s", strings.Join(path, ":"))
	case slices.Contains(path[:at], filepath.Dir(real)):
		x.add(fail, link, "put its directory first in cni_path", "the stand-in is behind %s on the path, and so never called", real)
	default:
		x.add(fine, link, "", "stands in for %s", real)
	}
}
