// SPDX-License-Identifier: Apache-2.0

package conflist

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// corpus are files as users have them, and traps.
func corpus(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", "lists", "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) < 50 {
		t.Fatalf("only %d lists", len(paths))
	}
	files := map[string][]byte{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(path)] = data
	}
	return files
}

func TestCorpus(t *testing.T) {
	for name, data := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			checkInverse(t, name, data)

			// Every part of it, too.
			l := mustParse(t, name, data)
			for first := range l.Plugins {
				for last := first; last < len(l.Plugins) && last < first+4; last++ {
					var only []string
					for _, p := range l.Plugins[first : last+1] {
						only = append(only, p.Type)
					}
					checkOnly(t, name, data, only)
				}
			}
		})
	}
}

func mustParse(t *testing.T, name string, data []byte) *List {
	t.Helper()
	l, err := Parse(name, data)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return l
}

// checkOnly wraps a part of a list and takes it back.
func checkOnly(t *testing.T, name string, data []byte, only []string) {
	t.Helper()
	l := mustParse(t, name, data)
	out, err := l.Wrap(only)
	if err != nil {
		if e := (*Error)(nil); errors.As(err, &e) && strings.Contains(e.What, "more than once") {
			return
		}
		t.Fatalf("wrap %v: %v", only, err)
	}
	wrapped := mustParse(t, name, out)
	if len(wrapped.Plugins) != len(l.Plugins)-len(only)+1 {
		t.Fatalf("wrap %v of %d plugins: %d are left", only, len(l.Plugins), len(wrapped.Plugins))
	}
	back, err := wrapped.Unwrap()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back, data) {
		t.Fatalf("wrapped %v:\n%s\nand back:\n%s", only, out, back)
	}
}

// checkInverse holds the promise for whatever libcni loads: the wrapped list
// loads too, the plugins in it stand there to the byte, all that they declare is
// declared, and unwrapping gives back the same bytes.
func checkInverse(t *testing.T, name string, data []byte) {
	t.Helper()
	l, err := Parse(name, data)
	if err != nil {
		// Then the library refuses it too, or there is nothing to wrap.
		if conf, loadErr := libcni.NetworkConfFromBytes(data); filepath.Ext(name) == ".conflist" && loadErr == nil && len(conf.Plugins) > 0 {
			t.Fatalf("libcni loads %q, we do not: %v", data, err)
		}
		return
	}
	out, err := l.Wrap(nil)
	if err != nil {
		for _, p := range l.Plugins {
			if p.Type == PluginName {
				return
			}
		}
		t.Fatalf("cannot wrap %q: %v", data, err)
	}
	wrapped := mustParse(t, name, out)
	delegates, err := wrapped.Delegates(wrapped.Plugins[0])
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(wrapped.Plugins) != 1 || len(delegates) != len(l.Plugins) {
		t.Fatalf("%d plugins with %d delegates from %q", len(wrapped.Plugins), len(delegates), data)
	}
	for i, p := range l.Plugins {
		if !bytes.Equal(p.Raw, delegates[i].Raw) {
			t.Errorf("plugin %s\nbecame %s", p.Raw, delegates[i].Raw)
		}
		for name, declared := range p.Capabilities {
			if declared && !wrapped.Plugins[0].Capabilities[name] {
				t.Errorf("capability %q is not declared in %s", name, out)
			}
		}
	}
	if wrapped.Name != l.Name || wrapped.CNIVersion != l.CNIVersion || wrapped.InlinedOnly != l.InlinedOnly {
		t.Errorf("%+v\nbecame %+v", l, wrapped)
	}
	if _, err := wrapped.Wrap(nil); !errors.Is(err, ErrNothingToDo) {
		t.Errorf("wrapping again: %v", err)
	}
	back, err := wrapped.Unwrap()
	if err != nil {
		t.Fatalf("cannot unwrap %q: %v", out, err)
	}
	if !bytes.Equal(back, data) {
		t.Fatalf("got  %q\nwant %q", back, data)
	}
}
