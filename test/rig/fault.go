// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Shim puts a shell script before the plugin of that name on CNI_PATH. In it $dir is the host's directory and $real
// the plugin, which it becomes at its end.
func (h *Host) Shim(plugin, script string) error {
	real, err := h.plugin(plugin)
	if err != nil {
		return err
	}
	return writeScript(filepath.Join(h.Dir, "shims", plugin), fmt.Sprintf(
		"#!/bin/sh\ndir=%s\nreal=%s\n%s\nexec \"$real\" \"$@\"\n", h.Dir, real, script))
}

// Unshim takes it away again.
func (h *Host) Unshim(plugin string) error {
	return os.Remove(filepath.Join(h.Dir, "shims", plugin))
}

func (h *Host) plugin(name string) (string, error) {
	for _, dir := range h.Set.dirs {
		if path := filepath.Join(Bin(dir), name); isFile(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: no plugin %s", errPlugins, name)
}

// IPTables puts a shell script before iptables and ip6tables. In it $dir is the host's directory, $caller the command
// name of the process that called it, and $real the program, which it becomes at its end.
func (h *Host) IPTables(script string) error {
	h.path = append([]string{filepath.Join(h.Dir, "first")}, h.path...)
	return h.scriptIPTables(script)
}

// IPTablesFor does so for one plugin alone.
func (h *Host) IPTablesFor(plugin, script string) error {
	if err := h.scriptIPTables(script); err != nil {
		return err
	}
	return h.Shim(plugin, `export PATH="$dir/first:$PATH"`)
}

func (h *Host) scriptIPTables(script string) error {
	for _, cmd := range []string{"iptables", "ip6tables"} {
		// No command substitution and no pipe: it must cost no process, since it runs a hundred times an ADD.
		err := writeScript(filepath.Join(h.Dir, "first", cmd), fmt.Sprintf(
			"#!/bin/sh\ndir=%s\nreal=%s\nread -r caller 2>/dev/null </proc/$PPID/comm\n%s\nexec \"$real\" \"$@\"\n",
			h.Dir, filepath.Join(h.Dir, "bin", cmd), script))
		if err != nil {
			return err
		}
	}
	return nil
}

// Flush removes all rules and chains, as a restart of firewalld does.
func (h *Host) Flush() error {
	path, err := h.FlushScript()
	if err != nil {
		return err
	}
	if run := h.Exec(path); !run.OK() {
		return fmt.Errorf("flush: %v", run)
	}
	return nil
}

func writeScript(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// A process forked while the file is open for writing would keep it so until its exec, and then running the
	// script fails with "text file busy" (golang/go#22315).
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o755)
}

// Direct runs the first entry's plugin of the host's list with nothing in between, as libcni would: with the
// container's host ports, but without prevResult. Env may replace any of the CNI_ variables.
func (h *Host) Direct(verb string, c *Container, env ...string) Run {
	return h.DirectWith(verb, c, nil, env...)
}

// DirectWith adds keys to the configuration that the plugin gets, or with nil takes them away.
func (h *Host) DirectWith(verb string, c *Container, keys map[string]any, env ...string) Run {
	l, err := h.list()
	if err != nil {
		return Run{Err: err}
	}
	conf := l.Plugins[0].With("name", l.Name).With("cniVersion", l.CNIVersion)
	conf["runtimeConfig"] = json.RawMessage(c.Ports)
	for key, value := range keys {
		if conf[key] = value; value == nil {
			delete(conf, key)
		}
	}
	name, _ := conf["type"].(string)
	path := Bin(name)
	if !isFile(path) {
		if path, err = h.plugin(name); err != nil {
			return Run{Err: err}
		}
	}
	return h.Cmd(&exec.Cmd{
		Path: path,
		Args: []string{path},
		Env: h.Environ(append([]string{
			"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + c.ID, "CNI_NETNS=" + c.NetNS, "CNI_IFNAME=eth0",
		}, env...)...),
		Stdin: conf.reader(),
	})
}

// CNIError is what a plugin prints on stdout when it fails.
type CNIError struct {
	Code    uint
	Msg     string
	Details string
}

// CNIError reads it.
func (r Run) CNIError() (*CNIError, error) {
	var e CNIError
	if err := json.Unmarshal([]byte(r.Stdout), &e); err != nil {
		return nil, fmt.Errorf("not a CNI error: %w: %q", err, r.Stdout)
	}
	return &e, nil
}

// WithFaults gives the host a lockwrap that can be made to die at each of its steps: at number $LOCKWRAP_FAULT_AT, or
// to run $LOCKWRAP_FAULT_DO there instead; $LOCKWRAP_FAULT_LOG gets the steps.
func (h *Host) WithFaults() error {
	if !isFile(Bin("faults/lockwrap")) {
		return fmt.Errorf("%w: no faults/lockwrap", errPlugins)
	}
	h.faults = true
	return nil
}

// FlushScript makes a program of Flush.
func (h *Host) FlushScript() (path string, err error) {
	path = filepath.Join(h.Dir, "flush")
	var script strings.Builder
	for _, cmd := range []string{"iptables", "ip6tables"} {
		restore, err := exec.LookPath(cmd + "-" + h.Backend + "-restore")
		if err != nil {
			return "", fmt.Errorf("%w: %w", errPackage, err)
		}
		fmt.Fprintf(&script, "printf '*filter\\nCOMMIT\\n*nat\\nCOMMIT\\n' | %s || exit\n", restore)
	}
	return path, writeScript(path, "#!/bin/sh\n"+script.String())
}
