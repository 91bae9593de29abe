// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
)

// pluginName is the type of lockwrap's own entry in a list.
const pluginName = "lockwrap"

// delegate is one wrapped plugin.
type delegate struct {
	Type string

	binary       string // of a stand-in's delegate; others are looked for at each turn
	name         string // the entry's own "name", which libcni's errors show
	capabilities map[string]bool
	entry        map[string]json.RawMessage // as it stood in the list
}

// parseDelegate's errors complete "delegate N ...".
func parseDelegate(raw json.RawMessage) (*delegate, error) {
	d := &delegate{}
	if err := json.Unmarshal(raw, &d.entry); err != nil || d.entry == nil {
		return nil, fmt.Errorf("is not an object: %s", outline(raw))
	}
	var conf types.PluginConf
	if err := json.Unmarshal(raw, &conf); err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	switch {
	case conf.Type == "":
		return nil, errors.New(`has no "type"`)
	case strings.ContainsAny(conf.Type, "/\x00"):
		return nil, fmt.Errorf(`has "type": %q, which is a path; it must be the plugin's bare name, looked up in CNI_PATH`, conf.Type)
	}
	d.Type, d.name, d.capabilities = conf.Type, conf.Name, conf.Capabilities
	return d, nil
}

// String is libcni's description of a plugin in its errors.
func (d *delegate) String() string {
	if d.name != "" {
		return fmt.Sprintf("type=%q name=%q", d.Type, d.name)
	}
	return fmt.Sprintf("type=%q", d.Type)
}

// FindPlugin finds the binary of a delegate in CNI_PATH by libcni's rule, but
// never lockwrap itself: a link of the delegate's name that leads back here
// would wait for its own lock for ever. The error is a *types.Error in libcni's
// words.
func FindPlugin(pluginType, cniPath string) (string, error) {
	dirs := filepath.SplitList(cniPath)
	for _, dir := range dirs {
		if path, err := invoke.FindInPath(pluginType, []string{dir}); err == nil && !IsLockwrap(path) {
			return path, nil
		}
	}
	return "", types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("failed to find plugin %q in path %s", pluginType, dirs), "")
}

// IsLockwrap reports whether a file is lockwrap: this one, whatever the links, or
// a link to another one.
func IsLockwrap(path string) bool {
	self, err1 := os.Stat("/proc/self/exe")
	found, err2 := os.Stat(path)
	if err1 == nil && err2 == nil && os.SameFile(self, found) {
		return true
	}
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSymlink == 0 {
		return false
	}
	target, err := filepath.EvalSymlinks(path)
	return err == nil && strings.HasPrefix(filepath.Base(target), pluginName)
}

// path finds the delegate's binary.
func (d *delegate) path(cniPath string) (string, error) {
	if d.binary != "" {
		return d.binary, nil
	}
	return FindPlugin(d.Type, cniPath)
}

// locate looks for all delegates before the first one runs, so that a missing
// one changes nothing.
func (c *NetConf) locate(cniPath string) error {
	for _, d := range c.Delegates {
		if _, err := d.path(cniPath); err != nil {
			return ownError(types.ErrInvalidNetworkConfig, "install the plugin there, or correct the list",
				"network %q: delegate %q cannot be found in CNI_PATH %q", c.Name, d.Type, filepath.SplitList(cniPath))
		}
	}
	return nil
}

// config is what libcni would give the plugin for verb, but for prevResult:
// its entry with the list's name and version, its share of the capability
// arguments, and what the runtime puts into every plugin of a list.
func (c *NetConf) config(d *delegate, verb string) map[string]json.RawMessage {
	conf := maps.Clone(d.entry)
	if c.standIn {
		return conf // libcni has done all that
	}
	conf["name"] = quote(c.Name)
	conf["cniVersion"] = quote(c.CNIVersion)
	maps.Copy(conf, c.passed)
	if c.args != nil {
		conf["args"] = mergeArgs(d.entry["args"], c.args)
	}
	if share := c.share(d); len(share) > 0 && verb != "GC" && verb != "STATUS" {
		conf["runtimeConfig"] = mustMarshal(share)
	}
	return conf
}

// share is the part of the runtime's capability arguments that the delegate
// declares.
func (c *NetConf) share(d *delegate) map[string]json.RawMessage {
	share := map[string]json.RawMessage{}
	for name, wanted := range d.capabilities {
		if arg, ok := c.runtimeConfig[name]; ok && wanted {
			share[name] = arg
		}
	}
	return share
}

// mergeArgs lays the args that the runtime put into the lockwrap entry over a
// delegate's own; those below "cni" key by key, as Multus does.
func mergeArgs(own, incoming json.RawMessage) json.RawMessage {
	return mergeObjects(own, incoming, func(key string, own, incoming json.RawMessage) json.RawMessage {
		if key != "cni" {
			return incoming
		}
		return mergeObjects(own, incoming, func(_ string, _, incoming json.RawMessage) json.RawMessage {
			return incoming
		})
	})
}

func mergeObjects(own, incoming json.RawMessage, merge func(string, json.RawMessage, json.RawMessage) json.RawMessage) json.RawMessage {
	var to, from map[string]json.RawMessage
	if json.Unmarshal(own, &to) != nil || json.Unmarshal(incoming, &from) != nil || to == nil || from == nil {
		return incoming
	}
	for key, value := range from {
		if old, ok := to[key]; ok {
			value = merge(key, old, value)
		}
		to[key] = value
	}
	return mustMarshal(to)
}

// exec runs one delegate for a verb that has no result.
func (c *call) exec(ctx context.Context, d *delegate, config map[string]json.RawMessage, env environment) error {
	path, err := d.path(c.args.Path)
	if err != nil {
		return err
	}
	_, err = c.runner(d).ExecPlugin(ctx, path, mustMarshal(config), env)
	c.reached(d.Type + " ended")
	return err
}

// execAdd runs one delegate's ADD. It returns what the delegate printed beside
// the result read from it by libcni's rules, and whether it was started at all.
func (c *call) execAdd(ctx context.Context, d *delegate, config map[string]json.RawMessage) (printed []byte, result types.Result, started bool, err error) {
	path, err := d.path(c.args.Path)
	if err != nil {
		return nil, nil, false, err
	}
	run := c.runner(d)
	result, err = invoke.ExecPluginWithResult(ctx, path, mustMarshal(config), c.env, run)
	c.reached(d.Type + " ended")
	return run.printed, result, run.group != 0, err
}

// environment is a ready environment as libcni wants one.
type environment []string

func (e environment) AsEnv() []string { return e }

// with replaces one variable; everything else stays as the runtime gave it.
func (e environment) with(key, value string) environment {
	out := make(environment, 0, len(e)+1)
	for _, kv := range e {
		if !strings.HasPrefix(kv, key+"=") {
			out = append(out, kv)
		}
	}
	return append(out, key+"="+value)
}

func quote(s string) json.RawMessage { return mustMarshal(s) }

// mustMarshal is for values made of strings and of JSON that has been read,
// which always marshal.
func mustMarshal(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}
