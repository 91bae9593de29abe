// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

var versions = []string{"-", "", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// shapes are the ways a wrapped list can look; each is run bare and wrapped.
var shapes = []struct {
	name string
	list list
	gc   *libcni.GCArgs
}{
	{
		name: "lockwrap alone",
		list: list{delegates: []entry{
			{"type": "a", "ipam": entry{"type": "host-local", "ranges": []any{[]any{entry{"subnet": "10.0.0.0/24"}}}}},
			{"type": "b", "backend": "iptables"},
			{"type": "c", "capabilities": entry{"portMappings": true, "bandwidth": false}, "snat": true},
		}},
	},
	{
		name: "plugins before and after",
		list: list{
			before:    []entry{{"type": "p", "capabilities": entry{"mac": true}}},
			delegates: []entry{{"type": "a"}, {"type": "b", "capabilities": entry{"portMappings": true}}},
			after:     []entry{{"type": "q", "capabilities": entry{"portMappings": true, "ips": true}}},
		},
		gc: &libcni.GCArgs{},
	},
	{
		name: "static runtimeConfig",
		list: list{delegates: []entry{
			// R10: the runtime's share replaces it whole, and without a share it stays.
			{"type": "a", "runtimeConfig": entry{"mac": "00:11:22:33:44:55"}},
			{"type": "b", "runtimeConfig": entry{"mac": "00:11:22:33:44:55", "x": 1}, "capabilities": entry{"mac": true}},
			{"type": "c", "runtimeConfig": entry{"aliases": []any{"x"}}, "capabilities": entry{"aliases": true}},
		}},
		gc: &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}},
	},
	{
		name: "name and version of their own",
		list: list{delegates: []entry{
			{"type": "a", "name": "other", "cniVersion": "9.9.9"},
			{"type": "b", "prevResult": entry{"cniVersion": "1.0.0", "dns": entry{"domain": "static"}}},
		}},
		gc: &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "other", IfName: "eth0"}}},
	},
	{
		name: "keys in odd case",
		list: list{delegates: []entry{
			{"Type": "a", "Capabilities": entry{"portMappings": true}},
			{"TYPE": "b", "Name": "x", "CniVersion": "x"},
		}},
	},
	{
		name: "static prevResult first",
		list: list{delegates: []entry{
			{"type": "a", "prevResult": entry{"cniVersion": "0.4.0", "dns": entry{"domain": "static"}}},
			{"type": "b"},
		}},
	},
	{
		name: "two lockwraps",
		list: list{delegates: []entry{{"type": "a"}, {"type": "b"}}, second: []entry{{"type": "c"}}},
	},
}

// TestRecorder_bareAndWrapped is R9, the gate: whoever plugin, runtime or libcni's cache asks, it is the same list.
func TestRecorder_bareAndWrapped(t *testing.T) {
	t.Parallel()
	caps := map[string]any{
		"portMappings": []any{entry{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth":    entry{"ingressRate": 2048},
		"mac":          "c2:11:22:33:44:66",
		"ips":          []any{"10.0.0.9/24"},
	}
	args := [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "web-0"}}
	for i, s := range shapes {
		for j, v := range versions {
			if testing.Short() && i > 0 && j%4 != i%4 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%q", s.name, v), func(t *testing.T) {
				t.Parallel()
				l := s.list
				l.version = v
				var steps []step
				for _, verb := range []string{"STATUS", "ADD", "CHECK", "GC", "ADD", "CHECK", "DEL", "DEL"} {
					steps = append(steps, step{verb: verb, caps: caps, args: args, gc: s.gc})
				}
				sameBothWays(t, l, steps)
			})
		}
	}
}

// TestRecorder_validAttachment keeps the attachment through a GC, so that lockwrap must keep its record (R11).
func TestRecorder_validAttachment(t *testing.T) {
	t.Parallel()
	gc := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: ifname}}}
	var steps []step
	for _, verb := range []string{"ADD", "GC", "CHECK", "DEL", "GC"} {
		steps = append(steps, step{verb: verb, gc: gc})
	}
	for _, v := range versions {
		if testing.Short() && v != "0.4.0" && v != "1.1.0" {
			continue
		}
		t.Run(fmt.Sprintf("%q", v), func(t *testing.T) {
			t.Parallel()
			sameBothWays(t, list{version: v, delegates: []entry{{"type": "a"}, {"type": "b"}}}, steps)
		})
	}
}

// TestRecorder_argsFromMultus is R12: what Multus writes into each plugin of a list, it writes into lockwrap only.
func TestRecorder_argsFromMultus(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		lockwrap  entry
		delegates []entry
		want      []entry // the delegates as Multus would have made them
	}{
		{
			name:      "nothing there before",
			lockwrap:  entry{"args": entry{"cni": entry{"ips": []any{"10.0.0.1"}}}, "deviceID": "0000:00:1f.6", "pciBusID": "0000:00:1f.6"},
			delegates: []entry{{"type": "a"}, {"type": "b"}},
			want: []entry{
				{"type": "a", "args": entry{"cni": entry{"ips": []any{"10.0.0.1"}}}, "deviceID": "0000:00:1f.6", "pciBusID": "0000:00:1f.6"},
				{"type": "b", "args": entry{"cni": entry{"ips": []any{"10.0.0.1"}}}, "deviceID": "0000:00:1f.6", "pciBusID": "0000:00:1f.6"},
			},
		},
		{
			name:      "merged key by key",
			lockwrap:  entry{"args": entry{"cni": entry{"mac": "in", "x": 1}}},
			delegates: []entry{{"type": "a", "args": entry{"cni": entry{"mac": "own", "y": 2}, "labels": "own"}}},
			want:      []entry{{"type": "a", "args": entry{"cni": entry{"mac": "in", "x": 1, "y": 2}, "labels": "own"}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a", "b")
			steps := []step{{verb: "ADD"}, {verb: "CHECK"}, {verb: "DEL"}}
			bare := h.runtime(list{version: "1.0.0", delegates: tt.want}.bare())
			wrapped := h.runtime(list{version: "1.0.0", delegates: tt.delegates, lockwrap: tt.lockwrap}.wrapped(h))
			for _, s := range steps {
				want, got := bare.do(s), wrapped.do(s)
				same(t, h, list{delegates: tt.delegates}, s, want, got)
			}
		})
	}
}

// sameBothWays runs the steps with the list bare, then wrapped, and wants no difference at all.
func sameBothWays(t *testing.T, l list, steps []step) {
	t.Helper()
	h := newHost(t, "a", "b", "c", "p", "q")
	bare, wrapped := h.runtime(l.bare()), h.runtime(l.wrapped(h))
	var want []outcome
	for _, s := range steps {
		want = append(want, bare.do(s))
	}
	for i, s := range steps {
		same(t, h, l, s, want[i], wrapped.do(s))
		if t.Failed() {
			t.Fatalf("at step %d, %s, of\n%s", i+1, s.verb, l.wrapped(h))
		}
	}
	if left := h.records(); len(left) > 0 {
		t.Errorf("records left: %v", left)
	}
}

func same(t *testing.T, h *host, l list, s step, want, got outcome) {
	t.Helper()
	if d := cmp.Diff(h.seen(want.calls), withoutMark(t, h, l, got.calls)); d != "" {
		t.Errorf("%s: plugins, bare (-) and wrapped (+):\n%s", s.verb, d)
	}
	if d := cmp.Diff(want.result, got.result); d != "" {
		t.Errorf("%s: result:\n%s", s.verb, d)
	}
	if d := cmp.Diff(asProblem(want.err), asProblem(got.err)); d != "" {
		t.Errorf("%s: error:\n%s", s.verb, d)
	}
	if d := cmp.Diff(want.cache, got.cache); d != "" {
		t.Errorf("%s: libcni's cache:\n%s", s.verb, d)
	}
	if panicked(got.stderr) {
		t.Errorf("%s: a panic: %s", s.verb, got.stderr)
	}
}

// withoutMark is what the plugins saw, less the mark that the delegates and only they must carry.
func withoutMark(t *testing.T, h *host, l list, calls []record) []seen {
	t.Helper()
	out := h.seen(calls)
	for i, c := range calls {
		if c.Verb == "STATUS" {
			continue // runs without the lock (R42), so the mark would be a lie
		}
		if slices.ContainsFunc(slices.Concat(l.delegates, l.second), func(e entry) bool { return typeOf(e) == c.Name }) {
			out[i] = held(t, out[i])
		}
	}
	return out
}

func typeOf(e entry) string {
	for k, v := range e {
		if strings.EqualFold(k, "type") {
			return v.(string)
		}
	}
	return ""
}
