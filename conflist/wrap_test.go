// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

func TestWrap(t *testing.T) {
	tests := []struct{ name, bare, wrapped string }{
		{"compact",
			`{"name":"a","plugins":[{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true}}]}`,
			`{"name":"a","plugins":[{"type":"lockwrap","capabilities":{"portMappings":true},"delegates":[{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true}}]}]}`},
		{"indented, CRLF, no newline at the end",
			"{\r\n\t\"name\": \"a\",\r\n\t\"plugins\": [\r\n\t\t{\"type\": \"bridge\"}\r\n\t]\r\n}",
			"{\r\n\t\"name\": \"a\",\r\n\t\"plugins\": [{\"type\": \"lockwrap\", \"delegates\": [\r\n\t\t{\"type\": \"bridge\"}\r\n\t]}]\r\n}"},
		{"union of the capabilities that are declared true",
			`{"name": "a", "plugins": [{"type": "x", "capabilities": {"ips": true, "mac": false}}, {"type": "y", "capabilities": {"ips": false, "a\"b": true}}]}`,
			`{"name": "a", "plugins": [{"type": "lockwrap", "capabilities": {"a\"b": true, "ips": true}, "delegates": [{"type": "x", "capabilities": {"ips": true, "mac": false}}, {"type": "y", "capabilities": {"ips": false, "a\"b": true}}]}]}`},
		{"big numbers, escapes, unknown keys",
			`{"name": "a", "x": 12345678901234567890, "plugins": [{"type": "br\u0069dge", "n": 1e40, "y": "\u00e9]}"}], "disableGC": true}`,
			`{"name": "a", "x": 12345678901234567890, "plugins": [{"type": "lockwrap", "delegates": [{"type": "br\u0069dge", "n": 1e40, "y": "\u00e9]}"}]}], "disableGC": true}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wrapped, err := Wrap([]byte(tt.bare))
			if err != nil {
				t.Fatal(err)
			}
			if string(wrapped) != tt.wrapped {
				t.Errorf("got  %s\nwant %s", wrapped, tt.wrapped)
			}
			bare, err := Unwrap(wrapped)
			if err != nil {
				t.Fatal(err)
			}
			if string(bare) != tt.bare {
				t.Errorf("unwrapped %s\nwant      %s", bare, tt.bare)
			}
		})
	}
}

func TestUnwrap_byHand(t *testing.T) {
	bare, err := Unwrap([]byte(`{"name": "a", "plugins": [{"type": "x"}, {"delegates": [{"type": "b"}, {"type": "c"}], "lockFile": "/l", "type": "lockwrap"}, {"type": "y"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"name": "a", "plugins": [{"type": "x"}, {"type": "b"}, {"type": "c"}, {"type": "y"}]}`; string(bare) != want {
		t.Errorf("got %s", bare)
	}
}

func TestUnwrap_refuses(t *testing.T) {
	for _, delegates := range []string{`[]`, `[ ]`, `[{}]`, `{}`} {
		list := `{"name": "a", "plugins": [{"type": "lockwrap", "delegates": ` + delegates + `}, {"type": "b"}]}`
		if out, err := Unwrap([]byte(list)); err == nil {
			t.Errorf("%s gives %s", list, out)
		}
	}
}

func TestNothingToDo(t *testing.T) {
	if _, err := Wrap([]byte(`{"name": "a", "plugins": [{"type": "lockwrap", "delegates": [{"type": "b"}]}]}`)); !errors.Is(err, ErrNothingToDo) {
		t.Errorf("Wrap of a wrapped list: %v", err)
	}
	if _, err := Unwrap([]byte(`{"name": "a", "plugins": [{"type": "b"}]}`)); !errors.Is(err, ErrNothingToDo) {
		t.Errorf("Unwrap of a bare list: %v", err)
	}
}

func TestWrap_refuses(t *testing.T) {
	for name, list := range map[string]string{
		"not JSON":           `{"name": "a", `,
		"a comment":          "{\"name\": \"a\", // x\n\"plugins\": [{\"type\": \"b\"}]}",
		"a trailing comma":   `{"name": "a", "plugins": [{"type": "b"},]}`,
		"a single plugin":    `{"name": "a", "type": "bridge"}`,
		"no plugins":         `{"name": "a", "plugins": []}`,
		"no name":            `{"plugins": [{"type": "b"}]}`,
		"no type":            `{"name": "a", "plugins": [{}]}`,
		"beside lockwrap":    `{"name": "a", "plugins": [{"type": "lockwrap", "delegates": [{"type": "b"}]}, {"type": "c"}]}`,
		"an array":           `[]`,
		"two documents":      `{"name": "a", "plugins": [{"type": "b"}]} {}`,
		"plugins not a list": `{"name": "a", "plugins": {"type": "b"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := Wrap([]byte(list)); err == nil || errors.Is(err, ErrNothingToDo) {
				t.Errorf("got %s, %v", out, err)
			}
		})
	}
}

// FuzzWrap holds the promise for whatever libcni loads: the wrapped list loads
// too, with the same plugins inside, and unwrapping gives back the same bytes.
func FuzzWrap(f *testing.F) {
	f.Add([]byte(`{"name": "a", "plugins": [{"type": "bridge", "capabilities": {"x": true}}, {"Type": "b"}]}`))
	f.Add([]byte("{\"plugins\": 1, \"name\":\"a\",\r\n \"plugins\" :\t[ {\"type\":\"b\"} ] }\n"))
	for seed := range 20 {
		f.Add([]byte(randomList(rand.New(rand.NewPCG(1, uint64(seed))))))
	}
	f.Fuzz(func(t *testing.T, list []byte) { checkInverse(t, list) })
}

func checkInverse(t *testing.T, list []byte) {
	t.Helper()
	wrapped, err := Wrap(list)
	if err != nil {
		return
	}
	loaded, err := libcni.NetworkConfFromBytes(wrapped)
	if err != nil {
		t.Fatalf("libcni does not load %q: %v", wrapped, err)
	}
	before, err := libcni.NetworkConfFromBytes(list)
	if err != nil {
		t.Fatal(err)
	}
	var entry struct {
		Capabilities map[string]bool   `json:"capabilities"`
		Delegates    []json.RawMessage `json:"delegates"`
	}
	if err := json.Unmarshal(loaded.Plugins[0].Bytes, &entry); err != nil {
		t.Fatal(err)
	}
	if len(loaded.Plugins) != 1 || len(entry.Delegates) != len(before.Plugins) {
		t.Fatalf("%d plugins with %d delegates from %q", len(loaded.Plugins), len(entry.Delegates), list)
	}
	for _, p := range before.Plugins {
		for name, declared := range p.Network.Capabilities {
			if declared && !entry.Capabilities[name] {
				t.Fatalf("capability %q is not declared in %q", name, wrapped)
			}
		}
	}
	bare, err := Unwrap(wrapped)
	if err != nil {
		t.Fatalf("cannot unwrap %q: %v", wrapped, err)
	}
	if string(bare) != string(list) {
		t.Fatalf("got  %q\nwant %q", bare, list)
	}
}

func TestWrap_generatedLists(t *testing.T) {
	for seed := range uint64(2000) {
		checkInverse(t, []byte(randomList(rand.New(rand.NewPCG(2, seed)))))
	}
}

// randomList writes a list as some author might have.
func randomList(r *rand.Rand) string {
	space := func() string {
		return []string{"", "", " ", "\n  ", "\t", "\r\n", "\n\n    "}[r.IntN(7)]
	}
	value := func() string {
		return []string{"null", "true", "12345678901234567890", "-0.5e3", `"\u00e9\"]}"`, `"é{[,"`, "[1, [2,\t3]]", `{"type":"x", "plugins": [{}]}`, `""`}[r.IntN(9)]
	}
	object := func(members ...string) string {
		r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		var b strings.Builder
		b.WriteString("{")
		for i, m := range members {
			if i > 0 {
				b.WriteString(",")
			}
			b.WriteString(space() + m + space())
		}
		return b.String() + "}"
	}
	member := func(key, value string) string { return fmt.Sprintf("%q%s:%s%s", key, space(), space(), value) }
	var plugins []string
	for i := range 1 + r.IntN(5) {
		members := []string{member("type", fmt.Sprintf("%q", "p"+fmt.Sprint(i)))}
		if r.IntN(2) == 0 {
			members = append(members, member("capabilities", object(member("c"+fmt.Sprint(r.IntN(4)), []string{"true", "false"}[r.IntN(2)]))))
		}
		for range r.IntN(3) {
			members = append(members, member("x"+fmt.Sprint(r.IntN(100)), value()))
		}
		plugins = append(plugins, space()+object(members...)+space())
	}
	members := []string{
		member("name", `"net"`),
		member("cniVersion", []string{`"0.3.1"`, `"1.0.0"`, `"1.1.0"`}[r.IntN(3)]),
		member("plugins", "["+strings.Join(plugins, ",")+"]"),
	}
	for range r.IntN(3) {
		members = append(members, member("k"+fmt.Sprint(r.IntN(100)), value()))
	}
	return space() + object(members...) + space()
}
