// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"
)

// TestTransparency_generatedLists runs generated lists bare and wrapped. They must agree but for what the design
// states: the undo, the DEL of what was undone, the second and third try of a DEL, and what the record adds to a DEL.
func TestTransparency_generatedLists(t *testing.T) {
	t.Parallel()
	seed, lists := *seedFlag, *listsFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1_000_000_000
	}
	if lists == 0 {
		lists = 500
		if testing.Short() {
			lists = 15
		}
	}
	t.Logf("%d lists from -seed=%d", lists, seed)
	for i := range lists {
		t.Run(fmt.Sprintf("seed=%d", seed+uint64(i)), func(t *testing.T) {
			t.Parallel()
			newGenerator(seed+uint64(i)).trial().run(t, seed+uint64(i))
		})
	}
}

func (tr trial) run(t *testing.T, seed uint64) {
	h := newHost(t, "a", "b", "c", "d", "e", "f", "p", "q")
	for name, steps := range tr.scripts {
		plugin, verb, _ := strings.Cut(name, ".")
		h.on(plugin, verb, steps...)
	}
	bare, wrapped := h.runtime(tr.list.bare()), h.runtime(tr.list.wrapped(h))
	m := &model{t: t, h: h, trial: tr}
	for i, s := range tr.steps {
		s, ok := m.prepare(s)
		if !ok {
			continue
		}
		want := m.expect(s, bare.do(s))
		got := wrapped.do(s)
		m.compare(s, want, got)
		if t.Failed() {
			var did []string
			for name, steps := range tr.scripts {
				did = append(did, name+": "+strings.Join(steps, "; "))
			}
			slices.Sort(did)
			t.Fatalf("at step %d, %s. Again with -run TestTransparency -seed=%d -lists=1\n%s\n%s",
				i+1, s.verb, seed, tr.list.wrapped(h), strings.Join(did, "\n"))
		}
	}
}

// state is what lockwrap should know of the attachment.
type state int

const (
	unknown   state = iota // no record
	added                  // and libcni has the result as well
	addedOnly              // a plugin after lockwrap failed, so libcni has no result
	undone                 // a failed ADD, all cleaned up
	leftover               // a failed ADD, and a DEL of the undo failed
	deleting               // a DEL that failed, of an attachment never added
)

// model turns what the bare list did into what the wrapped one should do.
type model struct {
	t     *testing.T
	h     *host
	trial trial

	state state
	add   outcome // of the last ADD, bare
	stuck bool    // an earlier attachment has leftovers that no ADD could remove
}

// expected is one step of the wrapped list.
type expected struct {
	calls   []seen
	again   map[string]bool // calls that may come up to three times in a row
	result  string
	problem *problem
	cache   map[string]any
	loose   bool // only look for panics
	clean   bool // DELs of what is left may come before
}

// prepare keeps the runtime from steps whose outcome the design leaves open.
func (m *model) prepare(s step) (step, bool) {
	switch {
	case s.verb == "GC" && (m.state > added || m.atLeast("1.1.0") && m.delFails()):
		s.gc = &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: ifname}}}
	case s.verb == "ADD" && (m.state == added || m.state == addedOnly):
		return s, false // a second ADD of a live attachment has its own tests
	case s.verb == "DEL" && m.state == deleting:
		s.caps = m.trial.caps
	}
	return s, true
}

// delFails: lockwrap's GC may try once more what the DEL of the same GC has just failed to do.
func (m *model) delFails() bool {
	return slices.ContainsFunc(m.trial.list.delegates, func(d entry) bool { return m.trial.fails[typeOf(d)+".DEL"] })
}

func (m *model) atLeast(v string) bool {
	lv := m.trial.list.version
	if lv == "-" {
		return false
	}
	ok, err := version.GreaterThanOrEqualTo(lv, v)
	return err == nil && ok
}

// index is the place of a call among the delegates, or -1. It goes by the key the generator wrote.
func (m *model) index(r record) int {
	conf := r.conf(m.t)
	for i, d := range m.trial.list.delegates {
		if typeOf(d) == r.Name && fmt.Sprint(conf["index"]) == fmt.Sprint(d["index"]) {
			return i
		}
	}
	return -1
}

func (m *model) expect(s step, bare outcome) expected {
	m.t.Helper()
	e := expected{
		calls: m.h.seen(bare.calls), again: map[string]bool{}, result: bare.result,
		problem: asProblem(bare.err), cache: bare.cache,
	}
	switch s.verb {
	case "ADD":
		e.clean = m.state == leftover || m.state == deleting || m.stuck
		m.stuck = e.clean && m.delFails()
		m.expectAdd(&e, bare)
		if m.stuck && m.state == undone {
			m.state = leftover
		}
	case "DEL":
		e.loose = m.state == leftover || m.stuck
		m.expectDel(&e, bare, m.given(s.caps))
	case "GC":
		e.loose = m.stuck
		m.expectGC(&e, bare)
	}
	return e
}

// expectAdd: R32 to R36.
func (m *model) expectAdd(e *expected, bare outcome) {
	m.add = bare
	m.state = added
	if bare.err == nil {
		return
	}
	last := bare.calls[len(bare.calls)-1]
	failed := m.index(last)
	switch {
	case failed >= 0:
		e.problem.Text = `plugin type="lockwrap" failed (add): ` + e.problem.Text
		m.state = undone
	case last.Name == "q":
		m.state = addedOnly
	default:
		m.state = unknown
	}
	good := last.conf(m.t)["prevResult"]
	for i := failed; i >= 0; i-- {
		call := m.delegateCall(bare.calls, i)
		del := m.h.seen([]record{call})[0]
		del.Call = "DEL " + call.Name
		del.Env = slices.Clone(del.Env)
		for j, kv := range del.Env {
			if kv == "CNI_COMMAND=ADD" {
				del.Env[j] = "CNI_COMMAND=DEL"
			}
		}
		conf := del.Conf.(map[string]any)
		m.setPrevResult(conf, good)
		e.calls = append(e.calls, del)
		if m.trial.fails[call.Name+".DEL"] {
			e.again[del.Call] = true
			m.state = leftover
		}
	}
}

func (m *model) delegateCall(calls []record, i int) record {
	for _, c := range calls {
		if m.index(c) == i {
			return c
		}
	}
	m.t.Fatalf("no call of delegate %d", i)
	return record{}
}

// setPrevResult puts the result into a DEL as libcni would: in the version of the list, not at all below 0.4.0.
func (m *model) setPrevResult(conf map[string]any, good any) {
	delete(conf, "prevResult")
	if good == nil || !m.atLeast("0.4.0") {
		return
	}
	b, err := json.Marshal(good)
	m.h.must(err)
	r, err := create.CreateFromBytes(b)
	m.h.must(err)
	if r, err = r.GetAsVersion(m.trial.list.version); err != nil {
		return
	}
	b, err = json.Marshal(r)
	m.h.must(err)
	conf["prevResult"] = decode(m.t, string(b))
}

// given tells whether lockwrap is given any capability arguments.
func (m *model) given(caps map[string]any) bool {
	for _, d := range m.trial.list.delegates {
		for _, c := range capabilities(d) {
			if _, ok := caps[c]; ok {
				return true
			}
		}
	}
	return false
}

func (m *model) expectDel(e *expected, bare outcome, given bool) {
	calls := []seen{}
	reached, failed := false, false // lockwrap; one of the delegates
	for i, c := range bare.calls {
		d := m.index(c)
		if d < 0 {
			calls = append(calls, e.calls[i])
			reached = reached || c.Name == "p"
			continue
		}
		reached = true
		if m.state == undone {
			failed = failed || m.trial.fails[c.Name+".DEL"]
			continue
		}
		m.fromRecord(e.calls[i].Conf.(map[string]any), d, given)
		calls = append(calls, e.calls[i])
		if m.trial.fails[c.Name+".DEL"] {
			failed = true
			e.again[e.calls[i].Call] = true
		}
	}
	e.calls = calls
	switch {
	case failed && m.state == undone:
		// The bare list stopped at a delegate; the wrapped one has none to call and goes on to what stands before.
		e.problem = nil
		if len(m.trial.list.before) > 0 {
			e.loose = true
		}
		e.cache = map[string]any{}
		m.state = unknown
	case failed:
		e.problem.Text = m.named(e.problem.Text)
		if m.state == unknown {
			m.state = deleting
		}
	case reached && m.state != leftover:
		m.state = unknown
	case m.state == leftover && bare.err == nil:
		m.state = unknown
	}
}

// fromRecord fills what the runtime left out of a DEL from what the ADD got.
func (m *model) fromRecord(conf map[string]any, i int, given bool) {
	if m.state != added && m.state != addedOnly {
		return
	}
	if m.state == addedOnly {
		for _, c := range m.add.calls {
			if c.Name == "q" {
				m.setPrevResult(conf, c.conf(m.t)["prevResult"])
			}
		}
	}
	if rc, ok := m.delegateCall(m.add.calls, i).conf(m.t)["runtimeConfig"]; ok && !given {
		conf["runtimeConfig"] = rc
	}
}

// named puts lockwrap into libcni's description of a failed DEL.
func (m *model) named(text string) string {
	return strings.Replace(text, `plugin type=`, `plugin type="lockwrap" failed (delete): plugin type=`, 1)
}

// expectGC: the DELs of what is not valid any more, then GC with all errors joined (R27).
func (m *model) expectGC(e *expected, bare outcome) {
	if e.problem == nil {
		e.problem = &problem{}
	}
	var dels outcome
	for _, c := range bare.calls {
		if c.Verb == "DEL" {
			dels.calls = append(dels.calls, c)
		}
	}
	if len(dels.calls) > 0 {
		sub := expected{calls: e.calls[:len(dels.calls)], again: e.again, problem: &problem{}}
		rest := e.calls[len(dels.calls):]
		m.expectDel(&sub, dels, true)
		e.calls = append(slices.Clone(sub.calls), rest...)
	}
	var lines []string
	named := false
	for line := range strings.SplitSeq(e.problem.Text, "\n") {
		if strings.HasPrefix(line, "failed to delete stale") {
			last := dels.calls[len(dels.calls)-1]
			if m.index(last) >= 0 {
				line = m.named(line)
			}
		}
		for _, d := range m.trial.list.delegates {
			if !named && strings.HasPrefix(line, "failed to GC plugin "+typeOf(d)+":") {
				line = "failed to GC plugin lockwrap: " + line
				named = true
			}
		}
		lines = append(lines, line)
	}
	e.problem.Text = strings.Join(lines, "\n")
	e.problem.Details = "any" // details of several errors become part of the text
	if e.problem.Text == "" {
		e.problem = nil
	}
}

func (m *model) compare(s step, want expected, got outcome) {
	t := m.t
	t.Helper()
	if panicked(got.stderr) {
		t.Errorf("%s: a panic: %s", s.verb, got.stderr)
	}
	if want.loose {
		return
	}
	if want.clean {
		got.calls = slices.DeleteFunc(got.calls, func() func(record) bool {
			begun := false
			return func(r record) bool {
				begun = begun || (r.Verb == "ADD" && m.index(r) >= 0)
				return !begun && r.Verb == "DEL"
			}
		}())
	}
	calls := collapse(withoutMark(t, m.h, m.trial.list, got.calls), want.again)
	if d := cmp.Diff(want.calls, calls); d != "" {
		t.Errorf("%s: plugins, expected (-) and wrapped (+):\n%s", s.verb, d)
	}
	if d := cmp.Diff(want.result, got.result); d != "" {
		t.Errorf("%s: result:\n%s", s.verb, d)
	}
	p := asProblem(got.err)
	if p != nil && want.problem != nil {
		p.Text = likeOldLibcni(p.Text)
		if want.problem.Code == 0 && (p.Code == types.ErrDecodingFailure || p.Code >= 100) {
			p.Code = 0 // the bare error had no code: one that fits, or that the specification leaves to plugins, will do
		}
		p.Text = noMessage.ReplaceAllString(p.Text, "")
		want.problem.Text = noMessage.ReplaceAllString(want.problem.Text, "")
		if want.problem.Details == "any" {
			p.Details = "any"
		}
		if m.state == leftover && s.verb == "ADD" {
			p.Text, p.Details = cutUndo(p.Text), cutUndo(p.Details)
		}
	}
	if d := cmp.Diff(want.problem, p); d != "" {
		t.Errorf("%s: error:\n%s", s.verb, d)
	}
	if d := cmp.Diff(want.cache, got.cache); d != "" {
		t.Errorf("%s: libcni's cache:\n%s", s.verb, d)
	}
}

// noMessage: of a plugin that printed an error without a message lockwrap may say how it ended.
var noMessage = regexp.MustCompile(`netplugin failed with no error message: (?:exit status \d+|signal: [a-z ]+)`)

// collapse makes one of up to three same calls in a row.
func collapse(calls []seen, again map[string]bool) []seen {
	out := []seen{}
	times := 0
	for i, c := range calls {
		if i > 0 && again[c.Call] && times < 3 && cmp.Equal(c, calls[i-1]) {
			times++
			continue
		}
		times = 1
		out = append(out, c)
	}
	return out
}

// cutUndo takes off what lockwrap adds to the details when the undo failed as well.
func cutUndo(s string) string {
	before, _, _ := strings.Cut(s, "could not undo ")
	return strings.TrimSuffix(before, "; ")
}
