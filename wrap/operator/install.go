// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"

	"github.com/lockwrap/lockwrap/conflist"
	"github.com/lockwrap/lockwrap/wrap"
)

func installCommand() command {
	return command{
		name:  "install",
		about: "copy this lockwrap to the plugins",
		help: `The file there is replaced in one step: calls that run go on with the old one.
`,
		setup: func(flags *flag.FlagSet) func(*console, []string) int {
			dir := installDirFlag(flags)
			return func(c *console, args []string) int {
				if len(args) > 0 {
					return c.tooMany(args)
				}
				to, err := installed(*dir)
				if err != nil {
					c.errorf("%v", err)
					return misused
				}
				done, err := install(to)
				if err != nil {
					c.errorf("%v", err)
					c.hintRoot(err)
					return 1
				}
				c.linef("install: %s: %s", to, done)
				return 0
			}
		},
	}
}

// installDirFlag has the first plugin directory that this host has for a default.
func installDirFlag(flags *flag.FlagSet) *string {
	return flags.String("bin-dir", defaultBinDirs()[0],
		"the plugins are in `DIR` (default: the first of "+strings.Join(wrap.DefaultPluginDirs(), ", ")+" that exists)")
}

// installed is lockwrap's file in a directory. An unset variable, or a path like that
// of other commands, must not end up as a directory of that name.
func installed(dir string) (file string, err error) {
	if dir == "" || strings.Contains(dir, ":") {
		return "", fmt.Errorf("--bin-dir %q is not one directory", dir)
	}
	return filepath.Join(absolute(dir), conflist.PluginName), nil
}

// install copies the running binary and says what it did.
func install(to string) (done string, err error) {
	// By this name it is there though the file has been replaced or removed.
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer self.Close()
	own, err := self.Stat()
	if err != nil {
		return "", err
	}
	switch there, err := lstat(to); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", err
	case os.SameFile(own, there):
		return "it is this one, nothing to do", nil
	}
	syscall.Umask(0o022) // doctor needs no root, and must see the directory
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return "", err
	}
	// Nomad runs every file in the directory that is executable, so this one is not
	// until it is complete. A file that is written to could not be run ("text file
	// busy"); this one gets its name when it is closed.
	temp, err := renameio.NewPendingFile(to, renameio.WithTempDir(filepath.Dir(to)), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return "", err
	}
	defer temp.Cleanup()
	if _, err := io.Copy(temp, self); err != nil {
		return "", err
	}
	if err := temp.Chmod(0o755); err != nil {
		return "", err
	}
	if err := temp.CloseAtomicallyReplace(); err != nil {
		return "", err
	}
	return "done, " + wrap.Version(), nil
}

// lstat refuses a link, which is a package's, and the file is elsewhere; and whatever
// is no file.
func lstat(file string) (fs.FileInfo, error) {
	info, err := os.Lstat(file)
	switch {
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0:
		err = fmt.Errorf("%s is a link to %s; give the directory of that with --bin-dir, or remove the link by hand", file, target(file))
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is no file; move it away", file)
	}
	return info, err
}

func (c *console) hintRoot(err error) {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		c.hintf("run it as root")
	}
}
