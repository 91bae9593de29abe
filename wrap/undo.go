// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"context"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// undo takes back a failed ADD while the runtime still waits and the namespace
// still lives. It returns the error for the runtime: the first one, with what
// could not be undone in its details.
func (c *call) undo(ctx context.Context, first *types.Error) error {
	if c.live {
		// Somebody's attachment was here before us, and it works: a mistaken
		// second ADD must not destroy it.
		c.log.Warn("not undoing a failed ADD: the interface was there before", "netns", c.args.Netns)
		return first
	}
	// A second signal, or the runtime's end, is no reason to leave things
	// half done, so the undo does not listen to ctx.
	failed := c.deleteRecorded(context.WithoutCancel(ctx), c.ownLink(), c.env)
	if len(failed) > 0 {
		addDetail(first, strings.Join(failed, "; "))
	} else {
		// The links of other stand-ins stay, and the state tells that the
		// attachment has failed.
		c.rec.Delegates = c.rec.Delegates[:c.firstLink]
	}
	if len(c.rec.Delegates) == 0 && c.rec.Leftover == nil {
		c.rec.enter(stateUndone)
		c.rec.forget()
	}
	c.saveRecord()
	c.reached("undone")
	return first
}

// deleteRecorded sends DEL to every delegate on record in reverse order, with
// what it got at ADD and the last good result, and goes on past errors. The
// delegate that failed or was running is among them: it may have done anything,
// and the specification asks for it (SPEC.md, "ADD"). It says what could not be
// undone.
func (c *call) deleteRecorded(ctx context.Context, r *record, env environment) (failed []string) {
	prevResult := r.prevResultForDel(r.CNIVersion)
	for i := len(r.Delegates) - 1; i >= 0; i-- {
		was := r.Delegates[i]
		config := withPrevResult(was.Config, prevResult)
		env, done := c.withDecoy(r, was.Type, was.Config, env.with("CNI_COMMAND", "DEL"))
		err := c.exec(ctx, &delegate{Type: was.Type}, config, env)
		done()
		if err != nil {
			c.log.Warn("cannot undo", "plugin", was.Type, "err", err)
			failed = append(failed, fmt.Sprintf("could not undo %s: %v", was.Type, err))
			continue
		}
		c.log.Debug("undone", "plugin", was.Type)
	}
	return failed
}
