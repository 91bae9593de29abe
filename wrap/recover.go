// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// loadRecord finds what is known of the call's attachment. A record that can't
// be used is as good as none.
func (c *call) loadRecord() (old *record) {
	old, others, err := loadRecord(c.conf.StateDir, c.newRecord(), func(r *record) bool {
		// The entry before us in the list has just been added.
		return c.verb == "ADD" && r.State == stateAdded && sameJSON(r.lastResult(), c.conf.prevResult)
	})
	if err != nil {
		c.log.Warn("ignoring the attachment's record", "err", err)
	}
	c.others = others
	return old
}

// recoverAttachment makes an ADD start from nothing: what an ADD or a DEL that
// died, or an attachment of a namespace that is gone, has left is DELed. And it
// finds out whether somebody's live attachment is in the way.
func (c *call) recoverAttachment(ctx context.Context) *types.Error {
	old := c.loadRecord()
	present, err := hasInterface(c.args.Netns, c.args.IfName)
	var left *record
	switch {
	case old == nil, old.State == stateUndone:
		// If an interface is there, it is none of ours; unless the plugins
		// before us in the list have just made it.
		c.live = err == nil && present && !c.madeBefore()
	case c.continues(old):
		c.rec = old
		c.rec.Types = append(c.rec.Types, c.conf.Delegates[0].Type)
		c.rec.enter(stateAdding)
		return nil
	case old.State == stateAdded && !c.isStale(old, present, err):
		c.live, left = true, old.Leftover
	default:
		c.log.Info("removing what an earlier call left", "state", old.State, "since", old.Since, "plugin", old.running())
		left = c.removeLeftovers(ctx, old)
		if ctx.Err() != nil {
			return ownError(errOther, "the next ADD or DEL of this attachment goes on with it",
				"ADD given up while removing what an earlier call left: %w", context.Cause(ctx))
		}
	}
	c.rec = c.newRecord()
	c.rec.Leftover = left
	return nil
}

// isStale reports whether an attachment that was added belongs to another
// namespace than the one at hand: after a reboot, or when the runtime has made
// it anew without a DEL (nomad#15763). When in doubt, it is live.
func (c *call) isStale(old *record, present bool, unknown error) bool {
	now := identifyNetNS(c.args.Netns)
	replaced := now != (netnsID{}) && old.NetNSID != (netnsID{}) && !now.maybe(old.NetNSID)
	switch {
	case c.madeBefore():
		// The interface is the work of a plugin before us. Another one has
		// another result, if only another hardware address.
		before := old.PrevResult
		if c.conf.standIn {
			before = old.resultBefore(c.conf.Delegates[0].Type)
		}
		return replaced || !sameJSON(c.conf.prevResult, before)
	case unknown != nil:
		return replaced
	}
	return !present
}

// madeBefore reports whether the interface may be the work of a plugin before us
// in the list: the result that we got names it. One of a loopback plugin in front
// of bridge does not; one of before 0.3.0 names no interface at all.
func (c *call) madeBefore() bool {
	if c.conf.prevResult == nil {
		return false
	}
	var result struct {
		Interfaces []struct{ Name, Sandbox string }
	}
	if err := json.Unmarshal(c.conf.prevResult, &result); err != nil || result.Interfaces == nil {
		return true
	}
	for _, i := range result.Interfaces {
		if i.Name == c.args.IfName && i.Sandbox != "" {
			return true
		}
	}
	return false
}

// removeLeftovers DELs what is on record and returns what could not be removed.
// That fails no call: the delegates will say what is in their way.
func (c *call) removeLeftovers(ctx context.Context, old *record) (left *record) {
	if old == nil {
		return nil
	}
	left = c.removeLeftovers(ctx, old.Leftover)
	if old.Group > 0 {
		waitForStragglers(heldMark(old.PID, c.conf.LockFile), inGroup(old.Group))
	}
	netns := old.NetNS
	if !identifyNetNS(netns).maybe(old.NetNSID) {
		// It is gone, whatever is at that path now. The specification allows
		// a DEL without one.
		netns = ""
	}
	env := c.env.
		with("CNI_CONTAINERID", old.Container).
		with("CNI_IFNAME", old.IfName).
		with("CNI_ARGS", old.Args).
		with("CNI_NETNS", netns)
	if failed := c.deleteRecorded(ctx, old, env); len(failed) > 0 {
		old.Leftover, old.Others = left, nil
		return old
	}
	return left
}

// dropRecords is the record's part of GC: those of this network that are not
// among the valid attachments go. The leftovers of an ADD that died go first,
// since no runtime knows of them; an attachment that a runtime knows of it DELs
// before it sends GC (libcni/api.go, GCNetworkList).
func (c *call) dropRecords(ctx context.Context) {
	valid, known := c.validAttachments()
	if !known {
		return
	}
	if err := trustRecords(c.conf.StateDir); err != nil {
		c.log.Warn("ignoring the attachments' records", "err", err)
		return
	}
	entries, _ := os.ReadDir(filepath.Join(c.conf.StateDir, "attachments"))
	for _, e := range entries {
		path := filepath.Join(c.conf.StateDir, "attachments", e.Name())
		if strings.HasPrefix(e.Name(), c.conf.Name+":") && strings.HasSuffix(e.Name(), unfinished) {
			_ = os.Remove(path) // whoever wrote it was killed
		}
		if filepath.Ext(path) != ".json" {
			continue
		}
		head, err := readRecord(path)
		if err != nil {
			c.log.Warn("leaving a record that cannot be read", "err", err)
			continue
		}
		if head == nil || head.Network != c.conf.Name || valid[attachment{head.Container, head.IfName}] {
			continue
		}
		var left []*record
		for _, r := range append([]*record{head}, head.Others...) {
			if r.State == stateAdding {
				left = append(left, c.removeLeftovers(ctx, r))
			}
		}
		if slices.ContainsFunc(left, func(r *record) bool { return r != nil }) {
			continue // for the next GC
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.log.Warn("cannot remove a record", "err", err)
		}
	}
}

type attachment struct{ ContainerID, IfName string }

// validAttachments is the runtime's word in a GC; known is false if it gave
// none. libcni writes both spellings of the key (cni#1101).
func (c *call) validAttachments() (valid map[attachment]bool, known bool) {
	valid = map[attachment]bool{}
	for _, key := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
		raw, ok := c.conf.passed[key]
		if !ok {
			continue
		}
		var list []attachment // keys containerID and ifname, in any case
		if err := json.Unmarshal(raw, &list); err != nil {
			c.log.Warn("cannot read the valid attachments; keeping all records", "key", key, "err", err)
			return nil, false
		}
		known = true
		for _, a := range list {
			valid[a] = true
		}
	}
	return valid, known
}

func sameJSON(a, b json.RawMessage) bool {
	var x, y bytes.Buffer
	if json.Compact(&x, a) != nil || json.Compact(&y, b) != nil {
		return len(a) == len(b)
	}
	return bytes.Equal(x.Bytes(), y.Bytes())
}

func (c *call) newRecord() *record {
	r := &record{
		Network:    c.conf.Name,
		Container:  c.args.ContainerID,
		IfName:     c.args.IfName,
		NetNS:      c.args.Netns,
		NetNSID:    identifyNetNS(c.args.Netns),
		Args:       c.args.Args,
		CNIVersion: c.conf.CNIVersion,
		PrevResult: c.conf.prevResult,
		StandIn:    c.conf.standIn,
		Others:     c.others,
	}
	for _, d := range c.conf.Delegates {
		r.Types = append(r.Types, d.Type)
	}
	r.enter(stateAdding)
	return r
}

// saveRecord writes the call's record. Where it can't, the call goes on: only a
// later one will have less to go by.
func (c *call) saveRecord() {
	if c.live {
		return
	}
	err := c.rec.save(c.conf.StateDir)
	if err == nil {
		c.saved = true
		return
	}
	c.log.Warn("cannot write the attachment's record; a later call may have to do without it", "err", err)
	// An ADD has no record rather than one of an earlier call, which says that
	// nothing is there to DEL, or one by which what it has made is a leftover.
	// Others may have their part in the file.
	alone := c.firstLink == 0 && len(c.rec.Others) == 0 && c.rec.Leftover == nil
	if c.verb == "ADD" && alone && (!c.saved || c.rec.State == stateAdded) {
		_ = os.Remove(c.rec.path(c.conf.StateDir))
	}
}

func (c *call) removeRecord(r *record) {
	if err := r.remove(c.conf.StateDir); err != nil {
		c.log.Warn("cannot remove the attachment's record", "err", err)
	}
}
