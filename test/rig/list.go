// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
)

// Plugin is an entry of a network configuration list.
type Plugin map[string]any

// With returns a copy of the entry with one more key.
func (p Plugin) With(key string, value any) Plugin {
	p = maps.Clone(p)
	p[key] = value
	return p
}

func (p Plugin) reader() io.Reader {
	data, err := json.Marshal(p)
	if err != nil {
		panic(err) // made of what was read as JSON
	}
	return bytes.NewReader(data)
}

// Bridge is the first plugin of the usual list, with one address from each subnet.
func (h *Host) Bridge(subnets ...string) Plugin {
	var ranges, routes []any
	for _, subnet := range subnets {
		ranges = append(ranges, []any{map[string]any{"subnet": subnet}})
	}
	routes = append(routes, map[string]any{"dst": "0.0.0.0/0"})
	return Plugin{
		"type": "bridge", "bridge": "lw0", "isGateway": true, "forceAddress": true,
		// An iptables that fails once must not make the plugin choose another backend.
		"ipMasq": true, "ipMasqBackend": "iptables",
		"ipam": map[string]any{
			"type": "host-local", "ranges": ranges, "routes": routes, "dataDir": filepath.Join(h.Dir, "ipam"),
		},
	}
}

// Subnets for Bridge.
const (
	Net4 = "10.99.0.0/20"
	Net6 = "fd99::/64"
)

// Firewall and Portmap are the other two.
func Firewall() Plugin { return Plugin{"type": "firewall", "backend": "iptables"} }
func Portmap() Plugin {
	return Plugin{
		"type": "portmap", "backend": "iptables", "snat": true,
		"capabilities": map[string]any{"portMappings": true},
	}
}

// Usual is bridge, firewall, portmap with IPv4, Dual with IPv4 and IPv6.
func (h *Host) Usual() []Plugin { return []Plugin{h.Bridge(Net4), Firewall(), Portmap()} }
func (h *Host) Dual() []Plugin  { return []Plugin{h.Bridge(Net4, Net6), Firewall(), Portmap()} }

// ListFile is the host's one network configuration list.
func (h *Host) ListFile() string { return filepath.Join(h.Dir, "net.d", h.Name+".conflist") }

// Bare makes these plugins the host's list.
func (h *Host) Bare(plugins ...Plugin) error {
	return h.WriteList(h.ListFile(), h.Name, plugins...)
}

// WriteList writes a list of another network.
func (h *Host) WriteList(file, name string, plugins ...Plugin) error {
	return writeJSON(file, Plugin{"cniVersion": h.Version, "name": name, "plugins": plugins})
}

// Wrapped makes these plugins the host's list, wrapped with the command that a user would take.
func (h *Host) Wrapped(plugins ...Plugin) error {
	if err := h.Bare(plugins...); err != nil {
		return err
	}
	if _, err := os.Stat(Bin("lockwrap")); err != nil {
		return fmt.Errorf("%w: %w", errPlugins, err)
	}
	if out, err := exec.Command(Bin("lockwrap"), "wrap", h.ListFile()).CombinedOutput(); err != nil {
		return fmt.Errorf("lockwrap wrap: %w: %s", err, out)
	}
	return h.Edit(func(entry Plugin) {
		entry["lockFile"] = filepath.Join(h.Dir, "lockwrap", "lock")
		entry["stateDir"] = h.StateDir()
	})
}

// StateDir is where lockwrap keeps its records on this host.
func (h *Host) StateDir() string { return filepath.Join(h.Dir, "lockwrap") }

// Edit changes the first entry of the host's list.
func (h *Host) Edit(change func(entry Plugin)) error {
	list, err := h.list()
	if err != nil {
		return err
	}
	change(list.Plugins[0])
	return writeJSON(h.ListFile(), list)
}

type list struct {
	CNIVersion string   `json:"cniVersion"`
	Name       string   `json:"name"`
	Plugins    []Plugin `json:"plugins"`
}

func (h *Host) list() (*list, error) {
	data, err := os.ReadFile(h.ListFile())
	if err != nil {
		return nil, err
	}
	var l list
	if err := json.Unmarshal(data, &l); err != nil {
		return nil, err
	}
	return &l, nil
}

func writeJSON(file string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// containerID is cnitool's.
func containerID(netns string) string {
	sum := sha512.Sum512([]byte(netns))
	return fmt.Sprintf("cnitool-%x", sum[:10])
}

// StandIns puts lockwrap in the place of plugins with the command that a user would take.
func (h *Host) StandIns(plugins ...string) error {
	for _, plugin := range plugins {
		real, err := h.plugin(plugin)
		if err != nil {
			return err
		}
		run := h.Exec(Bin("lockwrap"), "stand-in", "--dir", filepath.Join(h.Dir, "stand-ins"), "--bin-dir", filepath.Dir(real), plugin)
		if !run.OK() {
			return fmt.Errorf("lockwrap stand-in: %v", run)
		}
	}
	return nil
}
