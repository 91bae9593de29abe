// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-iptables/iptables"
)

// The chains that containers share, as the reference plugins name them. The
// names are the same in all versions from v0.8.2 to v1.10.0; a rename there
// would only make pre-creation useless.
const (
	chainForward  = "CNI-FORWARD"           // plugins/meta/firewall/iptables.go
	chainAdmin    = "CNI-ADMIN"             // the same; iptablesAdminChainName names another
	chainIsolate1 = "CNI-ISOLATION-STAGE-1" // plugins/meta/firewall/ingresspolicy.go
	chainIsolate2 = "CNI-ISOLATION-STAGE-2"
	chainDNAT     = "CNI-HOSTPORT-DNAT" // plugins/meta/portmap/portmap_iptables.go
	chainSetMark  = "CNI-HOSTPORT-SETMARK"
	chainMasq     = "CNI-HOSTPORT-MASQ"
)

// Chain is an iptables chain.
type Chain struct {
	Table string `json:"table"`
	Name  string `json:"name"`
}

// Limits of pre-creation. It must not hold up a call for long: the delegates
// create the chains anyhow.
const (
	xtablesWait = 2 * time.Second // for the xtables lock, for each iptables call
	// For all of it in one call. An iptables that hangs longer is killed.
	chainsBudget = 3 * xtablesWait
)

// isChainName reports whether iptables takes a name for a chain and not for an
// option. A regular expression would be compiled at each start of lockwrap: a
// millisecond, a tenth of the whole start.
func isChainName(s string) bool {
	const first = "_.ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	return s != "" && len(s) <= 28 && strings.IndexByte(first, s[0]) >= 0 && !strings.ContainsAny(s, "\t\n\f\r \x00")
}

var tables = []string{"filter", "nat", "mangle", "raw", "security"}

func (c *NetConf) takeChains(raw json.RawMessage) error {
	var chains []Chain
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&chains); err != nil {
		return errors.New(`not a list of {"table": ..., "name": ...}`)
	}
	for _, chain := range chains {
		if !slices.Contains(tables, chain.Table) || !isChainName(chain.Name) {
			return fmt.Errorf("not a list of chains: table %q, name %q", chain.Table, chain.Name)
		}
	}
	c.Chains = chains
	return nil
}

// sharedChains returns the shared chains that one delegate's ADD would create,
// from its configuration, as read in and measured with the reference plugins
// v0.8.2 to v1.10.0. Never another owner's chain: an empty one would hide that
// the owner has not made it (cri-o#6772).
func sharedChains(pluginType string, config map[string]json.RawMessage) []Chain {
	var conf struct {
		Backend       string  `json:"backend"`
		AdminChain    string  `json:"iptablesAdminChainName"`
		IngressPolicy string  `json:"ingressPolicy"`
		SNAT          *bool   `json:"snat"`
		ExternalMark  *string `json:"externalSetMarkChain"`
		RuntimeConfig struct {
			PortMappings []json.RawMessage `json:"portMappings"`
		} `json:"runtimeConfig"`
	}
	if err := json.Unmarshal(mustMarshal(config), &conf); err != nil {
		return nil // the plugin will say what is wrong
	}
	var chains []Chain
	add := func(table string, names ...string) {
		for _, name := range names {
			if isChainName(name) {
				chains = append(chains, Chain{table, name})
			}
		}
	}
	switch pluginType {
	case "firewall":
		if conf.Backend == "iptables" || conf.Backend != "firewalld" && !firewalldRuns() {
			admin := chainAdmin
			if conf.AdminChain != "" {
				admin = conf.AdminChain
			}
			add("filter", chainForward, admin)
		}
		if conf.IngressPolicy == "same-bridge" || conf.IngressPolicy == "isolated" {
			add("filter", chainIsolate1, chainIsolate2)
		}
	case "portmap":
		if len(conf.RuntimeConfig.PortMappings) == 0 || conf.Backend == "nftables" {
			break
		}
		add("nat", chainDNAT)
		if (conf.SNAT == nil || *conf.SNAT) && conf.ExternalMark == nil {
			add("nat", chainSetMark, chainMasq)
		}
	}
	return chains
}

// firewalldRuns stands for the firewall plugin's question on D-Bus, which would
// cost a connection.
func firewalldRuns() bool {
	for _, file := range []string{"/run/firewalld.pid", "/run/firewalld/firewalld.pid"} {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err == nil && strings.Contains(command(pid), "firewalld") {
			return true
		}
	}
	return false
}

// chainKeeper makes the shared chains beside the delegates that do not use
// them, so that nobody waits for it.
type chainKeeper struct {
	log   *slog.Logger
	needs []chainNeed
	known families // of the addresses that the delegates will give out
	given families // of those that a plugin before us has given out
	jobs  map[chainJob]chainWork

	stopped atomic.Bool // no further iptables call is made
}

// chainWork is what has been begun.
type chainWork struct {
	done     chan struct{}
	deadline time.Time
}

// chainNeed is a chain and the first delegate that uses it.
type chainNeed struct {
	Chain
	user int
}

// chainJob is what one goroutine does: the chains of one table and family.
type chainJob struct {
	table string
	proto iptables.Protocol
}

// planChains finds out which chains the delegates share with others, and for which
// address families by their IPAM configuration.
func (c *call) planChains() *chainKeeper {
	k := &chainKeeper{log: c.log, jobs: map[chainJob]chainWork{}}
	for _, chain := range c.conf.Chains {
		k.needs = append(k.needs, chainNeed{chain, 0})
	}
	for i, d := range c.conf.Delegates {
		config := c.conf.config(d, "ADD")
		for _, chain := range sharedChains(d.Type, config) {
			if !slices.ContainsFunc(k.needs, func(n chainNeed) bool { return n.Chain == chain }) {
				k.needs = append(k.needs, chainNeed{chain, i})
			}
		}
		k.known.addFrom(config["ipam"])
	}
	k.known.addFrom(mustMarshal(c.conf.runtimeConfig["ipRanges"]))
	k.known.addFrom(mustMarshal(c.conf.runtimeConfig["ips"]))
	k.given = resultFamilies(c.conf.prevResult)
	return k
}

// begin starts to make the chains. await and finish wait for it.
func (k *chainKeeper) begin() {
	k.start(k.known)
	k.start(k.given)
}

// start makes all chains in families where that has not been begun.
func (k *chainKeeper) start(f families) {
	var protos []iptables.Protocol
	if f.v4 {
		protos = append(protos, iptables.ProtocolIPv4)
	}
	if f.v6 {
		protos = append(protos, iptables.ProtocolIPv6)
	}
	for _, proto := range protos {
		byTable := map[string][]string{}
		for _, need := range k.needs {
			byTable[need.Table] = append(byTable[need.Table], need.Name)
		}
		client := sync.OnceValues(func() (chainMaker, error) {
			ipt, err := SharedChain{IPv6: proto == iptables.ProtocolIPv6}.client()
			return stoppableMaker{ipt, &k.stopped}, err
		})
		for table, names := range byTable {
			job := chainJob{table, proto}
			if _, begun := k.jobs[job]; begun {
				continue
			}
			work := chainWork{make(chan struct{}), time.Now().Add(chainsBudget)}
			k.jobs[job] = work
			go func() {
				defer close(work.done)
				if areThere(proto, table, names) {
					k.log.Debug("chains are there", "ipv6", proto == iptables.ProtocolIPv6, "table", table, "chains", names)
					return
				}
				err := ensureChains(client, table, names)
				switch {
				case errors.Is(err, exec.ErrNotFound):
					k.log.Debug("no chains pre-created", "table", table, "err", err) // the delegates may not need it
				case err != nil:
					k.log.Warn("cannot pre-create chains; the delegates will try", "table", table, "chains", names, "err", err)
				}
			}()
		}
	}
}

// await returns when the chains that delegate i uses exist or can't be had.
// prevResult is what the delegate will get: its addresses decide where the
// configuration did not tell.
func (k *chainKeeper) await(i int, prevResult json.RawMessage) {
	var tables []string
	for _, need := range k.needs {
		if need.user <= i {
			tables = append(tables, need.Table)
		}
	}
	if len(tables) == 0 {
		return
	}
	f := resultFamilies(prevResult)
	if i == 0 && f == (families{}) && k.known == (families{}) {
		f.v4 = true // chains of the "chains" key, before anybody knows
	}
	k.start(f)
	k.wait(tables)
}

// finish waits for all that was started.
func (k *chainKeeper) finish() { k.wait(tables) }

// ended reports whether the work ends within that time.
func (w chainWork) ended(within time.Duration) bool {
	select {
	case <-w.done:
		return true
	default:
	}
	select {
	case <-w.done:
		return true
	case <-time.After(within):
		return false
	}
}

// wait waits for the work on some tables. A hanging iptables must not hang the
// call: the delegates have a time limit.
func (k *chainKeeper) wait(tables []string) {
	for job, work := range k.jobs {
		if !slices.Contains(tables, job.table) || work.ended(time.Until(work.deadline)) {
			continue
		}
		k.stopped.Store(true)
		k.log.Warn("not waiting for iptables any longer", "table", job.table, "killed", killChildren())
		for tries := 0; !work.ended(10*time.Millisecond) && tries < 100; tries++ {
			killChildren() // one that was being started
		}
	}
}

// ensureChains makes chains of one table if they are missing. The kernel is
// asked every time: firewalld and operators flush tables (plugins#512).
func ensureChains(client func() (chainMaker, error), table string, names []string) error {
	ipt, err := client()
	if err != nil {
		return err
	}
	// One listing is cheaper than a question for each chain. If it fails, the
	// attempts below will tell why.
	deadline := time.Now().Add(2 * xtablesWait) // before chainsBudget kills what is left
	existing, _ := ipt.ListChains(table)
	var errs []error
	for _, name := range names {
		if slices.Contains(existing, name) {
			continue
		}
		err := ensureChain(ipt, table, name, deadline)
		errs = append(errs, err)
		if err != nil && time.Now().After(deadline) {
			break
		}
	}
	return errors.Join(errs...)
}

// chainMaker is what of go-iptables is used here.
type chainMaker interface {
	ListChains(table string) ([]string, error)
	NewChain(table, chain string) error
	ChainExists(table, chain string) (bool, error)
}

// stoppableMaker makes no call any more once it is stopped: a delegate's own
// calls would race with it.
type stoppableMaker struct {
	chainMaker
	stopped *atomic.Bool
}

func (m stoppableMaker) NewChain(table, chain string) error {
	if m.stopped.Load() {
		return errGivenUp
	}
	return m.chainMaker.NewChain(table, chain)
}

func (m stoppableMaker) ChainExists(table, chain string) (bool, error) {
	if m.stopped.Load() {
		return false, errGivenUp
	}
	return m.chainMaker.ChainExists(table, chain)
}

func (m stoppableMaker) ListChains(table string) ([]string, error) {
	if m.stopped.Load() {
		return nil, errGivenUp
	}
	return m.chainMaker.ListChains(table)
}

var errGivenUp = errors.New("given up")

// ensureChain makes one chain. Whatever the error, only a look tells whether the
// chain is there: "exists" is exit status 1 or 4 with many texts, and other
// failures have the same status (nomad#8838, podman#5446).
func ensureChain(ipt chainMaker, table, name string, deadline time.Time) error {
	const tries = 3
	for try := 1; ; try++ {
		err := ipt.NewChain(table, name)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
		if exists, lookErr := ipt.ChainExists(table, name); lookErr == nil && exists {
			return nil
		}
		if try == tries {
			return err
		}
		// Other programs hold the xtables lock or change the table for moments
		// (go-cni#60).
		time.Sleep(time.Duration(try) * 20 * time.Millisecond)
	}
}
