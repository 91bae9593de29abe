// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"regexp"
	"runtime/debug"
	"strings"
)

// release is set by the linker in release builds.
var release string

// devVersion is what a build from a checkout calls itself. It must be a
// semantic version: Nomad's fingerprint looks for the first one in what the
// bare run prints and would otherwise take the protocol version for it
// (nomad#20263).
const devVersion = "v0.1.0-dev"

// Version is lockwrap's own version, a semantic version with a leading v.
func Version() string {
	candidates := []string{release}
	if info, ok := debug.ReadBuildInfo(); ok {
		candidates = append(candidates, info.Main.Version)
	}
	semver := regexp.MustCompile(`^v\d+\.\d+\.\d+`)
	for _, v := range candidates {
		// The go command stamps a checkout without tags v0.0.0-DATE-COMMIT.
		if semver.MatchString(v) && !strings.HasPrefix(v, "v0.0.0-") {
			return v
		}
	}
	return devVersion
}

// About is the line that CNI plugins print when they are run without
// CNI_COMMAND. Nomad and nerdctl read the plugin's version from it.
func About() string {
	return "CNI lockwrap plugin " + Version()
}
