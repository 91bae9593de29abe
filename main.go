// SPDX-License-Identifier: Apache-2.0

// Lockwrap is a CNI plugin that makes concurrent container starts safe, and the
// command that puts it into network configuration lists.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/lockwrap/lockwrap/conflist"
	"github.com/lockwrap/lockwrap/wrap"
)

const usage = `Usage:
  lockwrap wrap FILE...      put lockwrap around the plugins of a network configuration list
  lockwrap unwrap FILE...    take it away again, byte for byte
  lockwrap version
  lockwrap help

Without arguments and without CNI_COMMAND it prints the about line of a CNI
plugin. With CNI_COMMAND it is one: a runtime calls it for a list like

  {"cniVersion": "1.0.0", "name": "web", "plugins": [
    {"type": "lockwrap", "capabilities": {"portMappings": true},
     "delegates": [{"type": "bridge", ...}, {"type": "firewall", ...},
                   {"type": "portmap", "capabilities": {"portMappings": true}}]}]}
`

func main() {
	// A runtime always sets CNI_COMMAND, and Nomad's fingerprint runs every
	// plugin with neither that nor arguments.
	if os.Getenv("CNI_COMMAND") != "" || len(os.Args) == 1 {
		os.Exit(wrap.Main())
	}
	os.Exit(command(os.Args[1], os.Args[2:]))
}

func command(verb string, args []string) (exitCode int) {
	changes := map[string]func([]byte) ([]byte, error){"wrap": conflist.Wrap, "unwrap": conflist.Unwrap}
	switch change := changes[verb]; {
	case verb == "help", verb == "-h", verb == "--help":
		fmt.Print(usage)
		return 0
	case verb == "version":
		fmt.Println("lockwrap", wrap.Version())
		return 0
	case change != nil && len(args) > 0 && !slices.ContainsFunc(args, isFlag):
		if !conflist.Rewrite(os.Stdout, os.Stderr, verb, change, args) {
			return 1
		}
		return 0
	}
	fmt.Fprint(os.Stderr, usage)
	return 2
}

// isFlag: there are none yet, and whoever gives one must not have his file
// changed in another way than he asked for.
func isFlag(arg string) bool { return strings.HasPrefix(arg, "-") }
