// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/lockwrap/lockwrap/conflist"
)

func wrapCommand() command {
	return command{
		name:     "wrap",
		operands: "FILE...",
		about:    "put lockwrap around the plugins of a network configuration list",
		help: `The file is replaced in one step; mode and owner stay, a link is followed. The
plugins stay as they are, to the byte. What is wrapped already is left alone.
Running containers go on, and can be deleted by either list.
`,
		setup: func(flags *flag.FlagSet) func(*console, []string) int {
			dryRun := dryRunFlag(flags)
			var only []string
			flags.Func("only", "wrap only the plugins `A,B,C`, which follow each other in the list", func(s string) error {
				only = strings.Split(s, ",")
				if slices.Contains(only, "") {
					return errors.New(`not a list of plugins such as "bridge,firewall,portmap"`)
				}
				return nil
			})
			return func(c *console, files []string) int {
				return c.rewrite("wrap", files, *dryRun, func(l *conflist.List) ([]byte, []string, error) {
					out, err := l.Wrap(only)
					return out, outsiders(l, only), err
				})
			}
		},
	}
}

func unwrapCommand() command {
	return command{
		name:     "unwrap",
		operands: "FILE...",
		about:    "take lockwrap away again, byte for byte",
		help: `The file is replaced in one step, as by "wrap". Leave lockwrap installed
as long as containers run: Nomad, podman and CRI-O delete a container by the
list with which it was started.
`,
		setup: func(flags *flag.FlagSet) func(*console, []string) int {
			dryRun := dryRunFlag(flags)
			return func(c *console, files []string) int {
				return c.rewrite("unwrap", files, *dryRun, func(l *conflist.List) ([]byte, []string, error) {
					out, err := l.Unwrap()
					return out, lostKeys(l), err
				})
			}
		},
	}
}

func dryRunFlag(flags *flag.FlagSet) *bool {
	const about = "print what would change as a unified diff, and change nothing"
	dryRun := flags.Bool("dry-run", false, about)
	flags.BoolVar(dryRun, "n", false, about)
	return dryRun
}

// outsiders warns of plugins that --only leaves outside and that race.
func outsiders(l *conflist.List, only []string) (warnings []string) {
	for _, p := range l.Plugins {
		if only != nil && conflist.SharesRules(p.Type) && !slices.Contains(only, p.Type) {
			warnings = append(warnings, fmt.Sprintf("%q stays outside lockwrap and runs without the lock", p.Type))
		}
	}
	return warnings
}

// lostKeys warns of settings that "lockwrap wrap" will not write again.
func lostKeys(l *conflist.List) (warnings []string) {
	for _, p := range l.Plugins {
		if p.Type != conflist.PluginName {
			continue
		}
		for _, key := range p.Keys() {
			if !slices.Contains([]string{"type", "capabilities", "delegates", "name", "cniVersion"}, key) {
				warnings = append(warnings, fmt.Sprintf("%q of the lockwrap entry is gone with it", key))
			}
		}
	}
	return warnings
}

// rewrite changes the files, each of them or not at all, and reports each.
func (c *console) rewrite(verb string, files []string, dryRun bool, change func(*conflist.List) (data []byte, warnings []string, err error)) int {
	if len(files) == 0 {
		c.errorf("no FILE is given")
		return misused
	}
	code := 0
	for _, path := range files {
		warnings, err := c.rewriteFile(verb, path, dryRun, change)
		switch {
		case errors.Is(err, conflist.ErrNothingToDo):
			c.linef("%s: %s: %v", verb, path, err)
			continue
		case err != nil:
			c.refused(verb, path, err)
			code = 1
			continue
		case !dryRun:
			c.linef("%s: %s: done", verb, path)
		}
		for _, w := range warnings {
			c.warnf("%s: %s", path, w)
		}
	}
	return code
}

func (c *console) rewriteFile(verb, path string, dryRun bool, change func(*conflist.List) ([]byte, []string, error)) (warnings []string, err error) {
	file, err := conflist.Open(path)
	if err != nil {
		return nil, err
	}
	list, err := conflist.Parse(path, file.Data)
	if err != nil {
		return nil, err
	}
	data, warnings, err := change(list)
	if err != nil {
		return nil, err
	}
	if dryRun {
		_, err := c.out.Write(diff.Diff(path, file.Data, path+" ("+verb+"ped)", data))
		return warnings, err
	}
	return warnings, file.Replace(data)
}

// refused says why a file stays as it is, and what to do.
func (c *console) refused(verb, path string, err error) {
	var where *conflist.Error
	var atPath *fs.PathError
	again := fmt.Sprintf("then run \"lockwrap %s\" again", verb)
	switch {
	case errors.As(err, &where):
		c.errorf("%s:%v", path, err)
		c.hintf("%s, %s", where.Todo, again)
	case errors.Is(err, fs.ErrNotExist):
		c.errorf("%s: there is no such file", path)
		c.hintf("lists are in /etc/cni/net.d, Nomad's in /opt/cni/config; \"lockwrap doctor\" finds them")
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		c.errorf("%s: %v", path, err)
		c.hintf("run it as root")
	case errors.Is(err, fs.ErrPermission):
		c.errorf("%s: %v", path, err)
		c.hintf("lsattr shows whether the file or its directory is immutable")
	case errors.Is(err, syscall.EBUSY):
		c.errorf("%s: %v", path, err)
		c.hintf("it is a mount point: change the file that is mounted there")
	case errors.Is(err, syscall.EROFS):
		c.errorf("%s: %v", path, err)
		c.hintf("change the list where this file comes from, %s there", again)
	case errors.As(err, &atPath) && atPath.Path == path:
		c.errorf("%s: %v", path, atPath.Err)
	default:
		c.errorf("%s: %v", path, err)
	}
}
