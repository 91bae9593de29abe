// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
)

// fuzzObject demands exactly one JSON document, an object.
func fuzzObject(t *testing.T, data []byte) map[string]json.RawMessage {
	t.Helper()
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil || object == nil {
		t.Fatalf("not one JSON object (%v): %.300q", err, data)
	}
	return object
}

// fuzzError demands an error that a runtime can be given: a CNI error that prints as one JSON document.
func fuzzError(t *testing.T, err error) *types.Error {
	t.Helper()
	var cniErr *types.Error
	if !errors.As(err, &cniErr) || cniErr == nil {
		t.Fatalf("not a CNI error: %v", err)
	}
	if cniErr.Msg == "" {
		t.Fatal("an error without a message")
	}
	fuzzObject(t, mustMarshal(cniErr))
	return cniErr
}

// fuzzOwnError demands an error of lockwrap's own that go-cni does not swallow and that is formatted as it should be.
func fuzzOwnError(t *testing.T, err error, input string) *types.Error {
	t.Helper()
	cniErr := fuzzError(t, err)
	text := cniErr.Error()
	if cniErr.Code == 0 || !strings.HasPrefix(cniErr.Msg, "lockwrap: ") {
		t.Fatalf("code %d, %q", cniErr.Code, cniErr.Msg)
	}
	for _, swallowed := range []string{"not found", "no such file or directory"} {
		if strings.Contains(text, swallowed) {
			t.Fatalf("go-cni would swallow %q", text)
		}
	}
	if strings.Contains(text, "%!") && !strings.Contains(input, "%") {
		t.Fatalf("badly formatted: %q", text)
	}
	return cniErr
}

// fuzzEnviron names an empty configuration: that of the machine must not reach a test.
func fuzzEnviron(f *testing.F) []string {
	f.Helper()
	path := filepath.Join(f.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		f.Fatal(err)
	}
	return []string{"LOCKWRAP_CONFIG=" + path}
}

func checkSettings(t *testing.T, s Settings) {
	t.Helper()
	for _, path := range append([]string{s.LockFile, s.StateDir}, s.PluginDirs...) {
		if !filepath.IsAbs(path) {
			t.Fatalf("path %q", path)
		}
	}
	for _, path := range []string{s.LockFile, s.StateDir, s.LogFile} {
		if path != "" && path != filepath.Clean(path) || strings.ContainsRune(path, 0) {
			t.Fatalf("path %q", path)
		}
	}
	if s.LockTimeout <= 0 || s.PluginTimeout <= 0 || s.LogFile != "" && !filepath.IsAbs(s.LogFile) {
		t.Fatalf("%+v", s)
	}
}

// checkChain demands what iptables can be asked for: a chain's name has at most 28 bytes, and no argument has a NUL.
func checkChain(t *testing.T, c Chain) {
	t.Helper()
	if !slices.Contains(tables, c.Table) || c.Name == "" || len(c.Name) > 28 ||
		strings.ContainsAny(c.Name, " \t\n\x00") || c.Name[0] == '-' {
		t.Fatalf("chain %+q", c)
	}
}

func compactJSON(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		t.Fatalf("not JSON: %v: %q", err, raw)
	}
	return b.String()
}

// FuzzEntry: an entry is refused with an error for the runtime, or what comes of it is what the delegates must get.
func FuzzEntry(f *testing.F) {
	environ := fuzzEnviron(f)
	for _, stdin := range []string{
		entry(`, "capabilities": {"portMappings": true}, "chains": [{"table": "nat", "name": "X"}]`),
		entry(`, "args": {"cni": {"a": 1}}, "runtimeConfig": {"a": null}, "prevResult": []`),
		entry(`, "lockFile": "/run/l", "stateDir": "/run", "lockTimeout": "1s", "pluginTimeout": "1m", "logFile": "/l", "logLevel": "warn"`),
		entry(`, "deviceID": "d", "cni.dev/attachments": [], "cniVersion": "1.0.0", "not found": 1`),
		`{"name": "web", "delegates": [{"Type": "a", "capabilities": null, "args": {}}]}`,
		`{"name": "web", "delegates": [{"type": "a", "name": "own", "cniVersion": "0.1.0", "capabilities": {"ips": true},
			"args": {"cni": {"k": 1}}, "runtimeConfig": {"ips": 1}}], "capabilities": {"ips": true}, "runtimeConfig": {"ips": []}}`,
		`{"name": "web", "delegates": [{"type": "firewall", "ipam": {"subnet": "10.0.0.0/8"}}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`,
		`{"name": 7}`, `{}`, `[]`, ``, `{"name": "", "delegates": [{"type": "../x"}]}`, `{"name": "a", "delegates": [{"type": "lockwrap"}]}`,
	} {
		f.Add(stdin)
	}
	f.Fuzz(func(t *testing.T, stdin string) {
		conf, err := parse([]byte(stdin), environ)
		if err != nil {
			fuzzOwnError(t, err, stdin)
			return
		}
		checkSettings(t, conf.Settings)
		for _, chain := range conf.Chains {
			checkChain(t, chain)
		}
		if len(conf.Delegates) == 0 {
			t.Fatal("no delegates and no error")
		}
		hoisted := conf.CheckCapabilities()
		if hoisted != nil {
			fuzzOwnError(t, hoisted, stdin)
		}
		for _, d := range conf.Delegates {
			if d.Type == "" || d.Type == pluginName || strings.ContainsAny(d.Type, "/\x00") {
				t.Fatalf("delegate type %q", d.Type)
			}
			for name, wanted := range d.capabilities {
				_, passed := conf.runtimeConfig[name]
				if hoisted == nil && wanted && !passed && !conf.Capabilities[name] {
					t.Fatalf("capability %q of %q would be lost silently", name, d.Type)
				}
			}
			for _, verb := range []string{"ADD", "GC"} {
				checkDelegateConfig(t, conf, d, verb)
			}
		}
		shared := conf.SharedChains()
		for i, chain := range shared {
			checkChain(t, chain.Chain)
			if slices.Contains(shared[:i], chain) {
				t.Fatalf("%v is there twice", chain)
			}
		}
		again, err := ParseEntry([]byte(stdin), conf.Name, conf.CNIVersion, environ)
		if err != nil || again.Settings.LockFile != conf.LockFile || len(again.Delegates) != len(conf.Delegates) {
			t.Fatalf("the operator's commands see another entry: %v", err)
		}
	})
}

// checkDelegateConfig: a delegate gets its entry as it stood in the list, but for what libcni sets or replaces.
func checkDelegateConfig(t *testing.T, conf *NetConf, d *delegate, verb string) {
	t.Helper()
	before := maps.Clone(d.entry)
	got := fuzzObject(t, mustMarshal(conf.config(d, verb)))
	if !reflect.DeepEqual(before, d.entry) {
		t.Fatal("the entry has changed")
	}
	for key, want := range map[string]string{"name": conf.Name, "cniVersion": conf.CNIVersion} {
		var s string
		if err := json.Unmarshal(got[key], &s); err != nil || s != want {
			t.Fatalf("%s is %s, not %q", key, got[key], want)
		}
	}
	share := map[string]json.RawMessage{}
	for name, wanted := range d.capabilities {
		if value, ok := conf.runtimeConfig[name]; ok && wanted && verb == "ADD" {
			share[name] = value
		}
	}
	if len(share) > 0 && compactJSON(t, got["runtimeConfig"]) != compactJSON(t, mustMarshal(share)) {
		t.Fatalf("runtimeConfig is %s, not %s", got["runtimeConfig"], mustMarshal(share))
	}
	for key, value := range d.entry {
		_, passed := conf.passed[key]
		if key == "name" || key == "cniVersion" || key == "args" && conf.args != nil || key == "runtimeConfig" && len(share) > 0 || passed {
			continue
		}
		if compactJSON(t, got[key]) != compactJSON(t, mustMarshal(value)) {
			t.Fatalf("%q was %s and is %s", key, value, got[key])
		}
	}
	for key := range got {
		_, own := d.entry[key]
		_, passed := conf.passed[key]
		if !own && !passed && !slices.Contains([]string{"name", "cniVersion", "args", "runtimeConfig"}, key) {
			t.Fatalf("%q came from nowhere", key)
		}
	}
}

// FuzzSettings: the host's configuration is refused with its path, or all that comes of it can be used.
func FuzzSettings(f *testing.F) {
	path := filepath.Join(f.TempDir(), "config.json")
	for _, data := range []string{
		`{"lockFile": "/run/l", "stateDir": "/run/../x", "lockTimeout": "1s", "pluginTimeout": "1m", "logFile": "/l", "logLevel": "warn"}`,
		`{"pluginDirs": ["/a", "/b"]}`, `{"pluginDirs": []}`, `{"lockTimeout": "-1s"}`, `{"lockFile": "x"}`, `{"x": [1]}`, `null`, ``, `{}`,
	} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := HostSettings([]string{"LOCKWRAP_CONFIG=" + path})
		if err == nil {
			checkSettings(t, s)
			return
		}
		if cniErr := fuzzOwnError(t, err, string(data)); cniErr.Code != types.ErrInvalidNetworkConfig || !strings.Contains(cniErr.Msg, path) {
			t.Fatal(cniErr)
		}
	})
}

// FuzzExcerpt: a value in a message is short and whole characters.
func FuzzExcerpt(f *testing.F) {
	f.Add(`{"a": [1, 2]}`)
	f.Add(`"` + strings.Repeat("é", 60) + `"`)
	f.Add(`"a` + strings.Repeat("é", 60) + `"`)
	f.Add(`{`)
	f.Fuzz(func(t *testing.T, raw string) {
		got := excerpt(json.RawMessage(raw))
		if len(got) > 83 || utf8.ValidString(raw) && !utf8.ValidString(got) {
			t.Fatalf("%d bytes: %q", len(got), got)
		}
	})
}

// FuzzRecord: whatever is read can be written and read back as the same, and nothing that looks into a record breaks on it.
func FuzzRecord(f *testing.F) {
	seed := func(change func(*record)) {
		r := testRecord()
		r.Version = recordVersion
		change(r)
		f.Add([]byte(mustMarshal(r)))
	}
	seed(func(*record) {})
	seed(func(r *record) { r.Leftover, r.Since, r.Args = testRecord(), time.Unix(1<<30, 5), "A=B" })
	seed(func(r *record) {
		r.Others, r.StandIn, r.Running = []*record{testRecord()}, true, -1
		r.Others[0].Version = recordVersion
	})
	for _, state := range []string{stateAdded, stateDeleting, stateUndone} {
		seed(func(r *record) { r.State = state })
	}
	f.Add([]byte(`{"version":1,"state":"added","delegates":[{"type":"a","config":null,"result":[]}]}`))
	f.Add([]byte(`{"version":1,"state":"added","prevResult":{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/8"},"ip6":{"ip":"fd00::1/8"}}}`))
	f.Add([]byte(`{"version":1,"state":"added","prevResult":{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.1/8","interface":0}]}}`))
	f.Add([]byte(`{"version":2}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRecord(data)
		if err != nil {
			return
		}
		useRecord(t, r)

		// The names are part of a path, and a fuzzed one must not lead out of the directory.
		var name func(r *record)
		name = func(r *record) {
			if r == nil {
				return
			}
			r.Network, r.Container, r.IfName, r.NetNS = "net", "c", "eth0", ""
			name(r.Leftover)
			for _, other := range r.Others {
				name(other)
			}
		}
		name(r)
		_ = r.attachment("file")
		if err := r.save(dir); err != nil {
			t.Fatalf("cannot be saved: %v", err)
		}
		back, err := readRecord(r.path(dir))
		if err != nil || back == nil {
			t.Fatalf("cannot be read back: %v", err)
		}
		// Not cmp.Diff of the two: white space in a configuration is not kept.
		if got, want := mustMarshal(back), mustMarshal(r); !bytes.Equal(got, want) {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
		count := 1 + len(r.Others)
		own, others, err := loadRecord(dir, r, noSibling)
		if err != nil || own == nil || 1+len(others) != count {
			t.Fatalf("finds %v and %d others: %v", own, len(others), err)
		}
		if err := own.remove(dir); err != nil {
			t.Fatalf("cannot be removed: %v", err)
		}
		if head, err := readRecord(r.path(dir)); err != nil || head == nil && count > 1 || head != nil && 1+len(head.Others) != count-1 {
			t.Fatalf("after the removal of one of %d there is %v: %v", count, head, err)
		}
		_ = os.Remove(r.path(dir))
	})
}

// useRecord calls all that looks into a record without touching the machine.
func useRecord(t *testing.T, r *record) {
	t.Helper()
	_ = r.running()
	last := r.lastResult()
	_ = resultAddresses(last)
	_ = resultFamilies(last)
	for i, d := range r.Delegates {
		if config := mustMarshal(withPrevResult(d.Config, last)); d.Config != nil || last != nil {
			fuzzObject(t, config)
		}
		_ = r.runtimeConfig(i, d.Type)
		_ = r.resultBefore(d.Type)
		_ = masquerades(d.Type, d.Config)
		if at := r.linkOf(d.Type); at < 0 || at > i || r.Delegates[at].Type != d.Type {
			t.Fatalf("link %d of type %q is at %d", i, d.Type, at)
		}
	}
	_, _, _ = r.runtimeConfig(-1, "a"), r.resultBefore("nobody"), r.runtimeConfig(len(r.Delegates), "a")
	for _, v := range append(version.All.SupportedVersions(), "", "x", "9.9.9") {
		if result := r.prevResultForDel(v); result != nil {
			if got := fuzzObject(t, result); string(got["cniVersion"]) != string(quote(v)) {
				t.Fatalf("asked for %s, got %s", v, result)
			}
		}
	}
	for _, d := range slices.Clone(r.Delegates) {
		links := *r
		links.Delegates = slices.Clone(r.Delegates)
		if more := links.dropLink(d.Type); links.linkOf(d.Type) >= 0 || more != (len(links.Delegates) > 0) {
			t.Fatalf("dropped %q, left %v", d.Type, links.Delegates)
		}
	}
	forgotten := *r
	forgotten.forget()
	if forgotten.lastResult() != nil || forgotten.linkOf("") >= 0 {
		t.Fatal("has not forgotten")
	}
	if r.Leftover != nil {
		useRecord(t, r.Leftover)
	}
}

// FuzzNote: a holder's note is read as it was written, though the rest of a longer one follows; anything else is no note.
func FuzzNote(f *testing.F) {
	path := filepath.Join(f.TempDir(), "lock")
	f.Add(4711, "ADD", "web", "c1", "eth0", 4712, "portmap", `"group":1}`+"\n")
	f.Add(-1, "", "\x00", `"}`, "\xff", 0, "not found", "")
	f.Add(0, "chains", "é", "", "", -5, "{", "{")
	f.Fuzz(func(t *testing.T, pid int, verb, network, container, ifName string, group int, plugin, rest string) {
		want := note{PID: pid, Verb: verb, Network: network, Container: container, IfName: ifName, Group: group, Plugin: plugin,
			Since: time.Unix(int64(pid), 0).UTC()}
		if y := want.Since.Year(); y < 0 || y > 9999 {
			want.Since = time.Time{}
		}
		// What is not UTF-8 is written as an escape and written anew as a character.
		for _, s := range []*string{&want.Verb, &want.Network, &want.Container, &want.IfName, &want.Plugin} {
			*s = strings.ToValidUTF8(*s, "\uFFFD")
		}
		written := mustMarshal(want)
		for content, isNote := range map[string]bool{string(written) + "\n" + rest: true, rest: false, string(written[:len(written)-1]): false} {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			got := readNote(path)
			if isNote && !bytes.Equal(mustMarshal(got), written) {
				t.Fatalf("got  %s\nwant %s", mustMarshal(got), written)
			}
			if content == string(written[:len(written)-1]) && got != (note{}) {
				t.Fatalf("half a note gives %+v", got)
			}
			_ = mustMarshal(got)
		}
	})
}

// FuzzProc: a process may have any name, and the lines of other locks any content.
func FuzzProc(f *testing.F) {
	f.Add("7 (a) S 1 (b)) S 10 20", 10, 20, uint64(555), "1: POSIX  ADVISORY  READ 5 00:19:1234 0 EOF", uint8(0), uint64(1234))
	f.Add("a) R 1 2 3", -1, 0, uint64(math.MaxUint64), "2: -> FLOCK", uint8(8), uint64(1))
	f.Add("\n", 1, 1, uint64(0), "", uint8(255), uint64(math.MaxUint64))
	f.Fuzz(func(t *testing.T, comm string, parent, group int, start uint64, other string, minor uint8, inode uint64) {
		_, _ = parseStat(comm)
		stat := fmt.Sprintf("7 (%s) S %d %d 20 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 %d 1 2\n", comm, parent, group, start)
		if p, err := parseStat(stat); err != nil || p != (process{"S", parent, group, 20, start}) {
			t.Fatalf("%q gives %+v, %v", stat, p, err)
		}
		file := fmt.Sprintf("00:%02x:%d", minor, inode)
		_, _ = parseLocks(other, file)
		if strings.Contains(other, "FLOCK") {
			return // may be a line of the same file
		}
		other = strings.ReplaceAll(other, "\n", " ")
		locks := strings.Join([]string{
			other,
			"5: FLOCK  ADVISORY  WRITE 18 1" + file + " 0 EOF",
			"1: FLOCK  ADVISORY  WRITE 11 " + file + " 0 EOF",
			"1: -> FLOCK  ADVISORY  WRITE 12 " + file + " 0 EOF",
			other,
			// Neither another inode that ends in the same digits nor another device is this file.
			"2: FLOCK  ADVISORY  WRITE 14 00:" + fmt.Sprintf("%02x:1%d", minor, inode) + " 0 EOF",
			"3: FLOCK  ADVISORY  WRITE 15 01:" + fmt.Sprintf("%02x:%d", minor, inode) + " 0 EOF",
			"4: POSIX  ADVISORY  WRITE 16 " + file + " 0 EOF",
			"1: -> FLOCK  ADVISORY  WRITE 13 " + file + " 0 EOF",
		}, "\n")
		if holder, waiters := parseLocks(locks, file); holder != 11 || !slices.Equal(waiters, []int{12, 13}) {
			t.Fatalf("holder %d, waiters %v in\n%s", holder, waiters, locks)
		}
	})
}

// answering is a plugin that has printed something.
type answering struct {
	version.PluginDecoder
	printed []byte
}

func (a *answering) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return slices.Clone(a.printed), nil
}

func (*answering) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

// FuzzResult: what libcni would make of the last delegate's output it makes of ours, too.
func FuzzResult(f *testing.F) {
	for _, printed := range []string{
		`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"}],"ips":[{"address":"10.0.0.1/8","interface":0}],"dns":{}}` + "\n",
		`{"ips":[{"address":"fd00::1/64","gateway":"fd00::2"}],"routes":[{"dst":"0.0.0.0/0"}]}`,
		`{"ip4":{"ip":"10.0.0.1/8","routes":[{"dst":"::/0"}]},"ip6":{"ip":"fd00::1/8"}}`,
		`{"cniVersion":"","ips":[{"version":"4","address":"10.0.0.1/8"}]}`, `{"cniVersion":7}`, `null`, `{}`, `[]`, ``, "{}{}",
		`{"CNIVersion":"0.2.0","DNS":{"nameservers":["1.1.1.1"]}}`, `{"cniVersion":"9.9.9"}`,
	} {
		for _, v := range []string{"1.1.0", "0.4.0", "0.2.0", ""} {
			f.Add([]byte(printed), v, "eth0")
		}
	}
	f.Fuzz(func(t *testing.T, printed []byte, cniVersion, ifName string) {
		_, _ = resultFamilies(printed), resultAddresses(printed)
		before := &call{conf: &NetConf{prevResult: printed}, args: &skel.CmdArgs{IfName: ifName}}
		_ = before.madeBefore()

		conf := mustMarshal(map[string]string{"cniVersion": cniVersion})
		read := func(printed []byte) (types.Result, error) {
			return invoke.ExecPluginWithResult(t.Context(), "a", conf, environment(nil), &answering{printed: printed})
		}
		result, err := read(printed)
		if err != nil {
			fuzzError(t, delegateError("p: ", err))
			return
		}
		next := mustMarshal(result) // the next delegate's prevResult
		families := resultFamilies(next)
		for _, prefix := range resultAddresses(next) {
			if !prefix.IsValid() || prefix.Addr().Unmap().Is4() && !families.v4 || !prefix.Addr().Unmap().Is4() && !families.v6 {
				t.Fatalf("%s is not of %+v", prefix, families)
			}
		}
		ours := resultToPrint(printed, result)
		fuzzObject(t, ours)
		if !bytes.HasSuffix(ours, []byte("}")) && !bytes.HasSuffix(ours, []byte("}\n")) {
			t.Fatalf("ends in something else: %q", ours)
		}
		again, err := read(ours)
		if err != nil {
			t.Fatalf("libcni reads %s\nbut not  %s: %v", printed, ours, err)
		}
		if got := mustMarshal(again); !bytes.Equal(got, next) {
			t.Fatalf("libcni reads %s\nin ours, but  %s\nin the plugin's", got, next)
		}
		if _, err := create.CreateFromBytes(next); err == nil {
			r := &record{PrevResult: next}
			for _, v := range version.All.SupportedVersions() {
				_ = r.prevResultForDel(v)
			}
		}
	})
}

// FuzzFamilies: two values tell together what each of them tells, and a gateway tells nothing.
func FuzzFamilies(f *testing.F) {
	f.Add(`"10.0.0.1/8"`, `{"a": ["fd00::1"]}`)
	f.Add(`{"routes": "10.0.0.1", "x": {"Gateway": "::1"}}`, `{"subnet": "::ffff:1.2.3.4"}`)
	f.Add(`{`, `null`)
	f.Fuzz(func(t *testing.T, a, b string) {
		var first, second, both, none families
		first.addFrom(json.RawMessage(a))
		second.addFrom(json.RawMessage(b))
		if !json.Valid([]byte(a)) || !json.Valid([]byte(b)) {
			return
		}
		both.addFrom(json.RawMessage(`{"x": [` + a + `, {"y": ` + b + `}]}`))
		if want := (families{first.v4 || second.v4, first.v6 || second.v6}); both != want {
			t.Fatalf("%+v, not %+v", both, want)
		}
		if none.addFrom(json.RawMessage(`{"GateWay": ` + a + `, "dns": [` + b + `]}`)); none != (families{}) {
			t.Fatalf("%+v", none)
		}
		var s string
		if err := json.Unmarshal([]byte(a), &s); err == nil {
			_, err1 := netip.ParseAddr(s)
			_, err2 := netip.ParsePrefix(s)
			if is := err1 == nil || err2 == nil; is != (first != families{}) {
				t.Fatalf("%q gives %+v", s, first)
			}
		}
	})
}

// FuzzChains: only chains that iptables can make, whatever an entry asks for.
func FuzzChains(f *testing.F) {
	f.Add("firewall", `{"backend": "iptables", "iptablesAdminChainName": "MINE", "ingressPolicy": "same-bridge"}`, `[{"table": "nat", "name": "X"}]`)
	f.Add("portmap", `{"runtimeConfig": {"portMappings": [{}]}, "snat": false}`, `[{"table": "filter", "name": "-X"}]`)
	f.Add("portmap", `{"runtimeConfig": {"portMappings": [null]}, "externalSetMarkChain": "M"}`, `null`)
	f.Add("bridge", `{}`, `[{"Table": "raw", "NAME": "a b"}]`)
	f.Fuzz(func(t *testing.T, pluginType, config, chains string) {
		var keys map[string]json.RawMessage
		if json.Unmarshal([]byte(config), &keys) == nil {
			got := sharedChains(pluginType, keys)
			for _, chain := range got {
				checkChain(t, chain)
			}
			if pluginType != "firewall" && pluginType != "portmap" && len(got) > 0 {
				t.Fatalf("%q shares %v", pluginType, got)
			}
		}
		var conf NetConf
		if !json.Valid([]byte(chains)) || conf.takeChains(json.RawMessage(chains)) != nil {
			return
		}
		for _, chain := range conf.Chains {
			checkChain(t, chain)
		}
		var again NetConf
		if err := again.takeChains(mustMarshal(conf.Chains)); err != nil || !slices.Equal(again.Chains, conf.Chains) {
			t.Fatalf("%v, then %v: %v", conf.Chains, again.Chains, err)
		}
	})
}

// FuzzMergeArgs: of two objects each key is in the outcome, the incoming value first, and below "cni" the same again.
func FuzzMergeArgs(f *testing.F) {
	f.Add(`{"cni": {"k": 1, "l": 1}, "own": 1}`, `{"cni": {"k": 2}, "in": 2}`)
	f.Add(`{"cni": "x"}`, `{"cni": {"k": 2}}`)
	f.Add(`null`, `[]`)
	f.Fuzz(func(t *testing.T, own, incoming string) {
		if !json.Valid([]byte(incoming)) || own != "" && !json.Valid([]byte(own)) {
			return
		}
		objects := func(a, b json.RawMessage) (x, y map[string]json.RawMessage, both bool) {
			both = json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && x != nil && y != nil
			return x, y, both
		}
		merged := mergeArgs(json.RawMessage(own), json.RawMessage(incoming))
		a, b, both := objects(json.RawMessage(own), json.RawMessage(incoming))
		if !both {
			if string(merged) != incoming {
				t.Fatalf("%s", merged)
			}
			return
		}
		checkMerged(t, fuzzObject(t, merged), a, b, func(key string, got, old, value json.RawMessage) {
			x, y, both := objects(old, value)
			if key != "cni" || !both {
				if compactJSON(t, got) != compactJSON(t, mustMarshal(value)) {
					t.Fatalf("%q is %s, not %s", key, got, value)
				}
				return
			}
			checkMerged(t, fuzzObject(t, got), x, y, func(key string, got, _, value json.RawMessage) {
				if compactJSON(t, got) != compactJSON(t, mustMarshal(value)) {
					t.Fatalf("cni %q is %s, not %s", key, got, value)
				}
			})
		})
	})
}

func checkMerged(t *testing.T, got, own, incoming map[string]json.RawMessage, inBoth func(key string, got, own, incoming json.RawMessage)) {
	t.Helper()
	for key, value := range got {
		old, isOwn := own[key]
		in, isIncoming := incoming[key]
		switch {
		case isOwn && isIncoming:
			inBoth(key, value, old, in)
		case !isOwn && !isIncoming:
			t.Fatalf("%q came from nowhere", key)
		case compactJSON(t, value) != compactJSON(t, mustMarshal(append(old, in...))):
			t.Fatalf("%q is %s", key, value)
		}
	}
	for _, from := range []map[string]json.RawMessage{own, incoming} {
		for key := range from {
			if _, ok := got[key]; !ok {
				t.Fatalf("%q is lost", key)
			}
		}
	}
}

// FuzzPluginError: whatever a plugin that failed has printed, the runtime gets one error of a sensible size.
func FuzzPluginError(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","code":11,"msg":"try again","details":"later"}`), []byte("a log line\n"), false)
	f.Add([]byte(`{"code":-1,"msg":"m"}`), []byte(nil), false)
	f.Add([]byte(`{"code":1e9}{}`), []byte("\xff\x00"), true)
	f.Add([]byte(nil), []byte("exit status 3: not found"), false)
	f.Add([]byte("null"), []byte(nil), true)
	f.Add([]byte(nil), []byte(nil), false)
	f.Fuzz(func(t *testing.T, stdout, stderr []byte, own bool) {
		err := errors.New("exit status 1")
		if own {
			err = ownError(errOther, "d", "killed")
		}
		got := fuzzError(t, pluginError(err, stdout, stderr))
		var said types.Error
		switch valid := json.Unmarshal(stdout, &said) == nil; {
		case own:
			if got.Code != errOther || got.Msg != "lockwrap: killed" {
				t.Fatal(got)
			}
		case valid && said.Msg != "":
			if *got != said {
				t.Fatalf("the plugin said %+v and the runtime gets %+v", said, *got)
			}
		case len(got.Msg) > 200+10*quoted: // a byte takes up to ten in quotes
			t.Fatalf("the message has %d bytes", len(got.Msg))
		}
		if len(got.Details) > max(len(said.Details), 200+10*quoted) {
			t.Fatalf("the details have %d bytes", len(got.Details))
		}
		prefixed := fuzzError(t, delegateError("prefix: ", got))
		if prefixed.Code != got.Code || prefixed.Details != got.Details || prefixed.Msg != "prefix: "+got.Msg {
			t.Fatal(prefixed)
		}
	})
}

// FuzzStandIn: the plugin behind a stand-in gets what its stand-in got.
func FuzzStandIn(f *testing.F) {
	f.Add(`{"cniVersion": "1.0.0", "name": "web", "type": "portmap", "runtimeConfig": {"portMappings": []}, "prevResult": {"a": 1}}`)
	f.Add(`{"cniVersion": 1, "name": [], "prevResult": null, "runtimeConfig": 7, "Type": "x"}`)
	f.Add(`{"prevResult": 1, "cni.dev/attachments": [{"containerID": "c", "ifname": "e"}]}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, stdin string) {
		conf, err := parseStandIn("portmap", "/bin/portmap", defaultSettings(), []byte(stdin))
		if err != nil {
			fuzzOwnError(t, err, stdin)
			return
		}
		if len(conf.Delegates) != 1 || conf.Delegates[0].Type != "portmap" || !conf.standIn {
			t.Fatalf("%+v", conf)
		}
		got := fuzzObject(t, mustMarshal(withPrevResult(conf.config(conf.Delegates[0], "ADD"), conf.prevResult)))
		want := fuzzObject(t, []byte(stdin))
		if string(want["prevResult"]) == "null" {
			delete(want, "prevResult")
			delete(got, "prevResult")
		}
		if string(mustMarshal(got)) != string(mustMarshal(want)) {
			t.Fatalf("got  %s\nwant %s", mustMarshal(got), mustMarshal(want))
		}
		_ = conf.CheckCapabilities()
		_ = sharedChains("portmap", conf.config(conf.Delegates[0], "ADD"))
		c := &call{conf: conf, args: &skel.CmdArgs{}, log: slog.New(slog.NewTextHandler(io.Discard, nil))}
		_, _ = c.validAttachments()
		_ = c.newRecord()
	})
}

// FuzzValidAttachments: GC keeps each attachment that the runtime names, and all if its word can't be read.
func FuzzValidAttachments(f *testing.F) {
	f.Add(`[{"containerID": "c", "ifname": "e"}]`, `[]`, true, "c", "e")
	f.Add(`[{"ContainerId": 7}]`, `null`, true, "", "")
	f.Add(`{}`, ``, false, "\x00", "é")
	f.Fuzz(func(t *testing.T, one, two string, bothKeys bool, container, ifName string) {
		if !json.Valid([]byte(one)) || !json.Valid([]byte(two)) || !utf8.ValidString(container) || !utf8.ValidString(ifName) {
			return
		}
		read := func(passed map[string]json.RawMessage) (map[attachment]bool, bool) {
			c := &call{conf: &NetConf{passed: passed}, log: slog.New(slog.NewTextHandler(io.Discard, nil))}
			return c.validAttachments()
		}
		passed := map[string]json.RawMessage{"cni.dev/attachments": json.RawMessage(one)}
		if bothKeys {
			passed["cni.dev/valid-attachments"] = json.RawMessage(two)
		}
		_, known := read(passed)
		var list []json.RawMessage
		if notList := json.Unmarshal([]byte(one), &list) != nil; notList && known {
			t.Fatalf("takes %s for a list", one)
		}
		// One more attachment in either list is kept.
		named := mustMarshal(map[string]string{"containerID": container, "ifname": ifName})
		passed["cni.dev/valid-attachments"] = mustMarshal([]json.RawMessage{named})
		if valid, still := read(passed); still != known && bothKeys == false || still && !valid[attachment{container, ifName}] {
			t.Fatalf("%v, %v", valid, still)
		}
		if _, known := read(nil); known {
			t.Fatal("knows without having been told")
		}
	})
}

// FuzzAttribute: the kernel reads back the kinds and values, one attribute behind another.
func FuzzAttribute(f *testing.F) {
	f.Add(uint16(3), []byte("eth0\x00"), uint16(18), []byte{})
	f.Add(uint16(0), []byte{1, 2, 3, 4}, uint16(math.MaxUint16), []byte{0})
	f.Fuzz(func(t *testing.T, kind1 uint16, value1 []byte, kind2 uint16, value2 []byte) {
		if len(value1) > 1<<12 || len(value2) > 1<<12 {
			return // an interface's name has 15 bytes, and an address 16
		}
		b := slices.Concat(attribute(kind1, value1), attribute(kind2, value2))
		for _, want := range []struct {
			kind  uint16
			value []byte
		}{{kind1, value1}, {kind2, value2}} {
			if len(b) < 4 {
				t.Fatal("cut off")
			}
			size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
			padded := (size + 3) / 4 * 4
			if size < 4 || padded > len(b) || kind != want.kind || !bytes.Equal(b[4:size], want.value) {
				t.Fatalf("kind %d size %d of % x", kind, size, b)
			}
			b = b[padded:]
		}
		if len(b) > 0 {
			t.Fatalf("% x is left", b)
		}
	})
}
