// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
)

// recordVersion is the format of the records. A record of another version is
// ignored like a damaged one.
const recordVersion = 1

// unfinished is at the end of a record's name while it is written.
const unfinished = ".tmp"

var errFormat = errors.New("it has format")

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
	Types      []string  `json:"types"` // of all delegates of the entry; of a stand-in's record, so far
	StandIn    bool      `json:"standIn,omitempty"`
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

	// Leftover is what an earlier ADD of the same attachment left and could
	// not be removed so far.
	Leftover *record `json:"leftover,omitempty"`
	// Others are the records of the same attachment for further lockwrap
	// entries of the list.
	Others []*record `json:"others,omitempty"`
}

// recorded is one delegate's part: what its ADD got, but for prevResult, which
// is the answer of the one before, and what it answered.
type recorded struct {
	Type   string                     `json:"type"`
	Config map[string]json.RawMessage `json:"config"`
	Result json.RawMessage            `json:"result,omitempty"`
}

// recordPath names a record's file. ":" can't be in a network name, a container
// id or an interface name, so two attachments never share a file.
func recordPath(stateDir, network, container, ifName string) string {
	name := network + ":" + container + ":" + ifName
	if len(name) > 200 { // a file name has at most 255 bytes
		// The record says whose it is, so a collision is only a record less.
		// Package crypto would add 150 kB to the binary.
		h := fnv.New128a()
		_, _ = h.Write([]byte(name))
		name = fmt.Sprintf("%x", h.Sum(nil))
	}
	return filepath.Join(stateDir, "attachments", name+".json")
}

func (r *record) path(stateDir string) string {
	return recordPath(stateDir, r.Network, r.Container, r.IfName)
}

// readRecord returns nil, nil if there is no record, and an error for one that
// is of no use.
func readRecord(path string) (*record, error) {
	data, err := readFile(path)
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
	all := append([]*record{r}, r.Others...)
	for i := 0; i < len(all); i++ {
		each := all[i]
		if each != nil && each.Leftover != nil {
			all = append(all, each.Leftover)
		}
		switch {
		case each == nil:
			return nil, errors.New("a part of it is empty")
		case each.Network != r.Network || each.Container != r.Container || each.IfName != r.IfName:
			return nil, errors.New("a part of it is of another attachment")
		case each.Version != recordVersion:
			return nil, fmt.Errorf("%w %d, this lockwrap writes and reads format %d", errFormat, each.Version, recordVersion)
		case !slices.Contains([]string{stateAdding, stateAdded, stateDeleting, stateUndone}, each.State):
			return nil, fmt.Errorf("it has the unknown state %q", each.State)
		}
	}
	return r, nil
}

// loadRecord reads the record of the attachment that want names: want's own, nil
// if there is none, and those of the other lockwrap entries of the list. An
// entry is known by its delegates; after the list has been edited, by one that
// it has kept, unless that record is a sibling's.
func loadRecord(stateDir string, want *record, isSibling func(*record) bool) (own *record, others []*record, err error) {
	path := want.path(stateDir)
	if err := trustRecords(stateDir); err != nil {
		return nil, nil, err
	}
	_ = os.Remove(path + unfinished) // of a lockwrap that was killed; the lock is held
	head, err := readRecord(path)
	if err != nil || head == nil {
		return nil, nil, err
	}
	if head.path(stateDir) != path {
		return nil, nil, fmt.Errorf("%q is the record of another attachment (network %q, container %q, interface %q)",
			path, head.Network, head.Container, head.IfName)
	}
	all := append([]*record{head}, head.Others...)
	head.Others = nil
	if want.StandIn {
		if own, others = standInRecord(all, want.Types[0]); own != nil {
			own.Others = others
		}
		return own, others, nil
	}
	i := slices.IndexFunc(all, func(r *record) bool { return slices.Equal(r.Types, want.Types) })
	if i < 0 {
		i = slices.IndexFunc(all, func(r *record) bool {
			return !isSibling(r) && slices.ContainsFunc(r.Types, func(t string) bool { return slices.Contains(want.Types, t) })
		})
	}
	if i < 0 {
		return nil, all, nil
	}
	own = all[i]
	others = slices.Delete(all, i, i+1)
	own.Others = others
	return own, others, nil
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
	if err := trustRecords(stateDir); err != nil {
		return err
	}
	// The lock is held, so nobody else writes a file of this name.
	temp := path + unfinished
	if err := os.WriteFile(temp, append(data, '\n'), 0o600); err != nil {
		_ = os.Remove(temp)
		return err
	}
	faultPoint("record written")
	return os.Rename(temp, path)
}

// remove removes the record; those of other entries stay.
func (r *record) remove(stateDir string) error {
	if len(r.Others) > 0 {
		head := *r.Others[0]
		head.Others = r.Others[1:]
		return head.save(stateDir)
	}
	err := os.Remove(r.path(stateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (r *record) enter(state string) {
	r.State, r.Since = state, time.Now()
}

// running is the type of the delegate that ran last.
func (r *record) running() string {
	if r.Running < 0 || r.Running >= len(r.Types) {
		return ""
	}
	return r.Types[r.Running]
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
	converted, err := convertResult(last, cniVersion)
	if err != nil {
		return nil
	}
	return converted
}

// convertResult's error is all that is known of a null among the interfaces or
// addresses, at which package types panics.
func convertResult(raw json.RawMessage, cniVersion string) (converted json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cannot convert the result: %v", p)
		}
	}()
	result, err := create.CreateFromBytes(raw)
	if err != nil {
		return nil, err
	}
	other, err := result.GetAsVersion(cniVersion)
	if err != nil {
		return nil, err
	}
	return json.Marshal(other)
}

// runtimeConfig is what the i-th delegate got as capability arguments at ADD,
// if the list still has the same plugin there.
func (r *record) runtimeConfig(i int, pluginType string) json.RawMessage {
	if i < 0 || i >= len(r.Delegates) || r.Delegates[i].Type != pluginType {
		return nil
	}
	return r.Delegates[i].Config["runtimeConfig"]
}

// netnsStillThere reports whether the namespace of the attachment is where it
// was, beyond doubt.
func (r *record) netnsStillThere() bool {
	return r.NetNSID != netnsID{} && identifyNetNS(r.NetNS) == r.NetNSID
}
