// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func testRecord() *record {
	return &record{
		State: stateAdding, Network: "web", Container: "c1", IfName: "eth0", Types: []string{"bridge", "portmap"}, CNIVersion: "1.0.0",
		PrevResult: json.RawMessage(`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/24"}]}`),
		Delegates: []recorded{
			{Type: "bridge", Config: map[string]json.RawMessage{"type": json.RawMessage(`"bridge"`)},
				Result: json.RawMessage(`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`)},
			{Type: "portmap", Config: map[string]json.RawMessage{"runtimeConfig": json.RawMessage(`{"portMappings":[]}`)}},
		},
	}
}

func TestRecord_roundTrip(t *testing.T) {
	dir := t.TempDir()
	want := testRecord()
	if err := want.save(dir); err != nil {
		t.Fatal(err)
	}
	got, _, err := loadRecord(dir, testRecord(), noSibling)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	for path, mode := range map[string]os.FileMode{want.path(dir): 0o600, filepath.Dir(want.path(dir)): 0o700} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s has mode %o", path, info.Mode().Perm())
		}
	}
	if err := want.remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := want.remove(dir); err != nil {
		t.Errorf("removing it twice: %v", err)
	}
	if got, _, err := loadRecord(dir, testRecord(), noSibling); got != nil || err != nil {
		t.Errorf("after the removal there is %v, %v", got, err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "attachments")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func noSibling(*record) bool { return false }

// Two lockwrap entries in one list share a file and leave each other alone.
func TestRecord_others(t *testing.T) {
	dir := t.TempDir()
	types := func(types ...string) *record {
		r := testRecord()
		r.Types = types
		return r
	}
	load := func(isSibling func(*record) bool, want ...string) (*record, []*record) {
		t.Helper()
		own, others, err := loadRecord(dir, types(want...), isSibling)
		if err != nil {
			t.Fatal(err)
		}
		return own, others
	}
	if err := types("a", "b").save(dir); err != nil {
		t.Fatal(err)
	}
	own, others := load(noSibling, "c")
	if own != nil || len(others) != 1 {
		t.Fatalf("c has %v beside %v", own, others)
	}
	second := types("c")
	second.Others = others
	if err := second.save(dir); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		want  []string
		found []string
	}{
		{[]string{"a", "b"}, []string{"a", "b"}},
		{[]string{"c"}, []string{"c"}},
		{[]string{"x", "b"}, []string{"a", "b"}}, // the list has been edited
		{[]string{"x"}, nil},
	} {
		own, others := load(noSibling, tt.want...)
		if own == nil {
			own = &record{}
		}
		if !cmp.Equal(own.Types, tt.found) || len(others) != 1 && tt.found != nil {
			t.Errorf("%v found %v beside %d others", tt.want, own.Types, len(others))
		}
	}
	if own, _ := load(func(*record) bool { return true }, "x", "b"); own != nil {
		t.Errorf("took the sibling %v for our own", own.Types)
	}
	own, _ = load(noSibling, "c")
	if err := own.remove(dir); err != nil {
		t.Fatal(err)
	}
	own, others = load(noSibling, "a", "b")
	if own == nil || len(others) > 0 {
		t.Fatalf("after the removal of c: %v beside %v", own, others)
	}
	if err := own.remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(own.path(dir)); err == nil {
		t.Error("the file is left")
	}
}

func TestRecord_damaged(t *testing.T) {
	foreign := testRecord()
	foreign.Version, foreign.Container = recordVersion, "other"
	tests := []struct{ name, content string }{
		{"empty", ""},
		{"garbage", "\x00\x01"},
		{"cut", `{"version": 1, "state": "ad`},
		{"another type", `[]`},
		{"null", `null`},
		{"future version", `{"version": 2, "state": "added"}`},
		{"unknown state", `{"version": 1, "state": "paused"}`},
		{"empty part", `{"version": 1, "state": "added", "others": [null]}`},
		{"of another attachment", string(mustMarshal(foreign))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := testRecord().path(dir)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if r, _, err := loadRecord(dir, testRecord(), noSibling); r != nil || err == nil {
				t.Errorf("got %v, %v; want nil and an error", r, err)
			}
		})
	}
}

func TestRecordPath(t *testing.T) {
	long := strings.Repeat("x", 200)
	paths := map[string]string{}
	for name, path := range map[string]string{
		"a dash in the network":      recordPath("/s", "a-b", "c", "eth0"),
		"a dash in the container":    recordPath("/s", "a", "b-c", "eth0"),
		"another interface":          recordPath("/s", "a", "b-c", "eth1"),
		"long":                       recordPath("/s", long, long, "eth0"),
		"long and another interface": recordPath("/s", long, long, "eth1"),
	} {
		if other := paths[path]; other != "" {
			t.Errorf("%q and %q share %s", name, other, path)
		}
		if len(filepath.Base(path)) > 250 {
			t.Errorf("%q: no file system takes %s", name, path)
		}
		paths[path] = name
	}
}

func TestPrevResultForDel(t *testing.T) {
	none := testRecord()
	none.PrevResult, none.Delegates = nil, nil
	first := testRecord()
	first.Delegates[0].Result = nil
	odd := testRecord()
	odd.Delegates[0].Result = json.RawMessage(`{"cniVersion":"7.0.0"}`)
	tests := []struct {
		name, version string
		r             *record
		want          string
	}{
		{"last good one", "1.0.0", testRecord(), `"10.0.0.2/24"`},
		{"converted", "0.4.0", testRecord(), `"version":"4"`},
		{"not before 0.4.0", "0.3.1", testRecord(), ""},
		{"no version", "", testRecord(), ""},
		{"the runtime's if the first delegate failed", "1.0.0", first, `"10.0.0.1/24"`},
		{"none", "1.0.0", none, ""},
		{"one that can't be converted", "1.0.0", odd, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := string(tt.r.prevResultForDel(tt.version))
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q in it", got, tt.want)
			}
		})
	}
}

func TestRuntimeConfig(t *testing.T) {
	r := testRecord()
	if got := string(r.runtimeConfig(1, "portmap")); got != `{"portMappings":[]}` {
		t.Errorf("got %s", got)
	}
	// The list was edited in between.
	if r.runtimeConfig(0, "portmap") != nil || r.runtimeConfig(1, "bandwidth") != nil || r.runtimeConfig(2, "portmap") != nil {
		t.Error("gives one plugin what another one got")
	}
}

// A container of ctr has its namespace below /proc, where it looks another one each time.
func TestAttachment_stuck(t *testing.T) {
	const here = "/proc/self/ns/net"
	id := identifyNetNS(here)
	other := id
	other.Ino++
	tests := []struct {
		name  string
		netns string
		id    netnsID
		stuck bool
	}{
		{"there", here, id, false},
		{"another one", here, other, true},
		{"gone", "/nowhere", id, true},
		{"never known", "/nowhere", netnsID{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			time.Sleep(20 * time.Millisecond) // longer than a tick of the kernel's clock
			r := &record{State: stateAdded, NetNS: tt.netns, NetNSID: tt.id}
			if a := r.attachment("file"); (a.Stuck != "") != tt.stuck {
				t.Errorf("stuck: %q, want %t", a.Stuck, tt.stuck)
			}
		})
	}
}
