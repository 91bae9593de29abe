// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// nothingHappened demands that no plugin was called and nothing written.
func (h *host) nothingHappened() {
	h.t.Helper()
	if calls := h.peek(); len(calls) > 0 {
		h.t.Errorf("plugins were called: %v", order(calls))
	}
	if _, err := os.Lstat(h.run); err == nil {
		files, _ := filepath.Glob(filepath.Join(h.run, "*"))
		h.t.Errorf("%s was made, with %v", h.run, files)
	}
}

// TestADD_badConfiguration: refused with code 7 and the name of what is wrong, before anything has changed.
func TestADD_badConfiguration(t *testing.T) {
	t.Parallel()
	good := []entry{{"type": "a"}}
	tests := []struct {
		name string
		more entry // of the lockwrap entry
		want []string
	}{
		{"delegates missing", entry{"delegates": nil}, []string{"delegates"}},
		{"delegates empty", entry{"delegates": []entry{}}, []string{"delegates"}},
		{"delegates an object", entry{"delegates": entry{"type": "a"}}, []string{"delegates"}},
		{"delegates a string", entry{"delegates": "a"}, []string{"delegates"}},
		{"delegate a string", entry{"delegates": []any{"bridge"}}, []string{"delegate", "1"}},
		{"delegate null", entry{"delegates": []any{nil}}, []string{"delegate", "1"}},
		{"delegate a list", entry{"delegates": []any{[]any{entry{"type": "a"}}}}, []string{"delegate", "1"}},
		{"third delegate without type", entry{"delegates": []entry{{"type": "a"}, {"type": "b"}, {"bridge": "x"}}}, []string{"3", "type"}},
		{"delegate with empty type", entry{"delegates": []entry{{"type": ""}}}, []string{"type"}},
		{"delegate with a number for type", entry{"delegates": []entry{{"type": 7}}}, []string{"type"}},
		{"delegate with a path", entry{"delegates": []entry{{"type": "/opt/cni/bin/bridge"}}}, []string{"/opt/cni/bin/bridge"}},
		{"delegate with a way out", entry{"delegates": []entry{{"type": "../bin/a"}}}, []string{"../bin/a"}},
		{"delegate is a directory up", entry{"delegates": []entry{{"type": ".."}}}, []string{".."}},
		{"lockwrap in lockwrap", entry{"delegates": []entry{{"type": "a"}, {"type": "lockwrap", "delegates": good}}}, []string{"lockwrap inside lockwrap"}},
		{"capabilities a list", entry{"delegates": []entry{{"type": "a", "capabilities": []string{"ips"}}}}, []string{"capabilities"}},
		{"capabilities not bools", entry{"delegates": []entry{{"type": "a", "capabilities": entry{"ips": "yes"}}}}, []string{"capabilities"}},
		{"delegate's name a number", entry{"delegates": []entry{{"type": "a", "name": 1}}}, []string{"name"}},
		{"delegate's cniVersion a list", entry{"delegates": []entry{{"type": "a", "cniVersion": []int{1}}}}, []string{"cniVersion"}},
		{"delegate's ipam a string", entry{"delegates": []entry{{"type": "a", "ipam": "host-local"}}}, []string{"ipam"}},
		{"delegate's prevResult a list", entry{"delegates": []entry{{"type": "a", "prevResult": []int{}}}}, []string{"prevResult"}},
		{"delegate not there", entry{"delegates": []entry{{"type": "a"}, {"type": "nowhere"}}}, []string{`"nowhere"`, "CNI_PATH", lockwrapDir}},
		{"unknown key", entry{"lockfile": "/x"}, []string{`"lockfile"`, "/x"}},
		{"key of a plugin", entry{"ipMasq": true}, []string{`"ipMasq"`, "true"}},
		{"capabilities of its own not bools", entry{"capabilities": entry{"ips": 1}}, []string{"capabilities"}},
		{"chains a string", entry{"chains": "MY-CHAIN"}, []string{"chains", "MY-CHAIN"}},
		{"chain without name", entry{"chains": []entry{{"table": "nat"}}}, []string{"chains"}},
		{"relative lockFile", entry{"lockFile": "run/lock"}, []string{"lockFile", "run/lock"}},
		{"empty lockFile", entry{"lockFile": ""}, []string{"lockFile"}},
		{"lockFile a number", entry{"lockFile": 1}, []string{"lockFile", "1"}},
		{"relative stateDir", entry{"stateDir": "."}, []string{"stateDir"}},
		{"relative logFile", entry{"logFile": "log"}, []string{"logFile", "log"}},
		{"lockTimeout zero", entry{"lockTimeout": "0s"}, []string{"lockTimeout", "0s"}},
		{"lockTimeout negative", entry{"lockTimeout": "-1m"}, []string{"lockTimeout", "-1m"}},
		{"lockTimeout without unit", entry{"lockTimeout": "120"}, []string{"lockTimeout", "120"}},
		{"lockTimeout a number", entry{"lockTimeout": 120}, []string{"lockTimeout", "120"}},
		{"lockTimeout garbage", entry{"lockTimeout": "soon"}, []string{"lockTimeout", "soon"}},
		{"lockTimeout too big", entry{"lockTimeout": "9999999999h"}, []string{"lockTimeout", "9999999999h"}},
		{"lockTimeout null", entry{"lockTimeout": nil}, []string{"lockTimeout"}},
		{"pluginTimeout zero", entry{"pluginTimeout": "0"}, []string{"pluginTimeout"}},
		{"pluginTimeout a list", entry{"pluginTimeout": []string{"2m"}}, []string{"pluginTimeout"}},
		{"logLevel unknown", entry{"logLevel": "loud"}, []string{"logLevel", "loud"}},
		{"runtimeConfig a string", entry{"runtimeConfig": "x"}, []string{"runtimeConfig"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b")
			e := h.wrap(tt.more)
			if _, ok := tt.more["delegates"]; !ok {
				e["delegates"] = good
			}
			if e["delegates"] == nil {
				delete(e, "delegates")
			}
			e["name"], e["cniVersion"] = network, "1.0.0"
			conf, err := json.Marshal(e)
			h.must(err)
			got := h.call(call{verb: "ADD", conf: string(conf)}).failure(t)
			if got.Code != types.ErrInvalidNetworkConfig {
				t.Errorf("code %d instead of 7", got.Code)
			}
			if !strings.HasPrefix(got.Msg, "lockwrap: ") {
				t.Errorf("does not say whose message it is: %s", got.Msg)
			}
			for _, w := range tt.want {
				if !strings.Contains(got.Msg, w) {
					t.Errorf("does not name %s: %s", w, got.Msg)
				}
			}
			h.nothingHappened()
		})
	}
}

// TestDEL_ownMessages: go-cni takes a DEL that fails with one of these texts for a success (R29).
func TestDEL_ownMessages(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		more     entry
		delegate string
		unset    []string
	}{
		{name: "delegate not there", delegate: "nowhere"},
		{name: "unknown key", delegate: "a", more: entry{"not found": true}},
		{name: "lock file below a file", delegate: "a", more: entry{"lockFile": "/proc/self/exe/lock"}},
		{name: "lock directory cannot be", delegate: "a", more: entry{"lockFile": "/proc/no/such/directory/lock"}},
		{name: "no CNI_PATH", delegate: "a", unset: []string{"CNI_PATH"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			conf := h.conf("1.0.0", tt.more, entry{"type": tt.delegate})
			got := h.call(call{verb: "DEL", conf: conf, unset: tt.unset}).failure(t)
			text := got.Error()
			for _, swallowed := range []string{"not found", "no such file or directory"} {
				if strings.Contains(text, swallowed) {
					t.Errorf("says %q: %s", swallowed, text)
				}
			}
			if len(h.calls()) > 0 {
				t.Error("a plugin was called")
			}
		})
	}
}

// TestADD_capabilityNotHoisted: the runtime would never pass the port mappings (multus-cni#544, R3).
func TestADD_capabilityNotHoisted(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		declared any // "capabilities" of the lockwrap entry
		passed   any // its "runtimeConfig"
		delegate any
		ok       bool
	}{
		{name: "declared", declared: entry{"portMappings": true}, delegate: entry{"portMappings": true}, ok: true},
		{name: "none declared", delegate: entry{"portMappings": true}},
		{name: "another declared", declared: entry{"bandwidth": true}, delegate: entry{"portMappings": true}},
		{name: "declared false", declared: entry{"portMappings": false}, delegate: entry{"portMappings": true}},
		{name: "passed all the same", passed: entry{"portMappings": []any{}}, delegate: entry{"portMappings": true}, ok: true},
		{name: "delegate does not want it", delegate: entry{"portMappings": false}, ok: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b")
			e := entry{
				"name": network, "cniVersion": "1.1.0", "type": "lockwrap", "lockFile": h.lockFile, "stateDir": h.run,
				"delegates": []entry{{"type": "a"}, {"type": "b", "capabilities": tt.delegate}},
			}
			if tt.declared != nil {
				e["capabilities"] = tt.declared
			}
			if tt.passed != nil {
				e["runtimeConfig"] = tt.passed
			}
			b, err := json.Marshal(e)
			h.must(err)
			add := h.call(call{verb: "ADD", conf: string(b)})
			if tt.ok {
				add.ok(t)
			} else {
				got := add.failure(t)
				if got.Code != 7 || !strings.Contains(got.Msg, "portMappings") || !strings.Contains(got.Msg, `"b"`) {
					t.Errorf("want code 7 with the capability and the plugin: %+v", got)
				}
				h.nothingHappened()
			}
			for _, verb := range []string{"CHECK", "DEL", "GC", "STATUS"} { // the other verbs only warn
				h.call(call{verb: verb, conf: string(b)}).ok(t)
			}
		})
	}
}

// TestAnyVerb_badStdin: whatever comes in, one JSON error goes out.
func TestAnyVerb_badStdin(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	good := h.conf("1.1.0", nil, entry{"type": "a"})
	named := func(name string) string {
		return strings.Replace(good, `"name":"net"`, fmt.Sprintf(`"name":%q`, name), 1)
	}
	tests := []struct {
		name, conf string
		want       string
	}{
		{"empty", "", ""},
		{"white space", " \n", ""},
		{"null", "null", ""},
		{"a number", "7", ""},
		{"a string", `"lockwrap"`, ""},
		{"an array", "[" + good + "]", ""},
		{"empty object", "{}", ""},
		{"cut off", good[:len(good)/2], ""},
		{"two documents", good + good, ""},
		{"comment", "// c\n" + good, ""},
		{"byte order mark", "\xef\xbb\xbf" + good, ""},
		{"binary", "\x00\x01\x02", ""},
		{"nested for ever", strings.Repeat("[", 100_000), ""},
		{"delegates nested for ever", strings.Replace(good, `"delegates":[`, `"delegates":[`+strings.Repeat("[", 100_000), 1), ""},
		{"no name", strings.Replace(good, `"name":"net"`, `"nom":"net"`, 1), "name"},
		{"empty name", named(""), "name"},
		{"name with a slash", named("a/b"), "a/b"},
		{"name is a way out", named("../../x"), "../../x"},
		{"name of dots", named(".."), ".."},
		{"name with white space", named("a b"), "a b"},
		{"name a number", strings.Replace(good, `"name":"net"`, `"name":7`, 1), "name"},
		{"cniVersion a number", strings.Replace(good, `"cniVersion":"1.1.0"`, `"cniVersion":1`, 1), "cniVersion"},
		{"cniVersion from the future", strings.Replace(good, `"cniVersion":"1.1.0"`, `"cniVersion":"9.9.9"`, 1), ""},
		{"cniVersion garbage", strings.Replace(good, `"cniVersion":"1.1.0"`, `"cniVersion":"new"`, 1), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			verbs := []string{"ADD", "CHECK", "DEL", "GC", "STATUS"}
			if testing.Short() {
				verbs = verbs[:1]
			}
			for _, verb := range verbs {
				got := h.call(call{verb: verb, conf: tt.conf}).failure(t)
				if !strings.Contains(got.Error(), tt.want) {
					t.Errorf("%s: does not name %s: %v", verb, tt.want, got.Error())
				}
			}
		})
	}
	t.Cleanup(h.nothingHappened)
}

// TestAnyVerb_badEnvironment: skel's own checks, which every plugin has (code 4).
func TestAnyVerb_badEnvironment(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		verb  string
		unset []string
		env   []string
		want  string
	}{
		{name: "unknown verb", verb: "ADDD", want: "ADDD"},
		{name: "verb in small letters", verb: "add", want: "add"},
		{name: "no container", verb: "ADD", unset: []string{"CNI_CONTAINERID"}, want: "CNI_CONTAINERID"},
		{name: "empty container", verb: "DEL", env: []string{"CNI_CONTAINERID="}, want: "CNI_CONTAINERID"},
		{name: "container is a way out", verb: "ADD", env: []string{"CNI_CONTAINERID=../../x"}, want: "container"},
		{name: "container with a slash on DEL", verb: "DEL", env: []string{"CNI_CONTAINERID=a/b"}, want: "container"},
		{name: "container with a newline", verb: "CHECK", env: []string{"CNI_CONTAINERID=a\nb"}, want: "container"},
		{name: "no namespace", verb: "ADD", unset: []string{"CNI_NETNS"}, want: "CNI_NETNS"},
		{name: "no interface", verb: "ADD", unset: []string{"CNI_IFNAME"}, want: "CNI_IFNAME"},
		{name: "interface too long", verb: "ADD", env: []string{"CNI_IFNAME=averyverylongname"}, want: "interface"},
		{name: "interface is a way out", verb: "DEL", env: []string{"CNI_IFNAME=../x"}, want: "interface"},
		{name: "interface is a dot", verb: "ADD", env: []string{"CNI_IFNAME=."}, want: "interface"},
		{name: "no path", verb: "ADD", unset: []string{"CNI_PATH"}, want: "CNI_PATH"},
		{name: "no path on STATUS", verb: "STATUS", unset: []string{"CNI_PATH"}, want: "CNI_PATH"},
		{name: "nothing but the verb", verb: "DEL", unset: []string{"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH", "CNI_NETNS", "CNI_ARGS"}, want: "CNI_CONTAINERID"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			conf := h.conf("1.1.0", nil, entry{"type": "a"})
			got := h.call(call{verb: tt.verb, conf: conf, unset: tt.unset, env: tt.env}).failure(t)
			if got.Code != types.ErrInvalidEnvironmentVariables {
				t.Errorf("code %d instead of 4", got.Code)
			}
			if !strings.Contains(got.Error(), tt.want) {
				t.Errorf("does not name %s: %v", tt.want, got.Error())
			}
			h.nothingHappened()
		})
	}
}

// TestAnyVerb_oddButRight: what looks wrong and is allowed must work.
func TestAnyVerb_oddButRight(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		env  []string
	}{
		{"args lockwrap has never heard of", []string{"CNI_ARGS=FOO=bar;;=;x"}},                                        // cni#560
		{"args that hold JSON", []string{`CNI_ARGS=CONSUL_IPTABLES_CONFIG={"a":[1,2],"b":"c;d"};IgnoreUnknown=false`}}, // nomad PR 20183
		{"args of 64 KiB", []string{"CNI_ARGS=A=" + strings.Repeat("x", 64<<10)}},
		{"longest interface name", []string{"CNI_IFNAME=abcdefghijklmno"}},
		{"long container id", []string{"CNI_CONTAINERID=" + strings.Repeat("c", 200)}},
		{"empty directories on the path", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			env := append([]string{"CNI_PATH=:" + strings.Join(h.path(), "::") + ":"}, tt.env...)
			for _, verb := range []string{"ADD", "CHECK", "DEL"} {
				h.call(call{verb: verb, conf: h.conf("1.0.0", nil, entry{"type": "a"}), env: env}).ok(t)
				calls := h.calls()
				if len(calls) != 1 {
					t.Fatalf("%s: %v", verb, order(calls))
				}
				for _, kv := range tt.env {
					k, v, _ := strings.Cut(kv, "=")
					if got, _ := calls[0].getenv(k); got != v {
						t.Errorf("%s: %s arrived as %.80q", verb, k, got)
					}
				}
			}
			if left := h.records(); len(left) > 0 {
				t.Errorf("records left: %v", left)
			}
		})
	}
}

// TestADD_numbersWithoutLoss: libcni makes floats of them on both sides, lockwrap must not on its own.
func TestADD_numbersWithoutLoss(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	odd := `"k":[18446744073709551617,9007199254740993,-0,1E-7,1.0,1e400,"<&>\u2028\/"],"K":{"Type":"x","type":null},"type ":1`
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","type":"lockwrap","lockFile":%q,"stateDir":%q,"prevResult":{"cniVersion":"1.0.0","x":123456789012345678901},
		"delegates":[{"type":"a",%s},{"type":"b",%s}]}`, h.lockFile, h.run, odd, odd)
	h.call(call{verb: "ADD", conf: conf}).ok(t)
	h.call(call{verb: "DEL", conf: conf}).ok(t)
	calls := h.calls()
	if got := order(calls); strings.Join(got, ",") != "ADD a,ADD b,DEL b,DEL a" {
		t.Fatal(got)
	}
	want, _ := json.Marshal(decode(t, "{"+odd+"}"))
	for _, c := range calls {
		got := c.conf(t)
		for _, k := range []string{"cniVersion", "name", "type", "prevResult"} {
			delete(got, k)
		}
		if b, _ := json.Marshal(got); !bytes.Equal(b, want) {
			t.Errorf("%s: got %s, want %s", c, b, want)
		}
	}
	// What came from before the list is passed on as it came, unknown keys and all.
	for _, c := range []record{calls[0], calls[2], calls[3]} {
		if got, _ := json.Marshal(c.conf(t)["prevResult"]); string(got) != `{"cniVersion":"1.0.0","x":123456789012345678901}` {
			t.Errorf("%s: prevResult %s", c, got)
		}
	}
}

// TestCommand_notAPlugin: a wrong command line is no CNI call.
func TestCommand_notAPlugin(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"ADD"}, {"--nonsense"}, {"wrap"}, {"nonsense", "x"}} {
		cmd := exec.Command(lockwrapBin, args...)
		out, err := cmd.Output()
		if err == nil || len(out) > 0 {
			t.Errorf("%v: %v, stdout %q", args, err, out)
		}
	}
}
