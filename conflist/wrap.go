// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// PluginName is the type of lockwrap's own entry.
const PluginName = "lockwrap"

// ErrNothingToDo is returned for a list that is already as it should be.
var ErrNothingToDo = errors.New("nothing to do")

// Wrap puts lockwrap around the plugins of the list: all of them, or the
// contiguous run whose types are only. It returns the new content of the file.
// The plugins stay as they were, to the byte; the capabilities they declare are
// declared for lockwrap too, since the runtime looks only there.
//
// A list that is wrapped already gives ErrNothingToDo. One where lockwrap stands
// beside a plugin that needs its lock is refused with an *Error.
func (l *List) Wrap(only []string) ([]byte, error) {
	for _, p := range l.Plugins {
		if p.Type == PluginName {
			return nil, l.alreadyWrapped(only)
		}
	}
	first, last := 0, len(l.Plugins)-1
	if only != nil {
		var err error
		if first, last, err = l.findRun(only); err != nil {
			return nil, err
		}
	}
	run := l.Plugins[first : last+1]
	from, to := run[0].start, run[len(run)-1].end
	out := slices.Concat(l.data[:from], l.entry(run), l.data[to:])
	// What can't be taken back is not written.
	// (Not %w: the place would be one in the outcome, not in the file.)
	wrapped, err := Parse(l.path(), out)
	if err != nil {
		return nil, fmt.Errorf("cannot wrap it: %v", err)
	}
	back, err := wrapped.Unwrap()
	if err != nil {
		return nil, fmt.Errorf("cannot wrap it: %v", err)
	}
	if !bytes.Equal(back, l.data) {
		return nil, errors.New("cannot wrap it so that unwrapping gives the same bytes; please report this with the file")
	}
	return out, nil
}

// path is a file name for which Parse sees a list or a single plugin, as here.
func (l *List) path() string {
	if l.Single {
		return ".conf"
	}
	return ".conflist"
}

// sharesRules are the plugins that change what containers share and do not lock
// it.
var sharesRules = []string{"bridge", "firewall", "portmap", "ptp"}

// SharesRules reports whether a plugin is one of those that race with each
// other when they run outside the lock.
func SharesRules(pluginType string) bool { return slices.Contains(sharesRules, pluginType) }

// alreadyWrapped says whether a list with a lockwrap in it can stay as it is.
func (l *List) alreadyWrapped(only []string) error {
	var inside, outside []string
	wrappers := 0
	var racing *Plugin
	for i, p := range l.Plugins {
		if p.Type != PluginName {
			outside = append(outside, p.Type)
			if SharesRules(p.Type) && racing == nil {
				racing = &l.Plugins[i]
			}
			continue
		}
		delegates, err := l.Delegates(p)
		if err != nil {
			return err
		}
		for _, d := range delegates {
			inside = append(inside, d.Type)
		}
		if wrappers++; wrappers == 2 {
			return l.refuse(p, `run "lockwrap unwrap" on the file`, "lockwrap is in the list twice; one is enough")
		}
	}
	switch {
	case only != nil && !slices.Equal(only, inside):
		return l.refuse(l.Plugins[0], `run "lockwrap unwrap" on the file`,
			"it is wrapped already, around %s", strings.Join(inside, ","))
	case only == nil && racing != nil:
		return l.refuse(*racing, `run "lockwrap unwrap" on the file`,
			"%q stands outside lockwrap and would run without the lock", racing.Type)
	}
	if len(outside) > 0 {
		return fmt.Errorf("already wrapped, but for %s, %w", strings.Join(outside, " and "), ErrNothingToDo)
	}
	return fmt.Errorf("already wrapped, %w", ErrNothingToDo)
}

// findRun finds the plugins that the user named.
func (l *List) findRun(only []string) (first, last int, err error) {
	var types []string
	for _, p := range l.Plugins {
		types = append(types, p.Type)
	}
	found := -1
	for i := 0; i+len(only) <= len(types); i++ {
		if !slices.Equal(types[i:i+len(only)], only) {
			continue
		}
		if found >= 0 {
			return 0, 0, l.refuse(l.Plugins[i], "name more of its neighbours", "%s is there more than once", strings.Join(only, ","))
		}
		found = i
	}
	if found < 0 {
		return 0, 0, l.refuse(l.Plugins[0], "name plugins that follow each other in the list, in its order",
			"%s is no part of the list, which has %s", strings.Join(only, ","), strings.Join(types, ","))
	}
	return found, found + len(only) - 1, nil
}

func (l *List) refuse(p Plugin, todo, format string, args ...any) *Error {
	return &Error{p.Line, p.Column, fmt.Sprintf(format, args...), todo}
}

// entry writes the lockwrap entry around a run of plugins. New lines are
// indented as the author does it; the plugins' own lines stay where they are,
// so that a diff shows only what is new.
func (l *List) entry(run []Plugin) []byte {
	s := l.styleOf(run[0])
	colon, comma := s.colon, ","
	members := []string{
		`"type"` + colon + `"` + PluginName + `"`,
	}
	if l.Single {
		// A file with a single plugin has the list's name and version in it.
		if l.Name != "" {
			members = slices.Insert(members, 0, `"name"`+colon+quote(l.Name))
		}
		if l.CNIVersion != "" {
			members = slices.Insert(members, 0, `"cniVersion"`+colon+quote(l.CNIVersion))
		}
	}
	if names := capabilities(run); len(names) > 0 {
		for i, name := range names {
			names[i] = name + colon + "true"
		}
		members = append(members, `"capabilities"`+colon+"{"+strings.Join(names, comma+s.space)+"}")
	}
	members = append(members, `"delegates"`+colon+"[")

	var b bytes.Buffer
	b.WriteString("{")
	for i, m := range members {
		switch {
		case i > 0 && s.membersOwnLine:
			b.WriteString(comma)
		case i > 0:
			b.WriteString(comma + s.space)
		}
		if s.membersOwnLine {
			b.WriteString(s.newline + s.indent + s.unit)
		}
		b.WriteString(m)
	}
	if s.ownLine {
		b.WriteString(s.newline + s.indent)
	}
	b.Write(l.data[run[0].start:run[len(run)-1].end])
	if s.membersOwnLine {
		b.WriteString(s.newline + s.indent + s.unit + "]" + s.newline + s.indent + "}")
		return b.Bytes()
	}
	if s.ownLine {
		b.WriteString(s.newline + s.indent)
	}
	b.WriteString("]}")
	return b.Bytes()
}

// capabilities are those that any of the plugins declares true, as JSON strings.
func capabilities(plugins []Plugin) []string {
	union := map[string]bool{}
	for _, p := range plugins {
		for name, declared := range p.Capabilities {
			if declared {
				union[name] = true
			}
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(union)) {
		out = append(out, quote(name))
	}
	return out
}

func quote(s string) string {
	quoted, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always marshals
	}
	return string(quoted)
}

// style is how the author writes.
type style struct {
	colon, space, newline string

	ownLine        bool   // a plugin begins a line,
	indent         string // which begins with this
	membersOwnLine bool   // so does each member of it,
	unit           string // with so much more
}

func (l *List) styleOf(p Plugin) style {
	s := style{colon: ":", newline: "\n"}
	if bytes.Contains(l.data, []byte(`": `)) {
		s.colon, s.space = ": ", " "
	}
	if bytes.Contains(l.data, []byte("\r\n")) {
		s.newline = "\r\n"
	}
	indent, ownLine := lineStart(l.data[:p.start])
	if !ownLine || len(p.object.Members) == 0 {
		return s
	}
	first := p.object.Members[0].Name
	if bytes.ContainsRune(first.BeforeExtra, '\n') {
		inner, _ := lineStart(l.data[:first.StartOffset])
		s.unit, s.membersOwnLine = strings.CutPrefix(inner, indent)
	}
	if s.membersOwnLine || bytes.ContainsRune(l.data[:p.start], '\n') {
		s.indent, s.ownLine = indent, true
	}
	return s
}

// lineStart returns what stands before the end of text in its last line; ok, if
// that is only white space.
func lineStart(text []byte) (indent string, ok bool) {
	line := text[bytes.LastIndexByte(text, '\n')+1:]
	return string(line), len(bytes.Trim(line, " \t")) == 0
}

// Unwrap is the inverse of Wrap: for every list that Wrap accepts, unwrapping
// what it returned gives the file back, byte for byte. It also unwraps what was
// wrapped by hand. A list without lockwrap gives ErrNothingToDo.
func (l *List) Unwrap() ([]byte, error) {
	out, found := l.data, false
	for _, p := range slices.Backward(l.Plugins) {
		if p.Type != PluginName {
			continue
		}
		found = true
		delegates, err := l.Delegates(p)
		if err != nil {
			return nil, err
		}
		if l.Single && len(delegates) > 1 {
			return nil, l.refuse(delegates[1], "write a list into a .conflist file instead", "a file with a single plugin can't hold %d", len(delegates))
		}
		out = slices.Concat(out[:p.start], l.data[delegates[0].start:delegates[len(delegates)-1].end], out[p.end:])
	}
	if !found {
		return nil, fmt.Errorf("no lockwrap entry, %w", ErrNothingToDo)
	}
	bare, err := Parse(l.path(), out)
	if err != nil {
		return nil, fmt.Errorf("what is inside lockwrap is no list: %v", err)
	}
	if bare.Name != l.Name || bare.CNIVersion != l.CNIVersion {
		return nil, l.refuse(l.Plugins[0], `write the same "name" and "cniVersion" into the delegate`,
			"the plugin inside lockwrap has another name or version than lockwrap")
	}
	return out, nil
}

// Delegates are the plugins inside a lockwrap entry.
func (l *List) Delegates(p Plugin) ([]Plugin, error) {
	value := member(p.object, "delegates")
	if all := slices.DeleteFunc(p.Keys(), func(key string) bool { return key != "delegates" }); len(all) > 1 {
		return nil, l.refuse(p, "remove all but one", `"delegates" is there more than once; only the last one counts`)
	}
	if len(elements(value)) == 0 {
		return nil, l.refuse(p, `write the plugins into "delegates", or remove the entry`,
			`"delegates" is empty or missing; lockwrap must contain the plugins it wraps`)
	}
	var delegates []Plugin
	for _, value := range elements(value) {
		d := Plugin{start: value.StartOffset}
		d.Line, d.Column = position(l.data, d.start)
		conf, err := loadPlugin(l.data[value.StartOffset:value.EndOffset])
		if err != nil {
			return nil, l.refuse(d, "correct it", "the CNI library would not load this delegate: %v", withoutPrefix(err))
		}
		if conf.Type == PluginName {
			return nil, l.refuse(d, "move its delegates one level up", "lockwrap inside lockwrap: the inner one would wait for the outer one for ever")
		}
		delegates = append(delegates, l.plugin(value, conf))
	}
	return delegates, nil
}

// Keys are the plugin's keys as they stand in the file.
func (p *Plugin) Keys() []string {
	var keys []string
	for _, m := range p.object.Members {
		if name, ok := m.Name.Value.(hujson.Literal); ok {
			keys = append(keys, name.String())
		}
	}
	return keys
}
