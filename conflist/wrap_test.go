// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWrap(t *testing.T) {
	tests := []struct{ name, bare, wrapped string }{
		{"compact",
			`{"name":"a","plugins":[{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true}}]}`,
			`{"name":"a","plugins":[{"type":"lockwrap","capabilities":{"portMappings":true},"delegates":[{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true}}]}]}`},
		{"indented, CRLF, no newline at the end",
			"{\r\n\t\"name\": \"a\",\r\n\t\"plugins\": [\r\n\t\t{\"type\": \"bridge\"}\r\n\t]\r\n}",
			"{\r\n\t\"name\": \"a\",\r\n\t\"plugins\": [\r\n\t\t{\"type\": \"lockwrap\", \"delegates\": [\r\n\t\t{\"type\": \"bridge\"}\r\n\t\t]}\r\n\t]\r\n}"},
		{"a line for each key",
			"{\n   \"plugins\": [\n      {\n         \"type\": \"a\",\n         \"capabilities\": {\"x\": true, \"y\": true}\n      },\n      {\n         \"type\": \"b\"\n      }\n   ],\n   \"name\": \"a\"\n}\n",
			"{\n   \"plugins\": [\n      {\n         \"type\": \"lockwrap\",\n         \"capabilities\": {\"x\": true, \"y\": true},\n         \"delegates\": [\n      {\n         \"type\": \"a\",\n         \"capabilities\": {\"x\": true, \"y\": true}\n      },\n      {\n         \"type\": \"b\"\n      }\n         ]\n      }\n   ],\n   \"name\": \"a\"\n}\n"},
		{"union of the capabilities that are declared true",
			`{"name": "a", "plugins": [{"type": "x", "capabilities": {"ips": true, "mac": false}}, {"type": "y", "capabilities": {"ips": false, "a\"b": true}}]}`,
			`{"name": "a", "plugins": [{"type": "lockwrap", "capabilities": {"a\"b": true, "ips": true}, "delegates": [{"type": "x", "capabilities": {"ips": true, "mac": false}}, {"type": "y", "capabilities": {"ips": false, "a\"b": true}}]}]}`},
		{"big numbers, escapes, unknown keys",
			`{"name": "a", "x": 12345678901234567890, "plugins": [{"type": "br\u0069dge", "n": 1e40, "y": "\u00e9]}"}], "disableGC": true}`,
			`{"name": "a", "x": 12345678901234567890, "plugins": [{"type": "lockwrap", "delegates": [{"type": "br\u0069dge", "n": 1e40, "y": "\u00e9]}"}]}], "disableGC": true}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wrapped, err := wrapBytes([]byte(tt.bare))
			if err != nil {
				t.Fatal(err)
			}
			if string(wrapped) != tt.wrapped {
				t.Errorf("got  %s\nwant %s", wrapped, tt.wrapped)
			}
			bare, err := unwrapBytes(wrapped)
			if err != nil {
				t.Fatal(err)
			}
			if string(bare) != tt.bare {
				t.Errorf("unwrapped %s\nwant      %s", bare, tt.bare)
			}
		})
	}
}

func wrapBytes(list []byte) ([]byte, error) {
	l, err := Parse("a.conflist", list)
	if err != nil {
		return nil, err
	}
	return l.Wrap(nil)
}

func unwrapBytes(list []byte) ([]byte, error) {
	l, err := Parse("a.conflist", list)
	if err != nil {
		return nil, err
	}
	return l.Unwrap()
}

func TestUnwrap_byHand(t *testing.T) {
	bare, err := unwrapBytes([]byte(`{"name": "a", "plugins": [{"type": "x"}, {"delegates": [{"type": "b"}, {"type": "c"}], "lockFile": "/l", "type": "lockwrap"}, {"type": "y"}]}`))
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
		if out, err := unwrapBytes([]byte(list)); err == nil {
			t.Errorf("%s gives %s", list, out)
		}
	}
}

func TestNothingToDo(t *testing.T) {
	if _, err := wrapBytes([]byte(`{"name": "a", "plugins": [{"type": "lockwrap", "delegates": [{"type": "b"}]}]}`)); !errors.Is(err, ErrNothingToDo) {
		t.Errorf("Wrap of a wrapped list: %v", err)
	}
	if _, err := unwrapBytes([]byte(`{"name": "a", "plugins": [{"type": "b"}]}`)); !errors.Is(err, ErrNothingToDo) {
		t.Errorf("Unwrap of a bare list: %v", err)
	}
}

// Where it is, what it is, what to do.
func TestRefused(t *testing.T) {
	tests := []struct{ name, file, data, want, todo string }{
		{"empty", "a.conflist", " \n", `1:1: the file is empty`, `write a network configuration list into it`},
		{"cut off", "a.conflist", `{"name": "a", `, `1:15: not JSON: unexpected end of JSON input`, `complete it`},
		{"not JSON", "a.conflist", "{\n\"name\": \"é\", 'a'}", `2:14: not JSON: invalid character '\'' looking for beginning of object key string`, `correct it`},
		{"a line comment", "a.conflist", "{\"name\": \"a\", // x\n\"plugins\": [{\"type\": \"b\"}]}",
			`1:15: comments are not JSON; the CNI library would refuse this file`, `remove the comment`},
		{"a block comment", "a.conflist", "{\n  /* x */ \"name\": 1}",
			`2:3: comments are not JSON; the CNI library would refuse this file`, `remove the comment`},
		{"a shell comment", "a.conf", "# x\n{}",
			`1:1: comments are not JSON; the CNI library would refuse this file`, `remove the comment`},
		{"a trailing comma", "a.conflist", "{\"name\": \"a\", \"plugins\": [{\"type\": \"b\"},\n  ]}",
			`1:40: a comma behind the last element is not JSON; the CNI library would refuse this file`, `remove the comma`},
		{"a byte order mark", "a.conflist", "\ufeff{}", `1:1: a byte order mark is not JSON; the CNI library would refuse this file`, `save the file without it`},
		{"two documents", "a.conflist", `{"name": "a", "plugins": [{"type": "b"}]} {}`,
			`1:43: not JSON: invalid character '{' after top-level value`, `correct it`},
		{"an array", "a.conflist", `[]`, `1:1: it is not a network configuration list, which is a JSON object`, `write an object with "name" and "plugins"`},
		{"a number too big", "a.conflist", "{\"name\": \"a\",\n\"x\": 1e400, \"plugins\": [{\"type\": \"b\"}]}",
			`2:6: the CNI library would not load 1e400, which is out of range`, `write a number that fits a float64`},
		{"no plugins", "a.conflist", `{"name": "a"}`, `1:1: it has no "plugins"; those of a drop-in directory can't be wrapped`, `write the plugins into a "plugins" list`},
		{"an empty list", "a.conflist", `{"name": "a", "plugins": []}`,
			`1:26: the CNI library would not load the list: no plugins in list`, `correct it`},
		{"plugins not a list", "a.conflist", `{"name": "a", "plugins": {"type": "b"}}`,
			`1:26: the CNI library would not load the list: invalid 'plugins' type map[string]interface {}`, `correct it`},
		{"no name", "a.conflist", `{"plugins": [{"type": "b"}]}`, `1:1: the CNI library would not load the list: no name`, `add "name"`},
		{"a name that is none", "a.conflist", `{"plugins": [{"type": "b"}], "name": 5}`,
			`1:38: the CNI library would not load the list: invalid name type float64`, `correct it`},
		{"a switch that is none", "a.conflist", `{"disableCheck": "maybe", "plugins": [{"type": "b"}], "name": "a"}`,
			`1:18: the CNI library would not load the list: invalid value "maybe" for disableCheck`, `correct it`},
		{"no type", "a.conflist", "{\"name\": \"a\", \"plugins\": [{\"type\": \"b\"},\n  {}]}",
			`2:3: the CNI library would not load the list because of this plugin: missing 'type'`, `correct this plugin`},
		{"capabilities of a wrong type", "a.conflist", `{"name": "a", "plugins": [{"type": "b", "capabilities": ["x"]}]}`,
			`1:27: the CNI library would not load the list because of this plugin: json: cannot unmarshal array into Go struct field PluginConf.capabilities of type map[string]bool`, `correct this plugin`},
		{"a single plugin in a .conflist", "a.conflist", `{"name": "a", "type": "bridge"}`, `1:23: it is not a list but a single plugin`,
			`rename the file to .conf, or make it a list: {"cniVersion": ..., "name": ..., "plugins": [{"type": "bridge", ...}]}`},
		{"a list in a .conf", "a.conf", `{"name": "a", "plugins": [{"type": "b"}]}`,
			`1:26: a list of plugins in a file named .conf: the CNI library takes it for a single plugin without "type"`, `rename the file to .conflist`},
		{"a single plugin without type", "a.conf", `{"name": "a"}`, `1:1: the CNI library would not load it: missing 'type'`, `correct it`},
		{"bridge beside lockwrap", "a.conflist", "{\"name\": \"a\", \"plugins\": [\n{\"type\": \"bridge\"},\n{\"type\": \"lockwrap\", \"delegates\": [{\"type\": \"portmap\"}]}]}",
			`2:1: "bridge" stands outside lockwrap and would run without the lock`, `run "lockwrap unwrap" on the file`},
		{"lockwrap around nothing", "a.conflist", `{"name": "a", "plugins": [{"type": "lockwrap"}, {"type": "bridge"}]}`,
			`1:27: "delegates" is empty or missing; lockwrap must contain the plugins it wraps`, `write the plugins into "delegates", or remove the entry`},
		{"lockwrap twice", "a.conflist", `{"name": "a", "plugins": [{"type": "lockwrap", "delegates": [{"type": "a"}]}, {"type": "lockwrap", "delegates": [{"type": "b"}]}]}`,
			`1:79: lockwrap is in the list twice; one is enough`, `run "lockwrap unwrap" on the file`},
		{"lockwrap in lockwrap", "a.conflist", `{"name": "a", "plugins": [{"type": "lockwrap", "delegates": [{"type": "lockwrap", "delegates": [{"type": "b"}]}]}]}`,
			`1:62: lockwrap inside lockwrap: the inner one would wait for the outer one for ever`, `move its delegates one level up`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := Parse(tt.file, []byte(tt.data))
			if err == nil {
				_, err = l.Wrap(nil)
			}
			e := (*Error)(nil)
			if !errors.As(err, &e) {
				t.Fatalf("no *Error: %v", err)
			}
			if diff := cmp.Diff([]string{tt.want, tt.todo}, []string{e.Error(), e.Todo}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWrap_only(t *testing.T) {
	const list = `{"name": "a", "plugins": [{"type": "a"}, {"type": "b"}, {"type": "c"}, {"type": "b"}, {"type": "c"}]}`
	for only, want := range map[string]string{
		"a":         `{"name": "a", "plugins": [{"type": "lockwrap", "delegates": [{"type": "a"}]}, {"type": "b"}, {"type": "c"}, {"type": "b"}, {"type": "c"}]}`,
		"c,b":       `{"name": "a", "plugins": [{"type": "a"}, {"type": "b"}, {"type": "lockwrap", "delegates": [{"type": "c"}, {"type": "b"}]}, {"type": "c"}]}`,
		"a,b,c,b,c": `{"name": "a", "plugins": [{"type": "lockwrap", "delegates": [{"type": "a"}, {"type": "b"}, {"type": "c"}, {"type": "b"}, {"type": "c"}]}]}`,
		"b,c":       `1:72: b,c is there more than once`,
		"c,a":       `1:27: c,a is no part of the list, which has a,b,c,b,c`,
		"a,c":       `1:27: a,c is no part of the list, which has a,b,c,b,c`,
		"":          `1:27:  is no part of the list, which has a,b,c,b,c`,
	} {
		t.Run(only, func(t *testing.T) {
			out, err := mustParse(t, "a.conflist", []byte(list)).Wrap(strings.Split(only, ","))
			got := string(out)
			if err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestWrap_again(t *testing.T) {
	const list = `{"name": "a", "plugins": [{"type": "loopback"}, {"type": "lockwrap", "delegates": [{"type": "b"}, {"type": "c"}]}, {"type": "tuning"}]}`
	for only, want := range map[string]string{
		"":    `already wrapped, but for loopback and tuning, nothing to do`,
		"b,c": `already wrapped, but for loopback and tuning, nothing to do`,
		"b":   `1:27: it is wrapped already, around b,c`,
	} {
		var types []string
		if only != "" {
			types = strings.Split(only, ",")
		}
		if _, err := mustParse(t, "a.conflist", []byte(list)).Wrap(types); err == nil || err.Error() != want {
			t.Errorf("only %q: got %v, want %s", only, err, want)
		}
	}
}

// What --only has left outside, it leaves there.
func TestWrap_onlyAgain(t *testing.T) {
	l := mustParse(t, "a.conflist", []byte(`{"name": "a", "plugins": [{"type": "bridge"}, {"type": "portmap"}]}`))
	out, err := l.Wrap([]string{"portmap"})
	if err != nil {
		t.Fatal(err)
	}
	wrapped := mustParse(t, "a.conflist", out)
	if _, err := wrapped.Wrap([]string{"portmap"}); !errors.Is(err, ErrNothingToDo) {
		t.Errorf("got %v", err)
	}
	if _, err := wrapped.Wrap(nil); err == nil || errors.Is(err, ErrNothingToDo) {
		t.Errorf("wrapping all: %v", err)
	}
}

// Only the last one would come back.
func TestUnwrap_twoDelegates(t *testing.T) {
	out, err := unwrapBytes([]byte(`{"name": "a", "plugins": [{"type": "lockwrap", "delegates": [{"type": "b"}], "delegates": [{"type": "c"}]}]}`))
	if err == nil || err.Error() != `1:27: "delegates" is there more than once; only the last one counts` {
		t.Errorf("got %s, %v", out, err)
	}
}

// A file with a single plugin stays one: whoever looks for a network of that
// name, in a file of that name, finds it.
func TestWrap_single(t *testing.T) {
	const bare = `{"cniVersion": "0.4.0", "name": "a", "type": "bridge", "capabilities": {"ips": true}}` + "\n"
	const want = `{"cniVersion": "0.4.0", "name": "a", "type": "lockwrap", "capabilities": {"ips": true}, "delegates": [{"cniVersion": "0.4.0", "name": "a", "type": "bridge", "capabilities": {"ips": true}}]}` + "\n"
	out, err := mustParse(t, "a.conf", []byte(bare)).Wrap(nil)
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != want {
		t.Errorf("got  %s\nwant %s", out, want)
	}
	for data, want := range map[string]string{
		`{"name": "a", "type": "lockwrap", "delegates": [{"name": "a", "type": "b"}, {"type": "c"}]}`: `1:77: a file with a single plugin can't hold 2`,
		`{"name": "a", "type": "lockwrap", "delegates": [{"name": "b", "type": "b"}]}`:                `1:1: the plugin inside lockwrap has another name or version than lockwrap`,
		`{"name": "a", "type": "lockwrap", "delegates": [{"type": "b"}]}`:                             `1:1: the plugin inside lockwrap has another name or version than lockwrap`,
	} {
		if out, err := mustParse(t, "a.conf", []byte(data)).Unwrap(); err == nil || err.Error() != want {
			t.Errorf("%s: got %s, %v, want %s", data, out, err, want)
		}
	}
}

// FuzzWrap holds the promises of checkInverse for whatever bytes there are in a
// .conflist and in a .conf.
func FuzzWrap(f *testing.F) {
	for name, data := range corpus(f) {
		f.Add(strings.HasSuffix(name, ".conf"), data)
	}
	for seed := range 20 {
		f.Add(false, []byte(randomList(rand.New(rand.NewPCG(1, uint64(seed))))))
	}
	f.Fuzz(func(t *testing.T, single bool, data []byte) {
		name := "a.conflist"
		if single {
			name = "a.conf"
		}
		checkInverse(t, name, data)
	})
}

func TestWrap_generatedLists(t *testing.T) {
	for seed := range uint64(2000) {
		checkInverse(t, "a.conflist", []byte(randomList(rand.New(rand.NewPCG(2, seed)))))
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
