// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"regexp"
	"runtime/debug"
)

// release is the tag, set by the linker when a tagged commit is built.
var release string

// Version is lockwrap's own version, a semantic version with a leading v: the tag
// of a release, else what the go command knows of the module or the checkout. It is
// never empty and never "(devel)", since Nomad's fingerprint takes the first semantic
// version in what the bare run prints, and would find the protocol's (nomad#20263).
func Version() string {
	candidates := []string{release}
	if info, ok := debug.ReadBuildInfo(); ok {
		candidates = append(candidates, info.Main.Version)
	}
	semver := regexp.MustCompile(`^v\d+\.\d+\.\d+`)
	for _, v := range candidates {
		if semver.MatchString(v) {
			return v
		}
	}
	return "v0.1.0-dev"
}

// About is the line that CNI plugins print when they are run without
// CNI_COMMAND. Nomad and nerdctl read the plugin's version from it.
func About() string {
	return "CNI lockwrap plugin " + Version()
}
