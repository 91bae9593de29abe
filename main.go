// SPDX-License-Identifier: Apache-2.0

// Lockwrap is a CNI plugin that makes concurrent container starts safe, the
// command that puts it into network configuration lists, and, under the name of
// another plugin, that plugin with a lock around it.
package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/lockwrap/lockwrap/wrap"
	"github.com/lockwrap/lockwrap/wrap/operator"
)

func main() {
	if name := filepath.Base(os.Args[0]); !strings.HasPrefix(name, "lockwrap") {
		os.Exit(wrap.StandIn(name))
	}
	// A runtime always sets CNI_COMMAND, and Nomad's fingerprint runs every
	// plugin with neither that nor arguments.
	if os.Getenv("CNI_COMMAND") != "" || len(os.Args) == 1 {
		os.Exit(wrap.Main())
	}
	os.Exit(operator.Main(os.Args[1:], os.Stdout, os.Stderr))
}
