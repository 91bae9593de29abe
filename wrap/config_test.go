// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

// entry is a lockwrap entry with more keys in it.
func entry(more string) string {
	return `{"type": "lockwrap", "name": "web", "cniVersion": "1.0.0", "delegates": [{"type": "bridge"}]` + more + `}`
}

func TestParse_refuses(t *testing.T) {
	tests := []struct {
		name, stdin string
		want        []string
	}{
		{"no delegates", `{"name": "web"}`, []string{`network "web"`, `"delegates" is empty or missing`}},
		{"null delegates", `{"name": "web", "delegates": null}`, []string{`"delegates" is empty or missing`}},
		{"empty delegates", `{"name": "web", "delegates": []}`, []string{`"delegates" is empty or missing`}},
		{"delegates of another type", `{"name": "web", "delegates": {"type": "bridge"}}`, []string{`"delegates"`, `{...}`, "not a list"}},
		{"delegate without type", `{"name": "web", "delegates": [{"type": "a"}, {"x": 1}]}`, []string{`delegate 2 has no "type"`}},
		{"delegate null", `{"name": "web", "delegates": [null]}`, []string{"delegate 1 is not an object: null"}},
		{"delegate string", `{"name": "web", "delegates": ["bridge"]}`, []string{`delegate 1 is not an object: "bridge"`}},
		{"delegate with a path", `{"name": "web", "delegates": [{"type": "../bin/sh"}]}`, []string{`delegate 1`, `"../bin/sh"`, "path"}},
		{"delegate's capabilities", `{"name": "web", "delegates": [{"type": "a", "capabilities": {"ips": "yes"}}]}`, []string{"delegate 1", "capabilities"}},
		{"delegate's ipam", `{"name": "web", "delegates": [{"type": "a", "ipam": []}]}`, []string{"delegate 1", "ipam"}},
		{"lockwrap inside", `{"name": "web", "delegates": [{"type": "lockwrap", "delegates": []}]}`, []string{"delegate 1", "lockwrap inside lockwrap"}},
		{"unknown key", entry(`, "lockfile": "/x"`), []string{`"lockfile"`, `"/x"`, "does not know"}},
		{"lockTimeout a number", entry(`, "lockTimeout": 5`), []string{`"lockTimeout"`, `5 is not a duration string`}},
		{"lockTimeout zero", entry(`, "lockTimeout": "0s"`), []string{`"lockTimeout"`, `"0s" is not a positive duration`}},
		{"pluginTimeout negative", entry(`, "pluginTimeout": "-1s"`), []string{`"pluginTimeout"`, `"-1s"`}},
		{"pluginTimeout words", entry(`, "pluginTimeout": "two minutes"`), []string{`"two minutes"`}},
		{"lockFile relative", entry(`, "lockFile": "run/lock"`), []string{`"lockFile"`, `"run/lock" is not an absolute path`}},
		{"stateDir a number", entry(`, "stateDir": 1`), []string{`"stateDir"`, "1 is not an absolute path"}},
		{"logLevel", entry(`, "logLevel": "loud"`), []string{`"logLevel"`, `"loud"`, `"debug"`}},
		{"capabilities", entry(`, "capabilities": ["portMappings"]`), []string{`"capabilities"`, `["portMappings"]`}},
		{"runtimeConfig", entry(`, "runtimeConfig": []`), []string{`"runtimeConfig"`}},
		{"cniVersion", `{"name": "web", "cniVersion": 1, "delegates": [{"type": "bridge"}]}`, []string{`"cniVersion"`, "1 is not a string"}},
		{"chains without a table", entry(`, "chains": [{"name": "X"}]`), []string{`"chains"`}},
		{"chains with an option", entry(`, "chains": [{"table": "nat", "name": "-F"}]`), []string{`"chains"`, `"-F"`}},
		{"chains with an unknown key", entry(`, "chains": [{"table": "nat", "name": "X", "rule": ""}]`), []string{`"chains"`}},
		{"a long value", entry(`, "secret": "` + strings.Repeat("x", 500) + `"`), []string{"xxx..."}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse([]byte(tt.stdin), nil)
			var cniErr *types.Error
			if !errors.As(err, &cniErr) || cniErr.Code != types.ErrInvalidNetworkConfig {
				t.Fatalf("got %v, want a CNI error of code 7", err)
			}
			for _, want := range append(tt.want, "lockwrap: ") {
				if !strings.Contains(cniErr.Msg, want) {
					t.Errorf("%q does not say %q", cniErr.Msg, want)
				}
			}
			if len(cniErr.Msg) > 400 {
				t.Errorf("the message has %d bytes", len(cniErr.Msg))
			}
		})
	}
}

func TestParse_settings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.json")
	const host = `{"lockFile": "/h/lock", "stateDir": "/h/state", "lockTimeout": "7s", "pluginTimeout": "8s", "logLevel": "warn", "pluginDirs": ["/h/bin"]}`
	if err := os.WriteFile(file, []byte(host), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		env   []string
		stdin string
		want  Settings
	}{
		{"defaults", nil, entry(""), defaultSettings()},
		{"host", []string{"LOCKWRAP_CONFIG=" + file}, entry(""),
			Settings{LockFile: "/h/lock", StateDir: "/h/state", LockTimeout: 7 * time.Second, PluginTimeout: 8 * time.Second, LogLevel: slog.LevelWarn, PluginDirs: []string{"/h/bin"}}},
		{"the entry wins", []string{"LOCKWRAP_CONFIG=" + file}, entry(`, "lockFile": "/e/lock", "lockTimeout": "1m", "logLevel": "debug", "logFile": "/e/log"`),
			Settings{LockFile: "/e/lock", StateDir: "/h/state", LockTimeout: time.Minute, PluginTimeout: 8 * time.Second, LogLevel: slog.LevelDebug, LogFile: "/e/log", PluginDirs: []string{"/h/bin"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			conf, err := parse([]byte(tt.stdin), tt.env)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, conf.Settings); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParse_refusesHostConfig(t *testing.T) {
	for name, content := range map[string]string{
		"not JSON":    "lockFile = /x",
		"null":        "null",
		"unknown key": `{"delegates": []}`,
		"wrong type":  `{"lockTimeout": 1}`,
		"plugin dirs": `{"pluginDirs": "/opt/cni/bin"}`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.json")
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := parse([]byte(entry("")), []string{"LOCKWRAP_CONFIG=" + file})
			if err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("got %v, want an error that names %s", err, file)
			}
		})
	}
	if _, err := parse([]byte(entry("")), []string{"LOCKWRAP_CONFIG=/nowhere/config.json"}); err == nil {
		t.Error("a file that was named and is not there went unnoticed")
	}
}

// What runtimes and libraries add to an entry is not the user's mistake.
func TestParse_keysOfOthers(t *testing.T) {
	_, err := parse([]byte(entry(`, "prevResult": null, "runtimeConfig": null, "args": {"cni": {}}, "deviceID": "x",
		"pciBusID": "y", "cni.dev/valid-attachments": null, "cni.dev/whatever": 1`)), nil)
	if err != nil {
		t.Error(err)
	}
}

func TestCheckCapabilities(t *testing.T) {
	const delegates = `, "delegates": [{"type": "portmap", "capabilities": {"portMappings": true, "ips": false}}]}`
	tests := []struct {
		name, head string
		missing    string
	}{
		{"not hoisted", `{"name": "web"`, "portMappings"},
		{"another hoisted", `{"name": "web", "capabilities": {"ips": true}`, "portMappings"},
		{"declared false", `{"name": "web", "capabilities": {"portMappings": false}`, "portMappings"},
		{"hoisted", `{"name": "web", "capabilities": {"portMappings": true}`, ""},
		{"passed, so it was declared", `{"name": "web", "runtimeConfig": {"portMappings": []}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			conf, err := parse([]byte(tt.head+delegates), nil)
			if err != nil {
				t.Fatal(err)
			}
			err = conf.CheckCapabilities()
			switch {
			case tt.missing == "" && err != nil:
				t.Error(err)
			case tt.missing != "" && (err == nil || !strings.Contains(err.Error(), tt.missing) || !strings.Contains(err.Error(), "portmap")):
				t.Errorf("got %v, want an error that names portmap and %s", err, tt.missing)
			}
		})
	}
}

func TestConfig(t *testing.T) {
	const head = `{"type": "lockwrap", "name": "web", "cniVersion": "1.0.0", "delegates": [`
	tests := []struct {
		name, verb, stdin, want string
	}{
		{"name and version are the list's", "ADD", head + `{"type": "a", "name": "b", "cniVersion": "9", "n": 12345678901234567890}]}`,
			`{"type": "a", "name": "web", "cniVersion": "1.0.0", "n": 12345678901234567890}`},
		{"a share of the capability arguments", "DEL", head + `{"type": "a", "capabilities": {"x": true, "y": false}}], "runtimeConfig": {"x": 1, "y": 2, "z": 3}}`,
			`{"type": "a", "name": "web", "cniVersion": "1.0.0", "capabilities": {"x": true, "y": false}, "runtimeConfig": {"x": 1}}`},
		{"its own runtimeConfig stays without a share", "ADD", head + `{"type": "a", "runtimeConfig": {"own": 1}}], "runtimeConfig": {"z": 3}}`,
			`{"type": "a", "name": "web", "cniVersion": "1.0.0", "runtimeConfig": {"own": 1}}`},
		{"and is replaced by one", "ADD", head + `{"type": "a", "capabilities": {"z": true}, "runtimeConfig": {"own": 1}}], "runtimeConfig": {"z": 3}}`,
			`{"type": "a", "name": "web", "cniVersion": "1.0.0", "capabilities": {"z": true}, "runtimeConfig": {"z": 3}}`},
		{"no share for GC", "GC", head + `{"type": "a", "capabilities": {"z": true}}], "runtimeConfig": {"z": 3}, "cni.dev/attachments": null}`,
			`{"type": "a", "name": "web", "cniVersion": "1.0.0", "capabilities": {"z": true}, "cni.dev/attachments": null}`},
		{"what Multus adds", "ADD", head + `{"type": "a", "args": {"cni": {"k": 1, "l": 1}, "own": 1}}], "args": {"cni": {"k": 2, "m": 2}, "in": 2}, "deviceID": "d"}`,
			`{"type": "a", "name": "web", "cniVersion": "1.0.0", "args": {"cni": {"k": 2, "l": 1, "m": 2}, "own": 1, "in": 2}, "deviceID": "d"}`},
		{"args over nothing", "ADD", head + `{"type": "a", "args": "own"}], "args": {"cni": {}}}`,
			`{"type": "a", "name": "web", "cniVersion": "1.0.0", "args": {"cni": {}}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			conf, err := parse([]byte(tt.stdin), nil)
			if err != nil {
				t.Fatal(err)
			}
			got := mustMarshal(conf.config(conf.Delegates[0], tt.verb))
			if diff := cmp.Diff(values(t, tt.want), values(t, string(got))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// values decodes JSON without losing digits.
func values(t *testing.T, s string) any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(s))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}
