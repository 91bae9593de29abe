// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// entry is one plugin of a list.
type entry = map[string]any

// list is a network configuration list that can be written bare or wrapped.
type list struct {
	version   string // "-" for none at all
	before    []entry
	delegates []entry
	after     []entry
	lockwrap  entry   // more keys for the lockwrap entry
	second    []entry // delegates of a second lockwrap entry, behind the first
}

const network = "net"

func (l list) write(plugins []entry) []byte {
	v := map[string]any{"name": network, "plugins": plugins}
	if l.version != "-" {
		v["cniVersion"] = l.version
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// bare is the list as it stood before lockwrap.
func (l list) bare() []byte {
	return l.write(slices.Concat(l.before, l.delegates, l.second, l.after))
}

// wrapped is the same list with the delegates inside lockwrap.
func (l list) wrapped(h *host) []byte {
	plugins := append(slices.Clone(l.before), h.wrap(l.lockwrap, l.delegates...))
	if l.second != nil {
		plugins = append(plugins, h.wrap(l.lockwrap, l.second...))
	}
	return l.write(append(plugins, l.after...))
}

// wrap makes the lockwrap entry of this host, with the union of what the delegates are capable of.
func (h *host) wrap(more entry, delegates ...entry) entry {
	e := entry{"type": "lockwrap", "delegates": delegates, "lockFile": h.lockFile, "stateDir": h.run}
	union := map[string]any{}
	for _, d := range delegates {
		for _, c := range capabilities(d) {
			union[c] = true
		}
	}
	if len(union) > 0 {
		e["capabilities"] = union
	}
	maps.Copy(e, more)
	return e
}

// capabilities lists what an entry is capable of, whatever the case of the key (R5).
func capabilities(e entry) []string {
	var out []string
	for k, v := range e {
		if caps, ok := v.(map[string]any); ok && strings.EqualFold(k, "capabilities") {
			for c, on := range caps {
				if on == true {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// runtime is libcni with one list and a cache of its own.
type runtime struct {
	h      *host
	cni    *libcni.CNIConfig
	list   *libcni.NetworkConfigList
	cache  string
	stderr *bytes.Buffer
}

func (h *host) runtime(conf []byte) *runtime {
	h.t.Helper()
	l, err := libcni.NetworkConfFromBytes(conf)
	if err != nil {
		h.t.Fatalf("libcni refuses the list: %v\n%s", err, conf)
	}
	r := &runtime{h: h, list: l, cache: h.t.TempDir(), stderr: &bytes.Buffer{}}
	r.cni = libcni.NewCNIConfigWithCacheDir(h.path(), r.cache, &hostExec{h, &invoke.DefaultExec{
		RawExec:       &invoke.RawExec{Stderr: r.stderr},
		PluginDecoder: version.PluginDecoder{},
	}})
	return r
}

// hostExec runs plugins with the host's environment.
type hostExec struct {
	h *host
	*invoke.DefaultExec
}

func (e *hostExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	return e.DefaultExec.ExecPlugin(ctx, path, stdin, append(environ, e.h.env...))
}

// step is one call of the runtime.
type step struct {
	verb string
	id   string // "c1" when empty
	caps map[string]any
	args [][2]string
	gc   *libcni.GCArgs
}

const ifname = "eth0"

// outcome is all that can be seen of a step.
type outcome struct {
	result string
	err    error
	calls  []record
	cache  map[string]any
	stderr string
}

func (r *runtime) do(s step) outcome {
	r.h.t.Helper()
	ctx := r.h.t.Context()
	rt := &libcni.RuntimeConf{
		ContainerID: s.id, NetNS: r.h.netns, IfName: ifname, Args: s.args, CapabilityArgs: s.caps,
	}
	if s.id == "" {
		rt.ContainerID = "c1"
	}
	var o outcome
	r.stderr.Reset()
	switch s.verb {
	case "ADD":
		var res types.Result
		if res, o.err = r.cni.AddNetworkList(ctx, r.list, rt); o.err == nil {
			b, err := json.Marshal(res)
			r.h.must(err)
			o.result = string(b)
		}
	case "CHECK":
		o.err = r.cni.CheckNetworkList(ctx, r.list, rt)
	case "DEL":
		o.err = r.cni.DelNetworkList(ctx, r.list, rt)
	case "GC":
		o.err = r.cni.GCNetworkList(ctx, r.list, s.gc)
	case "STATUS":
		o.err = r.cni.GetStatusNetworkList(ctx, r.list)
	default:
		r.h.t.Fatalf("no such verb %q", s.verb)
	}
	o.calls, o.cache, o.stderr = r.h.calls(), r.cached(), r.stderr.String()
	return o
}

// cached is what libcni wrote down, but for the list itself, which differs between bare and wrapped.
func (r *runtime) cached() map[string]any {
	r.h.t.Helper()
	out := map[string]any{}
	files, err := filepath.Glob(filepath.Join(r.cache, "*", "*"))
	r.h.must(err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		r.h.must(err)
		v := decode(r.h.t, string(b)).(map[string]any)
		delete(v, "config")
		out[filepath.Base(f)] = v
	}
	return out
}

// seen is what a plugin can tell about the way it was called.
type seen struct {
	Call, Argv, Cwd, Status string
	Env                     []string
	Conf                    any
}

func (h *host) seen(calls []record) []seen {
	out := []seen{}
	for _, c := range calls {
		var conf any
		if c.Stdin != "" {
			conf = decode(h.t, c.Stdin)
		}
		out = append(out, seen{c.String(), c.Argv, c.Cwd, c.Status, c.Env, conf})
	}
	return out
}

// held takes the one variable away that lockwrap may add (R47), and demands it.
func held(t *testing.T, s seen) seen {
	t.Helper()
	mark := func(kv string) bool { return strings.HasPrefix(kv, "LOCKWRAP_HELD=") }
	if !slices.ContainsFunc(s.Env, mark) {
		t.Errorf("%s ran without LOCKWRAP_HELD", s.Call)
	}
	s.Env = slices.DeleteFunc(slices.Clone(s.Env), mark)
	return s
}

// problem is an error as the runtime sees it.
type problem struct {
	Text    string
	Code    uint
	Details string
}

func asProblem(err error) *problem {
	if err == nil {
		return nil
	}
	p := &problem{Text: err.Error()}
	var e *types.Error
	if errors.As(err, &e) {
		p.Code, p.Details = e.Code, e.Details
	}
	return p
}

// exitStatus is what libcni v1.3.1 says behind the stderr of a plugin and v1.3.0 does not.
var exitStatus = regexp.MustCompile(`(netplugin failed: "(?:[^"\\]|\\.)*"): (?:exit status \d+|signal: [a-z ]+)`)

func likeOldLibcni(text string) string { return exitStatus.ReplaceAllString(text, "$1") }
