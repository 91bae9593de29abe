// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// reached says in the log how far a call has come and when. In a build for tests
// it is also where a call can be made to die: between any two steps the next
// call must find all that it needs to put things right.
func (c *call) reached(step string) {
	c.log.Debug("reached", "step", step, "after", time.Since(c.began).Round(time.Microsecond))
	part := step
	if plugin, ended := strings.CutSuffix(step, " ended"); ended {
		part = plugin
	} else if strings.HasSuffix(step, " started") {
		part = "exec"
	} else if strings.Contains(step, "record") {
		part = "record"
	}
	c.spent(part)
	faultPoint(step)
}

// spent counts the time since the last step for a part of the call: a delegate by
// its type, or what has been reached.
func (c *call) spent(part string) {
	took := time.Since(c.last).Round(time.Microsecond)
	c.last = time.Now()
	for i := 0; i < len(c.parts); i += 2 {
		if c.parts[i] == part {
			took += c.parts[i+1].(time.Duration)
			c.parts[i+1] = took
			return
		}
	}
	c.parts = append(c.parts, part, took)
}

// startup is the processor time of the process so far.
func startup() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano()).Round(time.Microsecond)
}
