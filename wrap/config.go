// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// hostConfigFile sets defaults for all lists of the host; the environment
// variable LOCKWRAP_CONFIG names another one.
const hostConfigFile = "/etc/lockwrap/config.json"

// Settings are the keys that both the lockwrap entry and the host's
// configuration file may set. The entry wins.
type Settings struct {
	LockFile      string        // the host-global lock; one file for all lists of a host
	StateDir      string        // where the attachment records are
	LockTimeout   time.Duration // longest wait for the lock
	PluginTimeout time.Duration // longest run of one delegate, from its own start
	LogFile       string        // "" is none; stderr is written to in any case
	LogLevel      slog.Level
	// PluginDirs are where a stand-in looks for the plugin behind it when it
	// has no CNI_PATH. Only the host's configuration can set it.
	PluginDirs []string
}

func defaultSettings() Settings {
	return Settings{
		LockFile:      "/run/lockwrap/lock",
		StateDir:      "/run/lockwrap",
		LockTimeout:   2 * time.Minute,
		PluginTimeout: 2 * time.Minute,
		LogLevel:      slog.LevelInfo,
		PluginDirs:    DefaultPluginDirs(),
	}
}

// DefaultPluginDirs are where the distributions have the plugins.
func DefaultPluginDirs() []string {
	return []string{"/opt/cni/bin", "/usr/libexec/cni", "/usr/lib/cni"}
}

// set takes over one key; known is false for a key that is no setting.
func (s *Settings) set(key string, raw json.RawMessage) (known bool, err error) {
	switch key {
	case "lockFile":
		return true, setPath(&s.LockFile, raw)
	case "stateDir":
		return true, setPath(&s.StateDir, raw)
	case "logFile":
		return true, setPath(&s.LogFile, raw)
	case "lockTimeout":
		return true, setDuration(&s.LockTimeout, raw)
	case "pluginTimeout":
		return true, setDuration(&s.PluginTimeout, raw)
	case "logLevel":
		return true, setLevel(&s.LogLevel, raw)
	}
	return false, nil
}

// A relative path would be another file for each runtime's working directory,
// and so another lock.
func setPath(dst *string, raw json.RawMessage) error {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil || !filepath.IsAbs(s) || strings.ContainsRune(s, 0) {
		return errors.New("not an absolute path")
	}
	*dst = filepath.Clean(s)
	return nil
}

func setDirs(dst *[]string, raw json.RawMessage) error {
	var dirs []string
	if err := json.Unmarshal(raw, &dirs); err != nil || len(dirs) == 0 || !all(dirs, filepath.IsAbs) {
		return errors.New("not a list of absolute paths")
	}
	*dst = dirs
	return nil
}

func all(list []string, is func(string) bool) bool {
	return !slices.ContainsFunc(list, func(s string) bool { return !is(s) })
}

func setDuration(dst *time.Duration, raw json.RawMessage) error {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return errors.New(`not a duration string such as "90s"`)
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return errors.New(`not a positive duration such as "90s" or "2m"`)
	}
	*dst = d
	return nil
}

func setLevel(dst *slog.Level, raw json.RawMessage) error {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil || !slices.Contains([]string{"debug", "info", "warn", "error"}, s) {
		return errors.New(`not one of "debug", "info", "warn", "error"`)
	}
	return dst.UnmarshalText([]byte(s))
}

// HostSettings are the defaults with the host's configuration file over them,
// which LOCKWRAP_CONFIG in environ names if it is not /etc/lockwrap/config.json.
// Errors are *types.Error with code 7 and name file, key and value.
func HostSettings(environ []string) (Settings, error) {
	s := defaultSettings()
	err := s.readHostConfig(environ)
	return s, err
}

// readHostConfig overlays the host's configuration file. Only the default file
// may be missing.
func (s *Settings) readHostConfig(environ []string) error {
	path, named := lookupEnv(environ, "LOCKWRAP_CONFIG")
	if !named || path == "" {
		path, named = hostConfigFile, false
	}
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	if err != nil {
		return configError("cannot read the host configuration: %w", err)
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(data, &keys); err != nil {
		return configError("%s: not a JSON object: %w", path, err)
	}
	if keys == nil {
		return configError("%s: not a JSON object: null", path)
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		raw := keys[key]
		known, err := s.set(key, raw)
		switch {
		case err != nil:
			return configError("%s: %q: %s is %w", path, key, excerpt(raw), err)
		case !known && key == "pluginDirs":
			if err := setDirs(&s.PluginDirs, raw); err != nil {
				return configError("%s: %q: %s is %w", path, key, excerpt(raw), err)
			}
		case !known:
			return configError("%s: unknown key %q: %s", path, key, excerpt(raw))
		}
	}
	return nil
}

// NetConf is the lockwrap entry of a network configuration list as the runtime
// passes it on stdin.
type NetConf struct {
	Settings

	Name         string // of the list
	CNIVersion   string // of the list, "" if it has none
	Capabilities map[string]bool
	Delegates    []*delegate
	Chains       []Chain // further chains to pre-create

	standIn bool // for one delegate, which has the name we were called by

	prevResult    json.RawMessage            // nil if the runtime gave none
	runtimeConfig map[string]json.RawMessage // capability arguments
	passed        map[string]json.RawMessage // what every delegate gets as it came
	args          json.RawMessage
}

// ParseEntry reads a lockwrap entry as the plugin will when a container starts
// in the network. Errors are as then: *types.Error with code 7.
func ParseEntry(entry json.RawMessage, network, cniVersion string, environ []string) (*NetConf, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(entry, &keys); err != nil || keys == nil {
		return nil, configError("network %q: the lockwrap entry is not an object: %s", network, excerpt(entry))
	}
	keys["name"], keys["cniVersion"] = quote(network), quote(cniVersion)
	return parse(mustMarshal(keys), environ)
}

// parse reads an entry. All that is wrong with it is found here, before
// anything has changed. Errors have code 7 and name key and value.
func parse(stdin []byte, environ []string) (*NetConf, error) {
	conf := &NetConf{Settings: defaultSettings(), passed: map[string]json.RawMessage{}}
	if err := conf.readHostConfig(environ); err != nil {
		return nil, err
	}
	// skel has read it as JSON with a name already.
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &keys); err != nil {
		return nil, ownError(types.ErrDecodingFailure, "", "the network configuration is not a JSON object: %w", err)
	}
	if err := json.Unmarshal(keys["name"], &conf.Name); err != nil {
		return nil, configError("%q: %s is not a string", "name", excerpt(keys["name"]))
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		raw := keys[key]
		if err := conf.take(key, raw); err != nil {
			shown := excerpt(raw)
			if errors.Is(err, errUnknownKey) {
				shown = outline(raw) // may be a plugin's, in the wrong place
			}
			return nil, configError("network %q: %q: %s is %w", conf.Name, key, shown, err)
		}
	}
	if err := conf.takeDelegates(keys["delegates"]); err != nil {
		return nil, configError("network %q: %w", conf.Name, err)
	}
	return conf, nil
}

// take takes over one key of the entry. The error completes "VALUE is ...".
func (c *NetConf) take(key string, raw json.RawMessage) error {
	if known, err := c.Settings.set(key, raw); known {
		return err
	}
	switch {
	case key == "type", key == "name", key == "delegates":
		return nil
	case key == "cniVersion":
		return typed(raw, &c.CNIVersion, "a string")
	case key == "capabilities":
		return typed(raw, &c.Capabilities, "an object of true and false")
	case key == "chains":
		return c.takeChains(raw)
	case key == "prevResult":
		if string(raw) != "null" {
			c.prevResult = raw
		}
		return nil
	case key == "runtimeConfig":
		return typed(raw, &c.runtimeConfig, "an object")
	case key == "args":
		// Multus puts args, deviceID and pciBusID into each plugin of a list
		// (multus-cni, pkg/types/conf.go), so the delegates get them.
		if string(raw) != "null" {
			c.args = raw
		}
		return nil
	case key == "deviceID", key == "pciBusID", strings.HasPrefix(key, "cni.dev/"):
		c.passed[key] = raw
		return nil
	}
	return errUnknownKey
}

var errUnknownKey = errors.New(`for a key that lockwrap does not know; a plugin's own keys belong into its entry in "delegates"`)

func typed(raw json.RawMessage, dst any, what string) error {
	if err := json.Unmarshal(raw, dst); err != nil {
		return fmt.Errorf("not %s", what)
	}
	return nil
}

// takeDelegates validates the delegates as libcni validates the plugins of a
// list when it loads one (libcni/conf.go), with the same struct and so with its
// rules, letter case included.
func (c *NetConf) takeDelegates(raw json.RawMessage) error {
	var entries []json.RawMessage
	if raw != nil {
		if err := json.Unmarshal(raw, &entries); err != nil {
			return fmt.Errorf(`"delegates": %s is not a list of plugins`, outline(raw))
		}
	}
	if len(entries) == 0 {
		return errors.New(`"delegates" is empty or missing; lockwrap must contain the plugins it wraps`)
	}
	for i, entry := range entries {
		d, err := parseDelegate(entry)
		if err != nil {
			return fmt.Errorf("delegate %d %w", i+1, err)
		}
		if d.Type == pluginName {
			return fmt.Errorf("delegate %d: lockwrap inside lockwrap: the inner one would wait for the outer one for ever; move its delegates one level up", i+1)
		}
		c.Delegates = append(c.Delegates, d)
	}
	return nil
}

// CheckCapabilities refuses an entry that does not declare what a delegate
// declares: the runtime would not pass it, and host ports would silently not
// work (multus-cni#544). A capability that was passed has been declared. The
// error is a *types.Error with code 7 and names delegate and capability.
func (c *NetConf) CheckCapabilities() error {
	for _, d := range c.Delegates {
		for _, name := range slices.Sorted(maps.Keys(d.capabilities)) {
			_, passed := c.runtimeConfig[name]
			if d.capabilities[name] && !c.Capabilities[name] && !passed {
				return ownError(types.ErrInvalidNetworkConfig,
					`add it to "capabilities" of the lockwrap entry, or run "lockwrap unwrap" and "lockwrap wrap" on the list`,
					"network %q: capability %q of delegate %q is missing from the lockwrap entry: the runtime would not pass it",
					c.Name, name, d.Type)
			}
		}
	}
	return nil
}

// outline shows a part of a plugin's configuration in an error message: what is in
// an object or a list may be a secret.
func outline(raw json.RawMessage) string {
	switch raw[0] {
	case '{':
		return "{...}"
	case '[':
		return "[...]"
	}
	return excerpt(raw)
}

// excerpt shows a value in an error message.
func excerpt(raw json.RawMessage) string {
	const longest = 80
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return "a value that is not JSON"
	}
	if s := b.String(); len(s) <= longest {
		return s
	}
	return strings.ToValidUTF8(b.String()[:longest], "") + "..."
}

func lookupEnv(environ []string, key string) (string, bool) {
	for i := len(environ) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(environ[i], key+"="); ok {
			return value, true
		}
	}
	return "", false
}
