// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/tailscale/hujson"
)

// List is a network configuration as it stands in a file: a list of plugins, or
// the single plugin of a .conf file, which the CNI library takes for a list of
// one.
type List struct {
	Name       string
	CNIVersion string // "" if it has none
	Single     bool
	Plugins    []Plugin
	// InlinedOnly: the list turns off its drop-in directory (libcni v1.3.0).
	InlinedOnly bool

	data []byte
}

// Plugin is one plugin of a list, or one delegate of lockwrap.
type Plugin struct {
	Type         string
	Capabilities map[string]bool
	Raw          json.RawMessage // as it stands in the file
	Line, Column int             // where, from 1

	start, end int
	object     *hujson.Object
}

// Error is why a network configuration can't be used as it stands in its file.
type Error struct {
	Line, Column int // from 1
	What         string
	Todo         string // what the author can do about it
}

func (e *Error) Error() string { return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.What) }

// Parse reads the content of a file. What the CNI library would make of it
// follows from the file's name: a .conflist is a list; a .conf or .json is a
// single plugin; anything else is what it looks like.
//
// Whatever the library would not load is refused with an *Error.
func Parse(path string, data []byte) (*List, error) {
	root, err := parseJSON(data)
	if err != nil {
		return nil, err
	}
	object, ok := root.Value.(*hujson.Object)
	if !ok {
		return nil, refuse(data, root.StartOffset, "write an object with \"name\" and \"plugins\"",
			"it is not a network configuration list, which is a JSON object")
	}
	l := &List{data: data}
	switch filepath.Ext(path) {
	case ".conf", ".json":
		l.Single = true
		if plugins := member(object, "plugins"); plugins != nil && member(object, "type") == nil {
			return nil, refuse(data, plugins.StartOffset, "rename the file to .conflist",
				"a list of plugins in a file named %s: the CNI library takes it for a single plugin without \"type\"", filepath.Ext(path))
		}
	case ".conflist":
		if kind := member(object, "type"); kind != nil && member(object, "plugins") == nil {
			return nil, refuse(data, kind.StartOffset,
				fmt.Sprintf(`rename the file to .conf, or make it a list: {"cniVersion": ..., "name": ..., "plugins": [{"type": %s, ...}]}`, data[kind.StartOffset:kind.EndOffset]),
				"it is not a list but a single plugin")
		}
	default:
		l.Single = member(object, "plugins") == nil && member(object, "type") != nil
	}
	if l.Single {
		return l, l.loadSingle(root)
	}
	return l, l.load(root, object)
}

// parseJSON reads JSON as strictly as the CNI library does.
func parseJSON(data []byte) (hujson.Value, error) {
	var syntax *json.SyntaxError
	var value any
	err := json.Unmarshal(data, &value)
	if errors.As(err, &syntax) {
		return hujson.Value{}, syntaxError(data, syntax)
	}
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) { // only a number can be
		const digits = "+-.0123456789eE"
		end := 1 + bytes.LastIndexAny(data[:min(int(wrongType.Offset), len(data))], digits)
		start := len(bytes.TrimRight(data[:end], digits))
		return hujson.Value{}, refuse(data, start, "write a number that fits a float64",
			"the CNI library would not load %s, which is out of range", data[start:end])
	}
	if err != nil {
		return hujson.Value{}, refuse(data, 0, "", "%v", err)
	}
	root, err := hujson.Parse(data)
	if err != nil {
		return hujson.Value{}, refuse(data, 0, "", "%v", err)
	}
	return root, nil
}

func syntaxError(data []byte, err *json.SyntaxError) error {
	at := min(max(int(err.Offset)-1, 0), len(data))
	switch before := bytes.TrimRight(data[:at], " \t\r\n"); {
	case len(bytes.TrimSpace(data)) == 0:
		return refuse(data, 0, "write a network configuration list into it", "the file is empty")
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		return refuse(data, 0, "save the file without it", "a byte order mark is not JSON; the CNI library would refuse this file")
	case at < len(data) && (data[at] == '/' || data[at] == '#'):
		return refuse(data, at, "remove the comment", "comments are not JSON; the CNI library would refuse this file")
	case at < len(data) && (data[at] == '}' || data[at] == ']') && bytes.HasSuffix(before, []byte(",")):
		return refuse(data, len(before)-1, "remove the comma",
			"a comma behind the last element is not JSON; the CNI library would refuse this file")
	case strings.HasPrefix(err.Error(), "unexpected end"):
		return refuse(data, len(data), "complete it", "not JSON: %v", err)
	}
	return refuse(data, at, "correct it", "not JSON: %v", err)
}

// refuse makes an error for what is at an offset of data.
func refuse(data []byte, offset int, todo, format string, args ...any) *Error {
	line, column := position(data, offset)
	return &Error{line, column, fmt.Sprintf(format, args...), todo}
}

// position counts lines and the characters in them, as editors do.
func position(data []byte, offset int) (line, column int) {
	before := data[:min(max(offset, 0), len(data))]
	start := bytes.LastIndexByte(before, '\n') + 1
	return 1 + bytes.Count(before, []byte("\n")), 1 + len([]rune(string(before[start:])))
}

// load reads the list by the CNI library's rules.
func (l *List) load(root hujson.Value, object *hujson.Object) error {
	conf, err := libcni.NetworkConfFromBytes(l.data)
	if err != nil {
		return l.whyNotLoaded(root, object, err)
	}
	l.Name, l.CNIVersion, l.InlinedOnly = conf.Name, conf.CNIVersion, conf.LoadOnlyInlinedPlugins
	if len(conf.Plugins) == 0 {
		return refuse(l.data, root.StartOffset, `write the plugins into a "plugins" list`, `it has no "plugins"; those of a drop-in directory can't be wrapped`)
	}
	for i, value := range elements(member(object, "plugins")) {
		l.Plugins = append(l.Plugins, l.plugin(value, conf.Plugins[i].Network))
	}
	return nil
}

func (l *List) loadSingle(root hujson.Value) error {
	conf, err := libcni.NetworkPluginConfFromBytes(l.data)
	if err != nil {
		return refuse(l.data, root.StartOffset, "correct it", "the CNI library would not load it: %v", withoutPrefix(err))
	}
	l.Name, l.CNIVersion = conf.Network.Name, conf.Network.CNIVersion
	l.Plugins = []Plugin{l.plugin(root, conf.Network)}
	return nil
}

func (l *List) plugin(value hujson.Value, conf *types.PluginConf) Plugin {
	p := Plugin{Type: conf.Type, Capabilities: conf.Capabilities,
		Raw: l.data[value.StartOffset:value.EndOffset], start: value.StartOffset, end: value.EndOffset}
	p.Line, p.Column = position(l.data, p.start)
	p.object, _ = value.Value.(*hujson.Object)
	return p
}

// whyNotLoaded finds the place of what the CNI library complained about.
func (l *List) whyNotLoaded(root hujson.Value, object *hujson.Object, err error) error {
	at, todo := root.StartOffset, "correct it"
	plugins := member(object, "plugins")
	for _, value := range elements(plugins) {
		if _, err := loadPlugin(l.data[value.StartOffset:value.EndOffset]); err != nil {
			return refuse(l.data, value.StartOffset, "correct this plugin",
				"the CNI library would not load the list because of this plugin: %v", withoutPrefix(err))
		}
	}
	for _, key := range []string{"plugins", "name", "cniVersions", "cniVersion", "disableCheck", "disableGC", "loadOnlyInlinedPlugins"} {
		if !strings.Contains(err.Error(), key) {
			continue
		}
		if value := member(object, key); value != nil {
			at = value.StartOffset
			break
		}
		todo = fmt.Sprintf("add %q", key)
	}
	return refuse(l.data, at, todo, "the CNI library would not load the list: %v", withoutPrefix(err))
}

// loadPlugin reads a plugin as the CNI library reads it out of a list: by way of
// a map, so that of "type" and "Type" in one object the first in the alphabet
// loses, wherever it stands.
func loadPlugin(raw []byte) (*types.PluginConf, error) {
	var keys any
	if err := json.Unmarshal(raw, &keys); err != nil {
		return nil, err
	}
	normal, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	conf, err := libcni.NetworkPluginConfFromBytes(normal)
	if err != nil {
		return nil, err
	}
	return conf.Network, nil
}

func withoutPrefix(err error) string {
	_, text, _ := strings.Cut(err.Error(), ": ")
	return text
}

// member finds a member of an object. Of several of one name the last counts,
// as for the CNI library.
func member(object *hujson.Object, name string) *hujson.Value {
	if object == nil {
		return nil
	}
	for i, m := range slices.Backward(object.Members) {
		if literal, ok := m.Name.Value.(hujson.Literal); ok && literal.String() == name {
			return &object.Members[i].Value
		}
	}
	return nil
}

func elements(value *hujson.Value) []hujson.Value {
	if value == nil {
		return nil
	}
	array, ok := value.Value.(*hujson.Array)
	if !ok {
		return nil
	}
	return array.Elements
}
