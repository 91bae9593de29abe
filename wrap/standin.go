// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
)

// StandIn runs lockwrap in the place of the plugin by whose name it was called,
// through a link that stands before the real one on CNI_PATH. It is the plugin
// with one delegate, the real one. Lists that nobody can edit get the lock like
// this, above all the one that is compiled into Nomad.
//
// The bare run and VERSION are the real plugin's own: Nomad's fingerprint reads
// its version from the one, and decides by it (nomad#20263).
func StandIn(name string) (exitCode int) {
	environ := os.Environ()
	verb, _ := lookupEnv(environ, "CNI_COMMAND")
	settings, err := HostSettings(environ)
	dirs := filepath.SplitList(os.Getenv("CNI_PATH"))
	if verb == "" || verb == "VERSION" {
		// There is no CNI_PATH in the bare run, and it is "dummy" in VERSION
		// (pkg/invoke, GetVersionInfo).
		dirs = append(dirs, slices.DeleteFunc(settings.PluginDirs, func(dir string) bool { return slices.Contains(dirs, dir) })...)
	}
	path, found := findBehind(name, dirs)
	switch {
	case !found && verb == "":
		fmt.Fprintf(os.Stderr, "lockwrap: no plugin %q behind its stand-in %s, in %s\n", name, os.Args[0], strings.Join(dirs, ", "))
		return 1
	case !found:
		_ = ownError(types.ErrInvalidNetworkConfig, `install the plugin there, or remove its stand-in with "lockwrap stand-in --remove"`,
			"no plugin %q behind its stand-in, in %q", name, dirs).Print()
		return 1
	case verb == "", verb == "VERSION", err == nil && heldAbove(environ, settings.LockFile):
		// Below a lockwrap that holds the lock, as bridge's IPAM plugin is, the
		// one above has lock and record.
		err := syscall.Exec(path, append([]string{path}, os.Args[1:]...), environ)
		_ = ownError(errOther, "", "cannot run %q: %w", path, err).Print()
		return 1
	}
	return handle(environ, func(stdin []byte, _ []string) (*NetConf, error) {
		if err != nil {
			return nil, err
		}
		return parseStandIn(name, path, settings, stdin)
	})
}

// findBehind finds the next executable of that name that is not lockwrap.
func findBehind(name string, dirs []string) (path string, found bool) {
	for _, dir := range dirs {
		path, err := invoke.FindInPath(name, []string{dir})
		if err != nil || IsLockwrap(path) {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o111 != 0 {
			return path, true
		}
	}
	return "", false
}

// parseStandIn makes a configuration of what the real plugin would have got.
// The settings are the host's alone: the plugin's keys are its own.
func parseStandIn(name, path string, settings Settings, stdin []byte) (*NetConf, error) {
	d := &delegate{Type: name, binary: path}
	if err := json.Unmarshal(stdin, &d.entry); err != nil || d.entry == nil {
		return nil, ownError(types.ErrDecodingFailure, "", "the network configuration is not a JSON object")
	}
	conf := &NetConf{Settings: settings, standIn: true, Delegates: []*delegate{d}}
	// What is of a wrong type is the plugin's to complain about.
	_ = json.Unmarshal(d.entry["name"], &conf.Name)
	_ = json.Unmarshal(d.entry["cniVersion"], &conf.CNIVersion)
	_ = json.Unmarshal(d.entry["runtimeConfig"], &conf.runtimeConfig)
	conf.passed = d.entry // for validAttachments; config does not add it
	if raw := d.entry["prevResult"]; len(raw) > 0 && string(raw) != "null" {
		conf.prevResult = raw
		delete(d.entry, "prevResult")
	}
	return conf, nil
}

// Each stand-in sees only its own link of the chain. Those of one attachment
// share one record, which grows by a link with each ADD: a failed one leaves it
// in the state "adding", and so the next ADD, of whichever link comes first,
// removes what all of them have left.

// standInRecord is the record of the attachment, the only one that stand-ins
// have. What a wrapped list of the same network has recorded will do, too.
func standInRecord(all []*record, pluginType string) (own *record, others []*record) {
	i := slices.IndexFunc(all, func(r *record) bool { return r.StandIn })
	if i < 0 {
		i = slices.IndexFunc(all, func(r *record) bool { return slices.Contains(r.Types, pluginType) })
	}
	if i < 0 {
		return nil, all
	}
	own = all[i]
	own.StandIn = true
	return own, slices.Delete(all, i, i+1)
}

// continues reports whether this ADD is the next link of a chain that has been
// successful so far: one that has not been there yet, or, of a list that has a
// plugin twice, one that got what the last link has answered.
func (c *call) continues(old *record) bool {
	next := !slices.Contains(old.Types, c.conf.Delegates[0].Type) ||
		c.conf.prevResult != nil && sameJSON(c.conf.prevResult, old.lastResult())
	return c.conf.standIn && old.State == stateAdded && next && identifyNetNS(c.args.Netns).maybe(old.NetNSID)
}

// ownLink is the part of the record that this call's delegates have written, as
// a record of its own.
func (c *call) ownLink() *record {
	own := *c.rec
	own.Delegates = own.Delegates[c.firstLink:]
	own.PrevResult = c.conf.prevResult
	return &own
}

// linkOf is where a delegate is in the record, -1 if it is not.
func (r *record) linkOf(pluginType string) int {
	return slices.IndexFunc(r.Delegates, func(d recorded) bool { return d.Type == pluginType })
}

// answered reports whether a delegate's ADD is on record with a result.
func (r *record) answered(pluginType string) bool {
	i := r.linkOf(pluginType)
	return i >= 0 && r.Delegates[i].Result != nil
}

// resultBefore is the result that a link got at ADD.
func (r *record) resultBefore(pluginType string) json.RawMessage {
	before := r.PrevResult
	for _, d := range r.Delegates {
		if d.Type == pluginType {
			break
		}
		if d.Result != nil {
			before = d.Result
		}
	}
	return before
}

// dropLink forgets a link that has nothing left. It reports whether any is left
// in the record.
func (r *record) dropLink(pluginType string) (more bool) {
	r.Delegates = slices.DeleteFunc(r.Delegates, func(d recorded) bool { return d.Type == pluginType })
	return len(r.Delegates) > 0
}
