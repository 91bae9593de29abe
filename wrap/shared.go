// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-iptables/iptables"
)

// commandBudget is how long an operator's command may be busy with iptables,
// which waits for the xtables lock itself for each of a few calls.
const commandBudget = 20 * time.Second

// SharedChain is a chain that containers share, in one address family.
type SharedChain struct {
	Chain
	IPv6 bool `json:"ipv6"`
}

// SharedChains are the chains that an ADD with port mappings would find or
// create, the "chains" of the entry among them, by the addresses that the
// delegates' configuration names. Where it names none (IPAM dhcp, for instance)
// they are taken to be IPv4.
func (c *NetConf) SharedChains() []SharedChain {
	chains := slices.Clone(c.Chains)
	var known families
	for _, d := range c.Delegates {
		config := c.config(d, "ADD")
		known.addFrom(config["ipam"])
		if d.capabilities["portMappings"] {
			config["runtimeConfig"] = json.RawMessage(`{"portMappings": [{}]}`)
		}
		chains = append(chains, sharedChains(d.Type, config)...)
	}
	var out []SharedChain
	for _, chain := range chains {
		for _, ipv6 := range []bool{false, true} {
			wanted := known.v4 || !known.v6
			if ipv6 {
				wanted = known.v6
			}
			if shared := (SharedChain{chain, ipv6}); wanted && !slices.Contains(out, shared) {
				out = append(out, shared)
			}
		}
	}
	return out
}

// FindChains tells which of the chains exist, by one listing of each table. The
// error joins what went wrong; chains of a table that can't be listed are not in
// the map.
func FindChains(ctx context.Context, chains []SharedChain) (map[SharedChain]bool, error) {
	return within(ctx, func() (map[SharedChain]bool, error) { return findChains(chains) })
}

func findChains(chains []SharedChain) (map[SharedChain]bool, error) {
	found := map[SharedChain]bool{}
	listed := map[SharedChain][]string{} // by a chain without a name; nil if it can't be
	var errs []error
	for _, chain := range chains {
		table := SharedChain{Chain{Table: chain.Table}, chain.IPv6}
		names, done := listed[table]
		if !done {
			ipt, err := chain.client()
			if err == nil {
				names, err = ipt.ListChains(chain.Table)
			}
			if err != nil {
				names, errs = nil, append(errs, err)
			} else {
				names = append([]string{}, names...)
			}
			listed[table] = names
		}
		if names != nil {
			found[chain] = slices.Contains(names, chain.Name)
		}
	}
	return found, errors.Join(errs...)
}

// CreateChains creates those of the chains that are missing, empty, while it
// holds the host's lock. Errors: a *types.Error if the lock can't be had; what
// iptables said, joined, for the chains that could not be created.
func CreateChains(ctx context.Context, s Settings, network string, chains []SharedChain) error {
	lock, lockErr := lockHost(ctx, s.LockFile, s.LockTimeout, note{Verb: "chains", Network: network})
	if lockErr != nil {
		return lockErr
	}
	defer lock.unlock()
	_, err := within(ctx, func() (struct{}, error) { return struct{}{}, createChains(chains) })
	return err
}

func createChains(chains []SharedChain) error {
	var errs []error
	for _, ipv6 := range []bool{false, true} {
		names := map[string][]string{}
		for _, chain := range chains {
			if chain.IPv6 == ipv6 {
				names[chain.Table] = append(names[chain.Table], chain.Name)
			}
		}
		client := sync.OnceValues(func() (chainMaker, error) { return SharedChain{IPv6: ipv6}.client() })
		for table, names := range names {
			errs = append(errs, ensureChains(client, table, names))
		}
	}
	return errors.Join(errs...)
}

// within bounds work that calls iptables. go-iptables has no way to stop one that
// hangs, and the host's lock must not wait for it: so it is killed from outside.
func within[T any](ctx context.Context, work func() (T, error)) (T, error) {
	type outcome struct {
		found T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		found, err := work()
		done <- outcome{found, err}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, commandBudget, fmt.Errorf("iptables did not answer within %s", commandBudget))
	defer cancel()
	select {
	case o := <-done:
		return o.found, o.err
	case <-ctx.Done():
	}
	why := context.Cause(ctx)
	if hung := killChildren(); len(hung) > 0 {
		why = fmt.Errorf("%w: killed %s", why, strings.Join(hung, ", "))
	}
	var nothing T
	return nothing, why
}

// killChildren kills the processes that this one has started and returns what
// they were. No delegate may be running.
func killChildren() (killed []string) {
	pids := processes(func(p process) bool { return p.parent == os.Getpid() })
	for _, pid := range pids {
		killed = append(killed, strconv.Quote(command(pid)))
	}
	kill(pids)
	return killed
}

func (c SharedChain) client() (*iptables.IPTables, error) {
	proto := iptables.ProtocolIPv4
	if c.IPv6 {
		proto = iptables.ProtocolIPv6
	}
	return iptables.New(iptables.IPFamily(proto), iptables.Timeout(int(xtablesWait/time.Second)))
}
