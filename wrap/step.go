// SPDX-License-Identifier: Apache-2.0

package wrap

import "time"

// reached says in the log how far a call has come and when. In a build for tests
// it is also where a call can be made to die: between any two steps the next
// call must find all that it needs to put things right.
func (c *call) reached(step string) {
	c.log.Debug("reached", "step", step, "after", time.Since(c.began).Round(time.Microsecond))
	faultPoint(step)
}
