// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// cmdAdd: parse -> locate the delegates -> lock -> recover -> pre-create chains
// -> the delegates' ADDs in order -> print the result -> record -> unlock.
// Main has parsed. The result is printed before the record says that the
// attachment is live: killed in between, lockwrap has failed for the runtime,
// and the next ADD must find leftovers and not somebody's attachment.
func (c *call) cmdAdd(ctx context.Context) error {
	if err := c.conf.CheckCapabilities(); err != nil {
		return err
	}
	if err := c.conf.locate(c.args.Path); err != nil {
		return err
	}
	chains := c.planChains()
	c.reached("located")
	unlock, err := c.takeLock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.recoverAttachment(ctx); err != nil {
		return err
	}
	c.reached("recovered")
	chains.begin()
	failure := c.addDelegates(ctx, chains)
	chains.finish()
	if failure == nil {
		failure = c.printResult()
		c.reached("printed")
	}
	if failure != nil {
		return c.undo(ctx, failure)
	}
	if c.live && c.conf.standIn {
		return nil // a second ADD that the plugin takes for nothing special; the record has all links
	}
	c.live = false
	c.rec.enter(stateAdded)
	c.saveRecord()
	c.reached("recorded")
	return nil
}

// cmdDel sends DEL to the delegates in reverse order and stops at the first one
// that fails, as libcni does: while a later plugin's rules are there, the
// address must not go back to its pool.
func (c *call) cmdDel(ctx context.Context) error {
	unlock, err := c.takeLock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	old := c.loadRecord()
	if c.isUndone(old) {
		c.log.Info("nothing to do: the ADD of this attachment failed and has been undone")
		if !c.conf.standIn || len(old.Types) == 0 || old.Types[0] == c.conf.Delegates[0].Type {
			c.removeRecord(old) // else the DELs of the links before this one come next
		}
		return nil
	}
	if err := c.delDelegates(ctx, old); err != nil {
		return err
	}
	if c.conf.standIn && c.rec.dropLink(c.conf.Delegates[0].Type) {
		c.saveRecord() // for the links before it, whose DELs come next
		return nil
	}
	if left := c.removeLeftovers(ctx, c.rec.Leftover); left != nil {
		// The attachment is gone; this is for its next ADD, DEL or GC.
		c.rec.forget()
		c.rec.Leftover = left
		c.rec.enter(stateAdding)
		c.saveRecord()
		return nil
	}
	c.removeRecord(c.rec)
	c.reached("record removed")
	return nil
}

// cmdCheck takes the lock because the firewall plugin's CHECK creates chains. It
// runs without it rather than fail: Nomad destroys a healthy allocation whose
// CHECK fails.
func (c *call) cmdCheck(ctx context.Context) error {
	unlock, err := c.takeLock(ctx)
	switch {
	case err == nil:
		defer unlock()
	case err.Code == errOther: // nobody waits for the answer any more
		return err
	default:
		c.log.Warn("checking without the lock", "err", err)
	}
	for _, d := range c.conf.Delegates {
		config := withPrevResult(c.conf.config(d, "CHECK"), c.conf.prevResult)
		if err := c.exec(ctx, d, config, c.env); err != nil {
			return delegateError("", err)
		}
	}
	return nil
}

// cmdGC sends GC to all delegates, whatever some of them say, and reports all
// that failed in one error with the code of the first.
func (c *call) cmdGC(ctx context.Context) error {
	unlock, err := c.takeLock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	c.dropRecords(ctx)
	var first *types.Error
	var failed []string
	for _, d := range c.conf.Delegates {
		if err := c.exec(ctx, d, c.conf.config(d, "GC"), c.env); err != nil {
			if c.conf.standIn {
				return delegateError("", err)
			}
			failure := delegateError(fmt.Sprintf("failed to GC plugin %s: ", d.Type), err)
			failed = append(failed, failure.Error())
			if first == nil {
				first = failure
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	if first == nil {
		return nil
	}
	return types.NewError(first.Code, strings.Join(failed, "\n"), "")
}

// cmdStatus asks the delegates in order and passes on the first error. It never
// waits for the lock: a STATUS that waits turns a node NotReady and blocks
// Nomad's teardown (containerd#4666).
func (c *call) cmdStatus(ctx context.Context) error {
	for _, d := range c.conf.Delegates {
		if err := c.exec(ctx, d, c.conf.config(d, "STATUS"), c.env); err != nil {
			return delegateError("", err)
		}
	}
	return nil
}

// addDelegates runs the delegates' ADDs, each with the result of the one before
// as libcni parsed it. The error is the failed delegate's in libcni's words.
func (c *call) addDelegates(ctx context.Context, chains *chainKeeper) *types.Error {
	prevResult := c.conf.prevResult
	c.firstLink = len(c.rec.Delegates)
	for i, d := range c.conf.Delegates {
		chains.await(i, prevResult)
		c.spent("chains")
		if err := context.Cause(ctx); err != nil {
			return ownError(errOther, "", "ADD given up before plugin %q: %w", d.Type, err)
		}
		config := c.conf.config(d, "ADD")
		link := len(c.rec.Delegates)
		c.rec.Running = link
		c.rec.Delegates = append(c.rec.Delegates, recorded{Type: d.Type, Config: config})
		printed, result, started, err := c.execAdd(ctx, d, withPrevResult(config, prevResult))
		if !started {
			c.rec.Delegates = c.rec.Delegates[:link] // it has done nothing to undo
		}
		if err != nil {
			return delegateError(c.prefix(d, "add"), err)
		}
		prevResult = mustMarshal(result)
		c.rec.Delegates[link].Result = prevResult
		c.result = resultToPrint(printed, result)
	}
	return nil
}

// printResult hands the result to the runtime. If that can't be done, nobody
// hears of the attachment, and nobody would ever DEL it.
func (c *call) printResult() *types.Error {
	if err := c.callerGone(); err != nil {
		return err
	}
	written, stdout := make(chan error, 1), os.Stdout
	go func() {
		_, err := stdout.Write(c.result)
		written <- err
	}()
	select {
	case err := <-written:
		if err != nil {
			return ownError(types.ErrIOFailure, "", "cannot print the result: %w", err)
		}
		gone := c.callerGone()
		if gone != nil {
			os.Stdout = nil // has its one document
		}
		return gone
	case <-time.After(c.conf.PluginTimeout):
		// A result fits into a pipe, so this is a runtime that has stopped and
		// a result of more than 64 KiB.
		os.Stdout = nil // has the beginning of one document
		return ownError(types.ErrIOFailure, "", "cannot print the result: nobody reads it")
	}
}

// callerGone is an error if the runtime has died. It waits for our end, so it
// can't have ended in peace.
func (c *call) callerGone() *types.Error {
	if errors.Is(context.Cause(c.caller), errCallerGone) {
		return ownError(errOther, "", "ADD was in vain: %w", errCallerGone)
	}
	return nil
}

// resultToPrint is the last delegate's result as it is, unconverted: converting
// can fail where libcni would not. Only a result without a version, which libcni
// takes for the list's, is printed anew with it.
func resultToPrint(printed []byte, result types.Result) []byte {
	var own struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal(printed, &own) == nil && own.CNIVersion != "" {
		return append(bytes.TrimSpace(printed), '\n')
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(printed, &keys); err != nil || keys == nil {
		keys = map[string]json.RawMessage{}
	}
	keys["cniVersion"] = quote(result.Version())
	return append(mustMarshal(keys), '\n')
}

// delDelegates runs the delegates' DELs. What the runtime has not, it takes
// from the record: firewall and portmap remove nothing without their prevResult
// and runtimeConfig, and report success.
func (c *call) delDelegates(ctx context.Context, old *record) error {
	prevResult, env := c.conf.prevResult, c.env
	configs := make([]map[string]json.RawMessage, len(c.conf.Delegates))
	for i, d := range c.conf.Delegates {
		configs[i] = c.conf.config(d, "DEL")
	}
	if old != nil {
		if prevResult == nil {
			prevResult = old.prevResultForDel(c.conf.CNIVersion)
		}
		for i, d := range c.conf.Delegates {
			link := i
			if c.conf.standIn {
				link = old.linkOf(d.Type)
			}
			if args := old.runtimeConfig(link, d.Type); args != nil && len(c.conf.runtimeConfig) == 0 {
				configs[i]["runtimeConfig"] = args
			}
		}
		switch {
		case c.args.Netns == "" && old.netnsStillThere():
			// bridge finds its masquerade rules only through the link in the
			// namespace (plugins#810).
			env = env.with("CNI_NETNS", old.NetNS)
		case old.NetNSID != netnsID{} && isNoNetNS(c.args.Netns):
			// The namespace is gone, and the file that it was mounted on is
			// not. Bridge fails there before it frees the address.
			env = env.with("CNI_NETNS", "")
		}
		c.rec = old
	} else {
		c.rec = c.newRecord()
		for i, d := range c.conf.Delegates {
			c.rec.Delegates = append(c.rec.Delegates, recorded{Type: d.Type, Config: configs[i]})
		}
	}
	c.rec.enter(stateDeleting)
	for i := len(c.conf.Delegates) - 1; i >= 0; i-- {
		d := c.conf.Delegates[i]
		c.rec.Running = i
		if c.conf.standIn {
			c.rec.Running = c.rec.linkOf(d.Type)
		}
		if err := c.delDelegate(ctx, d, withPrevResult(configs[i], prevResult), env); err != nil {
			return delegateError(c.prefix(d, "delete"), err)
		}
	}
	return nil
}

// prefix is what libcni puts before the message of a plugin that failed. The
// runtime's own libcni does it for a stand-in.
func (c *call) prefix(d *delegate, verb string) string {
	if c.conf.standIn {
		return ""
	}
	return fmt.Sprintf("plugin %s failed (%s): ", d, verb)
}

// delDelegate tries one DEL up to three times: what makes one fail, such as a
// busy xtables lock, is often over at once, and Nomad never tries again. A
// bridge that failed may have removed the interface already, so each try looks
// for it anew.
func (c *call) delDelegate(ctx context.Context, d *delegate, config map[string]json.RawMessage, env environment) error {
	if _, err := d.path(c.args.Path); err != nil {
		return err
	}
	const tries = 3
	start := time.Now()
	for try := 1; ; try++ {
		env, done := c.withDecoy(c.rec, d.Type, config, env)
		err := c.exec(ctx, d, config, env)
		done()
		if err != nil && config["prevResult"] == nil && !c.rec.answered(d.Type) && strings.Contains(err.Error(), "missing prevResult") {
			// Firewall v0.8.2 is one (plugins#390). Nobody has any for it: the
			// ADD never got that far, or it is forgotten. To stop here would
			// keep the address for ever.
			c.log.Warn("going on without the plugin, which deletes nothing without prevResult", "plugin", d.Type, "err", err)
			return nil
		}
		if err == nil || try == tries || ctx.Err() != nil || time.Since(start) >= c.conf.PluginTimeout {
			return err
		}
		c.log.Warn("DEL failed, trying again", "plugin", d.Type, "try", try, "err", err)
		time.Sleep(time.Duration(try) * 100 * time.Millisecond)
	}
}

// isUndone reports whether an attachment has nothing that could be DELed. A
// record alone does not tell: a later ADD may have run without lockwrap.
func (c *call) isUndone(old *record) bool {
	if old == nil || old.State != stateUndone || c.conf.prevResult != nil {
		return false
	}
	present, err := hasInterface(c.args.Netns, c.args.IfName)
	return err != nil || !present
}

func withPrevResult(config map[string]json.RawMessage, prevResult json.RawMessage) map[string]json.RawMessage {
	if prevResult == nil {
		return config
	}
	out := map[string]json.RawMessage{} // a record's config may be nil
	maps.Copy(out, config)
	out["prevResult"] = prevResult
	return out
}
