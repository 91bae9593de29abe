// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
)

// recordVersion is the format of the records. A record of another version is
// ignored like a damaged one.
const recordVersion = 1

// The states of an attachment.
const (
	stateAdding   = "adding"   // an ADD runs, died, or could not be undone
	stateAdded    = "added"    // live
	stateDeleting = "deleting" // a DEL runs, died or failed
	stateUndone   = "undone"   // an ADD failed and left nothing
)

// record is what lockwrap knows of one attachment: enough to DEL it when the
// runtime can't say what it was, or when nobody asks. It only ever helps; no
// verb depends on one.
type record struct {
	Version    int       `json:"version"`
	State      string    `json:"state"`
	Network    string    `json:"network"`
	Container  string    `json:"container"`
	IfName     string    `json:"ifname"`
	Types      []string  `json:"types"` // of all delegates of the entry
	NetNS      string    `json:"netns"`
	NetNSID    netnsID   `json:"netnsID"`
	Args       string    `json:"args,omitempty"` // CNI_ARGS
	CNIVersion string    `json:"cniVersion"`
	PID        int       `json:"pid"`     // of the lockwrap that wrote this
	Group      int       `json:"group"`   // process group of the delegate that ran last
	Running    int       `json:"running"` // which delegate that was
	Since      time.Time `json:"since"`   // when the state was entered

	PrevResult json.RawMessage `json:"prevResult,omitempty"` // from the runtime
	Delegates  []recorded      `json:"delegates,omitempty"`
}

// recorded is one delegate's part: what its ADD got, but for prevResult, which
// is the answer of the one before, and what it answered.
type recorded struct {
	Type   string                     `json:"type"`
	Config map[string]json.RawMessage `json:"config"`
	Result json.RawMessage            `json:"result,omitempty"`
}

// recordPath names a record's file. ":" can't be in a network name, a container
// id or an interface name, so two attachments never share a file; and neither do
// two lockwrap entries of one list.
func recordPath(stateDir, network, container, ifName string, delegates []string) string {
	name := strings.Join([]string{network, container, ifName, strings.Join(delegates, "+")}, ":")
	if len(name) > 200 { // a file name has at most 255 bytes
		name = fmt.Sprintf("%x", sha256.Sum256([]byte(name)))
	}
	return filepath.Join(stateDir, "attachments", name+".json")
}

func (r *record) path(stateDir string) string {
	return recordPath(stateDir, r.Network, r.Container, r.IfName, r.Types)
}

// readRecord returns nil, nil if there is no record, and an error for one that
// is of no use.
func readRecord(path string) (*record, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := parseRecord(data)
	if err != nil {
		return nil, fmt.Errorf("cannot use %q: %w", path, err)
	}
	return r, nil
}

func parseRecord(data []byte) (*record, error) {
	r := &record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	if r.Version != recordVersion {
		return nil, fmt.Errorf("it has format %d, this lockwrap writes and reads format %d", r.Version, recordVersion)
	}
	switch r.State {
	case stateAdding, stateAdded, stateDeleting, stateUndone:
		return r, nil
	}
	return nil, fmt.Errorf("it has the unknown state %q", r.State)
}

// loadRecord reads the record of an attachment, which want names.
func loadRecord(stateDir string, want *record) (*record, error) {
	path := want.path(stateDir)
	r, err := readRecord(path)
	if err == nil && r != nil && r.path(stateDir) != path {
		return nil, fmt.Errorf("%q is the record of another attachment (network %q, container %q, interface %q, delegates %q)",
			path, r.Network, r.Container, r.IfName, r.Types)
	}
	return r, err
}

// save writes the record so that a reader sees the old one or the new one. It
// is not flushed to disk: after a power failure /run is empty anyhow.
func (r *record) save(stateDir string) error {
	r.Version, r.PID = recordVersion, os.Getpid()
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := r.path(stateDir)
	// The configuration of a delegate may hold secrets.
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// The lock is held, so nobody else writes a file of this name.
	temp := path + ".tmp"
	if err := os.WriteFile(temp, append(data, '\n'), 0o600); err != nil {
		_ = os.Remove(temp)
		return err
	}
	return os.Rename(temp, path)
}

func (r *record) remove(stateDir string) error {
	err := os.Remove(r.path(stateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (r *record) enter(state string) {
	r.State, r.Since = state, time.Now()
}

// forget drops what is not needed to know that nothing is left.
func (r *record) forget() {
	r.PrevResult, r.Delegates, r.Group, r.Running = nil, nil, 0, 0
}

// lastResult is the last good result of the chain.
func (r *record) lastResult() json.RawMessage {
	last := r.PrevResult
	for _, d := range r.Delegates {
		if d.Result != nil {
			last = d.Result
		}
	}
	return last
}

// prevResultForDel is the last good result as libcni would pass it to a DEL:
// converted to the list's version, and not at all before 0.4.0
// (libcni/api.go, DelNetworkList).
func (r *record) prevResultForDel(cniVersion string) json.RawMessage {
	if supported, err := version.GreaterThanOrEqualTo(cniVersion, "0.4.0"); err != nil || !supported {
		return nil
	}
	last := r.lastResult()
	if last == nil {
		return nil
	}
	result, err := create.CreateFromBytes(last)
	if err != nil {
		return nil
	}
	converted, err := result.GetAsVersion(cniVersion)
	if err != nil {
		return nil
	}
	data, err := json.Marshal(converted)
	if err != nil {
		return nil
	}
	return data
}

// runtimeConfig is what the i-th delegate got as capability arguments at ADD,
// if the list still has the same plugin there.
func (r *record) runtimeConfig(i int, pluginType string) json.RawMessage {
	if i >= len(r.Delegates) || r.Delegates[i].Type != pluginType {
		return nil
	}
	return r.Delegates[i].Config["runtimeConfig"]
}

// netnsStillThere reports whether the namespace of the attachment is where it
// was, beyond doubt.
func (r *record) netnsStillThere() bool {
	return r.NetNSID != netnsID{} && identifyNetNS(r.NetNS) == r.NetNSID
}
