// SPDX-License-Identifier: Apache-2.0

// Lockwrap is a CNI plugin that makes concurrent container starts safe, and the
// command that puts it into network configuration lists.
package main

import (
	"os"

	"github.com/lockwrap/lockwrap/wrap"
	"github.com/lockwrap/lockwrap/wrap/operator"
)

func main() {
	// A runtime always sets CNI_COMMAND, and Nomad's fingerprint runs every
	// plugin with neither that nor arguments.
	if os.Getenv("CNI_COMMAND") != "" || len(os.Args) == 1 {
		os.Exit(wrap.Main())
	}
	os.Exit(operator.Main(os.Args[1:], os.Stdout, os.Stderr))
}
