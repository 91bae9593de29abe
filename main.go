// SPDX-License-Identifier: Apache-2.0

// What the Go runtime does for programs that run for long: it asks again and again
// how many processors it may use, and names its memory. Without it the start takes
// two hundredths less.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
//go:debug decoratemappings=0

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
