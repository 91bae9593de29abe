// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockwrap/lockwrap/test/rig"
)

// exact knows what must be on a host for each container that lives, and that nothing else may be there.
type exact struct {
	h      *rig.Host
	shared []string                    // rules and chains of all containers
	own    map[*rig.Container][]string // of one, with placeholders for its addresses
}

// learn adds and deletes the containers one by one, undisturbed, and takes down what each of them makes.
func learn(t *testing.T, h *rig.Host, containers []*rig.Container) *exact {
	t.Helper()
	x := &exact{h: h, own: map[*rig.Container][]string{}}
	for _, c := range containers {
		must(t, "ADD", h.Add(c))
		addresses, err := x.addresses(c)
		ok(t, err)
		for _, line := range stateOf(t, h).Rules {
			if rig.Shared(line) {
				continue
			}
			x.own[c] = append(x.own[c], withAddresses(line, addresses, placeholders))
		}
		must(t, "DEL", h.Del(c))
	}
	x.shared = stateOf(t, h).Rules
	if err := x.check(nil); err != nil {
		t.Fatalf("a host that nobody has disturbed: %v", err)
	}
	return x
}

var placeholders = []string{"ADDRESS1", "ADDRESS2"}

// withAddresses puts other words in the place of addresses.
func withAddresses(line string, from, to []string) string {
	for i := range from {
		whole := regexp.MustCompile(`(^|[^0-9a-f:.])` + regexp.QuoteMeta(from[i]) + `($|[^0-9a-f.])`)
		line = whole.ReplaceAllString(line, "${1}"+to[i]+"${2}")
	}
	return line
}

// addresses are those that host-local has reserved for a container.
func (x *exact) addresses(c *rig.Container) ([]string, error) {
	all, err := x.reservations()
	return all[c.ID], err
}

// reservations are all of them by container, IPv4 first.
func (x *exact) reservations() (map[string][]string, error) {
	byID := map[string][]string{}
	state, err := x.h.State()
	if err != nil {
		return nil, err
	}
	for _, name := range state.Addresses {
		data, err := os.ReadFile(filepath.Join(x.h.Dir, "ipam", x.h.Name, name))
		if err != nil {
			return nil, err
		}
		id, _, _ := strings.Cut(strings.TrimSpace(string(data)), "\r\n")
		byID[id] = append(byID[id], name)
	}
	for _, addresses := range byID {
		slices.SortFunc(addresses, func(a, b string) int { return netip.MustParseAddr(a).Compare(netip.MustParseAddr(b)) })
	}
	return byID, nil
}

// check looks at the whole host: rules and chains of both families, links, addresses, reservations, records.
func (x *exact) check(live []*rig.Container) error {
	state, err := x.h.State()
	if err != nil {
		return err
	}
	reserved, err := x.reservations()
	if err != nil {
		return err
	}
	var errs []error
	rules := slices.Clone(x.shared)
	records, wantRecords := records(x.h), map[string]string{}
	for c, own := range x.own {
		inside, err := x.inside(c)
		errs = append(errs, err)
		if !slices.Contains(live, c) {
			if len(inside) > 0 || len(reserved[c.ID]) > 0 {
				errs = append(errs, fmt.Errorf("%s does not live and has %q, and the reservations %q", c.Name, inside, reserved[c.ID]))
			}
			delete(reserved, c.ID)
			continue
		}
		if diff := cmp.Diff(reserved[c.ID], inside["eth0"]); diff != "" || len(inside) != 1 {
			errs = append(errs, fmt.Errorf("%s has %q; reserved (-) and on eth0 (+):\n%s", c.Name, inside, diff))
		}
		for _, line := range own {
			rules = append(rules, withAddresses(line, placeholders[:len(reserved[c.ID])], reserved[c.ID]))
		}
		delete(reserved, c.ID)
		wantRecords[fmt.Sprintf("%s:%s:eth0.json", x.h.Name, c.ID)] = "added"
	}
	if len(reserved) > 0 {
		errs = append(errs, fmt.Errorf("reservations of nobody: %q", reserved))
	}
	if len(state.Links) != len(live) {
		errs = append(errs, fmt.Errorf("the host has the links %q with %d containers", state.Links, len(live)))
	}
	slices.Sort(rules)
	slices.Sort(state.Rules)
	if diff := cmp.Diff(rules, state.Rules); diff != "" {
		errs = append(errs, fmt.Errorf("rules (-want +got):\n%s", diff))
	}
	if diff := cmp.Diff(wantRecords, records); diff != "" {
		errs = append(errs, fmt.Errorf("records (-want +got):\n%s", diff))
	}
	return errors.Join(errs...)
}

// inside are the addresses of the links in a container's namespace, IPv4 first.
func (x *exact) inside(c *rig.Container) (map[string][]string, error) {
	links, err := x.h.ContainerLinks(c)
	if err != nil || len(links) == 0 {
		return nil, err
	}
	run := x.h.In(c, "ip", "-json", "address")
	if !run.OK() {
		return nil, fmt.Errorf("ip address: %v", run)
	}
	var shown []struct {
		Name  string `json:"ifname"`
		Addrs []struct {
			Local netip.Addr `json:"local"`
			Scope string     `json:"scope"`
		} `json:"addr_info"`
	}
	if err := json.Unmarshal([]byte(run.Stdout), &shown); err != nil {
		return nil, err
	}
	found := map[string][]string{}
	for _, link := range shown {
		if !slices.Contains(links, link.Name) {
			continue
		}
		found[link.Name] = nil
		for _, addr := range link.Addrs {
			if addr.Scope == "global" {
				found[link.Name] = append(found[link.Name], addr.Local.String())
			}
		}
	}
	return found, nil
}

// records are the states of lockwrap's records by file name.
func records(h *rig.Host) map[string]string {
	states := map[string]string{}
	for _, path := range h.Records() {
		var record struct{ State string }
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, &record)
		}
		if err != nil {
			record.State = err.Error()
		}
		states[filepath.Base(path)] = record.State
	}
	return states
}

// A checker that sees nothing would make every other test here worthless.
func TestExact_seesWhatIsPlanted(t *testing.T) {
	h := newHost(t, rig.New, rig.NFT)
	ok(t, h.Wrapped(h.Dual()...))
	containers := newContainers(t, h, 2)
	x := learn(t, h, containers)
	alive, dead := containers[0], containers[1]
	must(t, "ADD", h.Add(alive))
	live := []*rig.Container{alive}
	ok(t, x.check(live))
	address := func() string {
		all, err := x.addresses(alive)
		ok(t, err)
		return all[0]
	}
	reservation := func(name string) string { return filepath.Join(h.Dir, "ipam", h.Name, name) }
	record := fmt.Sprintf("%s/attachments/%s:%s:eth0.json", h.StateDir(), h.Name, alive.ID)
	for name, plant := range map[string][2]string{ // what a shell does, and how it takes it back
		"a rule of nobody": {"iptables -A CNI-FORWARD -s 10.99.9.9 -j ACCEPT", "iptables -D CNI-FORWARD -s 10.99.9.9 -j ACCEPT"},
		"a rule twice": {
			"iptables -A CNI-FORWARD -s " + address() + "/32 -j ACCEPT", "iptables -D CNI-FORWARD -s " + address() + "/32 -j ACCEPT",
		},
		"a shared jump twice": {"iptables -A FORWARD -j CNI-FORWARD", "iptables -D FORWARD -j CNI-FORWARD"},
		"a chain in IPv6":     {"ip6tables -t nat -N CNI-DN-0123456789abcdef", "ip6tables -t nat -X CNI-DN-0123456789abcdef"},
		"a rule too few": {
			"iptables -D CNI-FORWARD -s " + address() + "/32 -j ACCEPT", "iptables -A CNI-FORWARD -s " + address() + "/32 -j ACCEPT",
		},
		"a reservation":            {"echo leak >" + reservation("10.99.9.9"), "rm " + reservation("10.99.9.9")},
		"a reservation too few":    {"mv " + reservation(address()) + " /run/kept", "mv /run/kept " + reservation(address())},
		"a link on the host":       {"ip link add leak type veth peer name leak2", "ip link del leak"},
		"a link in a container":    {"ip -n " + alive.Name + " link add leak type veth", "ip -n " + alive.Name + " link del leak"},
		"a link in a dead one":     {"ip -n " + dead.Name + " link add leak type veth", "ip -n " + dead.Name + " link del leak"},
		"an address":               {"ip -n " + alive.Name + " addr add 10.99.9.9 dev eth0", "ip -n " + alive.Name + " addr del 10.99.9.9 dev eth0"},
		"no record":                {"mv " + record + " /run/kept", "mv /run/kept " + record},
		"a record of nobody":       {"cp " + record + " " + record + ".tmp", "rm " + record + ".tmp"},
		"a record that never ends": {"sed -i.old s/added/adding/ " + record, "mv " + record + ".old " + record},
	} {
		must(t, name, h.Exec("sh", "-c", plant[0]))
		if x.check(live) == nil {
			t.Errorf("%s: not seen", name)
		}
		must(t, name, h.Exec("sh", "-c", plant[1]))
		if err := x.check(live); err != nil {
			t.Fatalf("%s was taken back: %v", name, err)
		}
	}
	must(t, "DEL", h.Del(alive))
	ok(t, x.check(nil))
	if x.check(live) == nil {
		t.Error("a container that is gone: not seen")
	}
}
