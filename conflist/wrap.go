// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

const pluginName = "lockwrap"

// ErrNothingToDo is returned for a list that is already as it should be.
var ErrNothingToDo = errors.New("nothing to do")

// Wrap puts lockwrap around all plugins of a list. The plugins stay as they
// were, to the byte; the capabilities they declare are declared for lockwrap
// too, since the runtime looks only there.
//
// A list that is wrapped already gives ErrNothingToDo. A list that libcni would
// not load, or that has lockwrap beside other plugins, is refused.
func Wrap(list []byte) ([]byte, error) {
	plugins, err := readPlugins(list)
	if err != nil {
		return nil, err
	}
	capabilities := map[string]bool{}
	for _, p := range plugins.entries {
		if p.conf.Type != pluginName {
			for name, declared := range p.conf.Capabilities {
				capabilities[name] = capabilities[name] || declared
			}
			continue
		}
		if len(plugins.entries) == 1 {
			return nil, fmt.Errorf("already wrapped, %w", ErrNothingToDo)
		}
		return nil, errors.New(`it has lockwrap beside other plugins; move them into its "delegates", or unwrap it first`)
	}

	// The author's style, as far as one line can have one.
	colon, comma := ":", ","
	if bytes.Contains(list, []byte(`": `)) {
		colon, comma = ": ", ", "
	}
	var head bytes.Buffer
	fmt.Fprintf(&head, `{"type"%s"%s"%s`, colon, pluginName, comma)
	var names []string
	for name, declared := range capabilities {
		if declared {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		fmt.Fprintf(&head, `"capabilities"%s{`, colon)
		for i, name := range names {
			if i > 0 {
				head.WriteString(comma)
			}
			quoted, err := json.Marshal(name)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&head, "%s%strue", quoted, colon)
		}
		fmt.Fprintf(&head, "}%s", comma)
	}
	fmt.Fprintf(&head, `"delegates"%s[`, colon)
	return loadable(slices.Concat(
		list[:plugins.inner.start], head.Bytes(),
		list[plugins.inner.start:plugins.inner.end],
		[]byte("]}"), list[plugins.inner.end:]))
}

// loadable gives out a new list only if libcni would load it.
func loadable(list []byte) ([]byte, error) {
	if _, err := libcni.NetworkConfFromBytes(list); err != nil {
		return nil, fmt.Errorf("the outcome would be of no use: %w", err)
	}
	return list, nil
}

// Unwrap is the inverse of Wrap: for every list that Wrap accepts,
// Unwrap(Wrap(list)) is list, byte for byte. It also unwraps what was wrapped by
// hand. A list without lockwrap gives ErrNothingToDo.
func Unwrap(list []byte) ([]byte, error) {
	plugins, err := readPlugins(list)
	if err != nil {
		return nil, err
	}
	out := list
	for _, p := range slices.Backward(plugins.entries) {
		if p.conf.Type != pluginName {
			continue
		}
		delegates, err := readArray(list, p.at, "delegates")
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(list[delegates.start:delegates.end])) == 0 {
			return nil, errors.New(`"delegates" is empty; lockwrap must contain the plugins it wraps`)
		}
		out = slices.Concat(out[:p.at.start], list[delegates.start:delegates.end], out[p.at.end:])
	}
	if bytes.Equal(out, list) {
		return nil, fmt.Errorf("no lockwrap entry, %w", ErrNothingToDo)
	}
	return loadable(out)
}

// span is a part of a file.
type span struct{ start, end int }

// pluginArray is the "plugins" of a list.
type pluginArray struct {
	inner   span // between the brackets
	entries []plugin
}

type plugin struct {
	at   span
	conf types.PluginConf
}

// readPlugins finds the plugins in a list that libcni would load.
func readPlugins(list []byte) (*pluginArray, error) {
	conf, err := libcni.NetworkConfFromBytes(list)
	if err != nil {
		return nil, err
	}
	if len(conf.Plugins) == 0 {
		return nil, errors.New(`it has no "plugins": lockwrap wraps network configuration lists`)
	}
	inner, err := readArray(list, span{0, len(list)}, "plugins")
	if err != nil {
		return nil, err
	}
	out := &pluginArray{inner: inner}
	dec := json.NewDecoder(bytes.NewReader(list[inner.start-1 : inner.end+1]))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, err
		}
		end := inner.start - 1 + int(dec.InputOffset())
		p := plugin{at: span{end - len(raw), end}}
		if err := json.Unmarshal(raw, &p.conf); err != nil {
			return nil, err
		}
		out.entries = append(out.entries, p)
	}
	return out, nil
}

// readArray finds what is between the brackets of an object's member. Of two
// members of one name the last counts, as for libcni.
func readArray(list []byte, object span, name string) (span, error) {
	dec := json.NewDecoder(bytes.NewReader(list[object.start:object.end]))
	if _, err := dec.Token(); err != nil {
		return span{}, err
	}
	var found span
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return span{}, err
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return span{}, err
		}
		if key == name && len(raw) > 0 && raw[0] == '[' {
			end := object.start + int(dec.InputOffset())
			found = span{end - len(raw) + 1, end - 1}
		}
	}
	if found == (span{}) {
		return span{}, fmt.Errorf("%q is missing or not a list", name)
	}
	return found, nil
}
