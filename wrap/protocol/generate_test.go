// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// generator makes lists and what their plugins do. The same seed makes the same.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator {
	return generator{rand.New(rand.NewPCG(seed, 0x6c6f636b77726170))}
}

func (g generator) chance(percent int) bool { return g.IntN(100) < percent }

func pick[T any](g generator, from ...T) T { return from[g.IntN(len(from))] }

// trial is one list, one behaviour of its plugins, and what the runtime does with them.
type trial struct {
	list    list
	scripts map[string][]string // "a.ADD": steps
	fails   map[string]bool     // "a.DEL": it goes wrong
	steps   []step
	caps    map[string]any // what the runtime gives; a DEL may come without
}

func (g generator) trial() trial {
	tr := trial{
		list:    list{version: pick(g, "-", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "0.4.0", "1.0.0", "1.0.0", "1.1.0", "1.1.0", "1.1.0")},
		scripts: map[string][]string{},
		fails:   map[string]bool{},
	}
	names := strings.Split("abcdef", "")[:1+g.IntN(6)]
	if g.chance(25) {
		tr.list.before = g.entries("p")
	}
	tr.list.delegates = g.entries(names...)
	if g.chance(5) && len(names) > 1 { // the same plugin twice in one list
		delete(tr.list.delegates[1], "Type")
		tr.list.delegates[1]["type"] = "a"
	}
	if g.chance(25) {
		tr.list.after = g.entries("q")
	}
	if g.chance(35) {
		tr.script(pick(g, append(names, "p", "q")...), "ADD", true, g.addFailure())
	}
	for _, n := range append(names, "p", "q") {
		if _, ok := tr.scripts[n+".ADD"]; !ok && g.chance(70) {
			tr.script(n, "ADD", false, g.success(tr.list.version))
		}
		for _, v := range []string{"CHECK", "DEL", "GC", "STATUS"} {
			if g.chance(5) {
				tr.script(n, v, true, g.failure())
			} else if g.chance(5) {
				tr.script(n, v, false, []string{say("text that nobody asked for"), warn("and more\n"), "exit 0"})
			}
		}
	}
	tr.caps = map[string]any{}
	for _, c := range capNames {
		if g.chance(50) {
			tr.caps[c] = g.value(2)
		}
	}
	tr.steps = g.steps(tr.caps)
	return tr
}

func (tr *trial) script(name, verb string, fails bool, steps []string) {
	tr.scripts[name+"."+verb] = steps
	tr.fails[name+"."+verb] = fails
}

// steps is a life of one attachment; what it may do next depends on how things went and is decided on the way.
func (g generator) steps(caps map[string]any) []step {
	args := pick(g, nil, [][2]string{{"IgnoreUnknown", "1"}}, [][2]string{{"A", "b=c,\"d\":{}"}, {"", ""}, {"A", "ü"}})
	var out []step
	for _, verb := range pick(g,
		[]string{"STATUS", "ADD", "CHECK", "GC", "CHECK", "DEL", "DEL"},
		[]string{"ADD", "DEL", "ADD", "CHECK", "DEL"},
		[]string{"DEL", "CHECK", "GC", "STATUS", "ADD", "ADD", "ADD", "DEL"}, // nomad: ADD up to three times, no DEL between
	) {
		s := step{verb: verb, caps: caps, args: args}
		if verb == "DEL" && g.chance(30) {
			s.caps = nil
		}
		if verb == "DEL" && g.chance(30) {
			s.args = nil // as Nomad does
		}
		s.gc = pick(g, nil, &libcni.GCArgs{}, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}},
			&libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "x", IfName: "y"}}})
		out = append(out, s)
	}
	return out
}

var capNames = []string{"portMappings", "bandwidth", "mac", "ips", "x y\"z"}

func (g generator) entries(names ...string) []entry {
	var out []entry
	for i, n := range names {
		e := entry{pick(g, "type", "type", "type", "Type"): n, "index": i}
		for range g.IntN(4) {
			e[g.key()] = g.value(3)
		}
		if g.chance(40) {
			caps := entry{}
			for range 1 + g.IntN(3) {
				caps[pick(g, capNames...)] = g.chance(75)
			}
			e["capabilities"] = caps
		}
		if g.chance(10) {
			e["runtimeConfig"] = entry{"mac": "static", g.key(): g.value(1)}
		}
		if g.chance(10) {
			e["name"] = "a name of its own"
		}
		if g.chance(10) {
			e["cniVersion"] = pick(g, "9.9.9", "0.1.0", "")
		}
		if g.chance(20) {
			e["ipam"] = entry{"type": "host-local", g.key(): g.value(2)}
		}
		if g.chance(10) {
			e["args"] = entry{"cni": entry{g.key(): g.value(1)}}
		}
		out = append(out, e)
	}
	return out
}

// key gives names of unknown keys; none of them is one that libcni decodes, in any case.
func (g generator) key() string {
	return pick(g, "bridge", "mtu", "k", "K", "", " ", "ключ", "a.b", "<&>", "lockFile", "delegates", "plugins", "kubernetes", "cni.dev/x")
}

// value is any JSON value, big and odd numbers included.
func (g generator) value(depth int) any {
	n := 7
	if depth > 0 {
		n = 9
	}
	switch g.IntN(n) {
	case 0:
		return nil
	case 1:
		return g.chance(50)
	case 2:
		return g.Int64()
	case 3:
		return json.Number(pick(g, "18446744073709551617", "9007199254740993", "-0", "1e21", "1E-7", "0.1", "1.0", "-9223372036854775808", "1e300"))
	case 4:
		return pick(g, "", "text", "<&>\u2028", "\"\\/\b\x00", "日本語", "null", strings.Repeat("long ", 200))
	case 5:
		return g.Float64()
	case 6:
		return json.Number(fmt.Sprint(g.Uint64()))
	case 7:
		list := []any{}
		for range g.IntN(4) {
			list = append(list, g.value(depth-1))
		}
		return list
	default:
		object := map[string]any{}
		for range g.IntN(4) {
			object[g.key()] = g.value(depth - 1)
		}
		return object
	}
}

// success is an ADD that goes well, with a result of the list's version or of another.
func (g generator) success(version string) []string {
	results := map[string][]string{
		"0.2.0": {
			`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24","gateway":"10.0.0.1","routes":[{"dst":"0.0.0.0/0"}]},"dns":{"nameservers":["10.0.0.1"]}}`,
			`{"cniVersion":"0.1.0","ip4":{"ip":"10.0.0.2/24"}}`,
			`{"cniVersion":"0.2.0","dns":{}}`,
		},
		"0.4.0": {
			`{"cniVersion":"0.4.0","interfaces":[{"name":"br0","mac":"00:11:22:33:44:55"},{"name":"eth0","sandbox":"/x"}],"ips":[{"version":"4","interface":1,"address":"10.0.0.2/24","gateway":"10.0.0.1"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{}}`,
			`{"cniVersion":"0.3.1","ips":[{"version":"6","interface":7,"address":"fd00::2/64"}],"dns":{"search":["x"]}}`,
			`{"cniVersion":"0.4.0"}`,
			`{"cniVersion":"0.3.0","interfaces":[{"name":"only"}]}`,
		},
		"1.0.0": {
			`{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/x"}],"ips":[{"interface":1,"address":"10.0.0.2/24"},{"interface":1,"address":"fd00::2/64"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}],"dns":{"domain":"d"}}`,
			`{"cniVersion":"1.0.0","unknown":{"key":[1,2,3]},"interfaces":[]}`,
			`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1500,"socketPath":"/s","pciID":"p"}],"ips":[{"address":"10.0.0.2/24"}],"routes":[{"dst":"10.1.0.0/16","mtu":1400,"advmss":1360,"priority":0,"table":1000,"scope":253}]}`,
			`{"cniVersion":"1.1.0","routes":[{"dst":"::/0","priority":1}],"dns":{"options":["o"]}}`,
		},
		"any": {
			`{"dns":{}}`, // loopback v0.8.2
			`{"cniVersion":"","dns":{"domain":"no version"}}`,
			`null`,
			` {"dns":{"domain":"white space"}} ` + "\n\n",
			`{"code":7,"msg":"an error that exits with 0"}`,
		},
	}
	family := map[string]string{"-": "0.2.0", "0.1.0": "0.2.0", "0.3.0": "0.4.0", "0.3.1": "0.4.0", "1.1.0": "1.0.0"}
	if f, ok := family[version]; ok {
		version = f
	}
	if g.chance(25) {
		version = pick(g, "0.2.0", "0.4.0", "1.0.0", "any")
	}
	steps := []string{say(pick(g, results[version]...)), "exit 0"}
	if g.chance(10) {
		steps = append([]string{warn("a word on the way\n")}, steps...)
	}
	return steps
}

// addFailure is an ADD that goes wrong: by exit status, or by a result that no one can read.
func (g generator) addFailure() []string {
	if g.chance(70) {
		return g.failure()
	}
	return []string{say(pick(g,
		"", "garbage", "{", `"a string"`, "[]", "{}{}",
		`{"cniVersion":"9.9.9"}`,
		`{"cniVersion":"1.0.0","ips":[{"address":"not an address"}]}`,
		`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.1"}]}`,
	)), "exit 0"}
}

// failure is a call that exits non-zero or dies.
func (g generator) failure() []string {
	switch g.IntN(9) {
	case 0, 1:
		return []string{failure(pick(g, 1, 3, 7, 11, 50, 100, 999, 12345), pick(g, "it went wrong", "running [iptables -N X]: exit status 4: \"x\"", "<&> ü"), pick(g, "", "in detail", "a; b"))}
	case 2:
		return []string{warn("dying words\nin \"two\" lines\n"), fmt.Sprint("exit ", pick(g, 1, 2, 255))}
	case 3:
		return []string{fmt.Sprint("exit ", pick(g, 1, 3, 127))}
	case 4:
		return []string{fmt.Sprint("kill ", pick(g, 9, 11, 6, 15))}
	case 5:
		return []string{warn("then a signal"), fmt.Sprint("kill ", pick(g, 9, 11))}
	case 6:
		return []string{say(pick(g, "garbage", "{", "[]", `{"code":"seven"}`, `{"code":7,"msg":"m","details":{}}`, "{}{}")), "exit 1"}
	case 7:
		return []string{say(pick(g, `{}`, "null", `{"code":0,"msg":""}`, `{"msg":"no code"}`, `{"code":7,"msg":"","details":"only details"}`)), "exit 1"}
	default:
		return []string{warn("on stderr"), failure(100, "on stdout", "")}
	}
}
