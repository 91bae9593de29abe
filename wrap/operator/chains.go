// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lockwrap/lockwrap/conflist"
	"github.com/lockwrap/lockwrap/wrap"
)

// chainsUnit is for the operator to install (nomad#6618).
//
//go:embed lockwrap-chains.service
var chainsUnit string

func chainsCommand() command {
	return command{
		name:     "chains",
		operands: "FILE...",
		about:    "list the iptables chains that containers share, or create them",
		help: `One line for each chain that the plugins of a list share, bare lists
included: present or missing, address family, table, name. A chain that iptables
can't tell of is unknown. The exit code is 1 unless all are present.

Before the first container of a boot, and after a firewall reload, this unit
creates them, with your list in the place of web.conflist:

` + indent(chainsUnit, "    "),
		setup: func(flags *flag.FlagSet) func(*console, []string) int {
			create := flags.Bool("create", false, "create the missing ones, empty, under the lock")
			return func(c *console, files []string) int {
				if len(files) == 0 {
					c.errorf("no FILE is given")
					return misused
				}
				// The lock goes with us, and what iptables is doing must not go on.
				ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
				defer stop()
				code := 0
				for _, file := range files {
					if len(files) > 1 {
						c.linef("%s:", file)
					}
					if !c.chains(ctx, file, *create) {
						code = 1
					}
				}
				return code
			}
		},
	}
}

func indent(text, with string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString(with)
		}
		b.WriteString(line)
	}
	return b.String()
}

// chains does one file. It returns false if a chain is missing in the end, or if
// that can't be known.
func (c *console) chains(ctx context.Context, file string, create bool) bool {
	confs, err := entries(file)
	if err != nil {
		c.refused("chains", file, err)
		return false
	}
	var needed []wrap.SharedChain
	for _, conf := range confs {
		for _, chain := range conf.SharedChains() {
			if !slices.Contains(needed, chain) {
				needed = append(needed, chain)
			}
		}
	}
	if len(needed) == 0 {
		c.linef("%s: its plugins share no chains", file)
		return true
	}
	var createErr error
	if create {
		// Several entries of one list have one lock, or "check" complains.
		createErr = wrap.CreateChains(ctx, confs[0].Settings, confs[0].Name, needed)
	}
	found, findErr := wrap.FindChains(ctx, needed)
	c.failed(file, createErr, findErr)
	ok := createErr == nil && findErr == nil
	for _, chain := range needed {
		state := "present"
		if there, known := found[chain]; !known {
			state, ok = "unknown", false
		} else if !there {
			state, ok = "missing", false
		}
		family := "ipv4"
		if chain.IPv6 {
			family = "ipv6"
		}
		c.linef("%s  %s  %-8s  %s", state, family, chain.Table, chain.Name)
	}
	return ok
}

// failed says each thing that went wrong once.
func (c *console) failed(file string, errs ...error) {
	var said []string
	for _, err := range errs {
		var cniErr *types.Error
		switch {
		case err == nil:
			continue
		case errors.As(err, &cniErr):
			c.errorf("%s: %s", file, ownWords(cniErr))
			c.hintf("%s", cniErr.Details)
			continue
		}
		for line := range strings.Lines(err.Error()) {
			if line = strings.TrimSpace(line); line != "" && !slices.Contains(said, line) {
				c.errorf("%s: %s", file, line)
				said = append(said, line)
			}
		}
	}
	if len(said) > 0 && os.Geteuid() != 0 {
		c.hintf("run it as root")
	}
}

// entries are the lockwrap entries of a list, or all of a bare list as if it
// were wrapped.
func entries(file string) ([]*wrap.NetConf, error) {
	list, err := loadList(file)
	if err != nil {
		return nil, err
	}
	var raws, bare []json.RawMessage
	for _, p := range list.Plugins {
		if p.Type == conflist.PluginName {
			raws = append(raws, p.Raw)
		} else {
			bare = append(bare, p.Raw)
		}
	}
	if len(bare) > 0 {
		entry, err := json.Marshal(map[string]any{"type": conflist.PluginName, "delegates": bare})
		if err != nil {
			return nil, err
		}
		raws = append(raws, entry)
	}
	var confs []*wrap.NetConf
	for _, raw := range raws {
		conf, err := wrap.ParseEntry(raw, list.Name, list.CNIVersion, os.Environ())
		if err != nil {
			return nil, errors.New(ownWords(err))
		}
		confs = append(confs, conf)
	}
	return confs, nil
}
