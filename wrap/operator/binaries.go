// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/lockwrap/lockwrap/conflist"
	"github.com/lockwrap/lockwrap/wrap"
)

// patience is how long a program may take that only says who it is. It is the
// limit of Nomad's fingerprint.
const patience = 3 * time.Second

// run runs a program that only answers a question. It is killed, with what it
// has started, when it takes too long.
func run(environ []string, stdin, name string, args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out, errs head
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, strings.NewReader(stdin), &out, &errs
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	switch err = cmd.Run(); {
	case ctx.Err() != nil:
		err = fmt.Errorf("no answer within %s", patience)
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // it has answered, and left a daemon behind
	}
	return out.String(), errs.String(), err
}

// head keeps the beginning of what is written to it: a program that prints
// without end must not fill the memory.
type head struct{ bytes.Buffer }

func (h *head) Write(p []byte) (int, error) {
	const kept = 64 << 10
	h.Buffer.Write(p[:max(0, min(len(p), kept-h.Len()))])
	return len(p), nil
}

// excerpt is a program's output for a message.
func excerpt(output string) string {
	const longest = 200
	output = strings.TrimSpace(output)
	if len(output) > longest {
		output = strings.ToValidUTF8(output[:longest], "") + "..."
	}
	return output
}

// binaries are the directories where a runtime looks for plugins, and what the
// plugins there have answered.
type binaries struct {
	path    string // like CNI_PATH
	answers map[string]answer
}

// answer is what a plugin says of itself.
type answer struct {
	path     string
	release  string   // "v1.10.0", "" if it does not say
	versions []string // of the protocol
	err      error    // why the protocol versions are not known
}

// newBinaries takes a path like CNI_PATH. A relative directory in it is made
// absolute: exec would look for a bare name on PATH, where iproute2 has a bridge
// of its own.
func newBinaries(path string) *binaries {
	var dirs []string
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			continue // libcni finds nothing there either, except by accident
		}
		if abs, err := filepath.Abs(dir); err == nil {
			dir = abs
		}
		dirs = append(dirs, dir)
	}
	return &binaries{path: strings.Join(dirs, ":"), answers: map[string]answer{}}
}

func (b *binaries) dirs() string { return strings.Join(filepath.SplitList(b.path), " or ") }

// stoodIn reports whether the runtime finds lockwrap in the place of a plugin.
func (b *binaries) stoodIn(pluginType string) bool {
	path, err := invoke.FindInPath(pluginType, filepath.SplitList(b.path))
	return err == nil && wrap.IsLockwrap(path)
}

var errNotExecutable = errors.New("not executable")

// find looks for a plugin as libcni does. Lockwrap itself is one, but never in
// the place of another.
func (b *binaries) find(pluginType string) (path string, err error) {
	if pluginType == conflist.PluginName {
		path, err = invoke.FindInPath(pluginType, filepath.SplitList(b.path))
	} else {
		path, err = wrap.FindPlugin(pluginType, b.path)
	}
	if err != nil {
		return "", fmt.Errorf("%q is not in %s", pluginType, b.dirs())
	}
	info, err := os.Stat(path)
	if err == nil && info.Mode().Perm()&0o111 == 0 {
		return "", fmt.Errorf("%s is %w", path, errNotExecutable)
	}
	return path, nil
}

// ask runs a plugin twice: as Nomad's fingerprint does, for its release, and
// with VERSION.
func (b *binaries) ask(pluginType string) (answer, error) {
	path, err := b.find(pluginType)
	if err != nil {
		return answer{}, err
	}
	if a, asked := b.answers[path]; asked {
		return a, nil
	}
	a := answer{path: path}
	environ := withoutCNI(os.Environ())
	stdout, stderr, _ := run(environ, "", path)
	// The first line is "CNI bridge plugin v1.10.0"; the next has the protocol.
	about, _, _ := strings.Cut(strings.TrimLeft(stderr+stdout, "\n"), "\n")
	a.release = regexp.MustCompile(`v\d+\.\d+\.\d+\S*`).FindString(about)
	info, err := invoke.GetVersionInfo(context.Background(), path, &asker{})
	if err != nil {
		a.err = err
	} else {
		a.versions = info.SupportedVersions()
	}
	b.answers[path] = a
	return a, nil
}

// asker runs a plugin for VERSION within a time limit.
type asker struct{ version.PluginDecoder }

func (*asker) ExecPlugin(_ context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	stdout, stderr, err := run(environ, string(stdin), path)
	if err != nil && strings.Contains(stdout+stderr, "unknown CNI_COMMAND: VERSION") {
		return nil, fmt.Errorf("unknown CNI_COMMAND: VERSION") // before VERSION there was 0.1.0
	}
	if err != nil {
		if said := excerpt(stderr + stdout); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, err
	}
	return []byte(stdout), nil
}

func (*asker) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// speaks reports whether a plugin knows a list's cniVersion. A list without one
// is of 0.1.0 (libcni/api.go, validatePlugin).
func (a answer) speaks(cniVersion string) bool {
	if cniVersion == "" {
		cniVersion = "0.1.0"
	}
	return slices.Contains(a.versions, cniVersion)
}

func withoutCNI(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool { return strings.HasPrefix(kv, "CNI_") })
}

// pathList collects directories, given one by one or as in CNI_PATH.
type pathList []string

func (p *pathList) String() string { return strings.Join(*p, ":") }

func (p *pathList) Set(s string) error {
	dirs := filepath.SplitList(s)
	if len(dirs) == 0 || slices.Contains(dirs, "") {
		return errors.New("not a directory")
	}
	*p = append(*p, dirs...)
	return nil
}
