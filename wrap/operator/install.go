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
				to := filepath.Join(absolute(*dir), conflist.PluginName)
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

// lstat refuses a link: it is a package's, and the file is elsewhere.
func lstat(file string) (fs.FileInfo, error) {
	info, err := os.Lstat(file)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		err = fmt.Errorf("%s is a link to %s; give the directory of that with --bin-dir, or remove the link by hand", file, target(file))
	}
	return info, err
}

func (c *console) hintRoot(err error) {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		c.hintf("run it as root")
	}
}
