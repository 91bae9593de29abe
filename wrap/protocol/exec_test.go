// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// call is one direct call of lockwrap, for what libcni would not let through.
type call struct {
	verb  string
	id    string // "c1" when empty
	conf  string
	unset []string // variables to leave out
	env   []string // and to add
	only  []string // instead of what the tests themselves run with
}

// answer is what came back.
type answer struct {
	stdout, stderr string
	exit           int // -1 when killed by a signal
	took           time.Duration
}

func (h *host) environ(c call) []string {
	if c.id == "" {
		c.id = "c1"
	}
	env := os.Environ()
	if c.only != nil {
		env = slices.Clone(c.only)
	}
	env = append(env,
		"CNI_COMMAND="+c.verb, "CNI_CONTAINERID="+c.id, "CNI_NETNS="+h.netns, "CNI_IFNAME="+ifname,
		"CNI_PATH="+strings.Join(h.path(), ":"), "CNI_ARGS=")
	if c.verb == "GC" || c.verb == "STATUS" {
		env = append(env, "CNI_CONTAINERID=", "CNI_NETNS=", "CNI_IFNAME=")
	}
	env = append(env, h.env...)
	env = append(env, c.env...)
	for _, k := range c.unset {
		keep := env[:0]
		for _, kv := range env {
			if !strings.HasPrefix(kv, k+"=") {
				keep = append(keep, kv)
			}
		}
		env = keep
	}
	return env
}

// running is a lockwrap that was started and not yet waited for.
type running struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr *bytes.Buffer
	began          time.Time
	cancel         context.CancelFunc
}

// start starts lockwrap.
func (h *host) start(c call) *running {
	h.t.Helper()
	r := h.prepare(c)
	h.must(r.cmd.Start())
	return r
}

// prepare readies lockwrap to be started. A minute is more than any call here may take.
func (h *host) prepare(c call) *running {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	r := &running{t: h.t, stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}, began: time.Now(), cancel: cancel}
	r.cmd = exec.CommandContext(ctx, lockwrapBin)
	r.cmd.Env = h.environ(c)
	r.cmd.Stdin = strings.NewReader(c.conf)
	r.cmd.Stdout, r.cmd.Stderr = r.stdout, r.stderr
	h.t.Cleanup(func() { _ = r.cmd.Process.Kill(); cancel() })
	return r
}

func (r *running) wait() answer {
	r.t.Helper()
	err := r.cmd.Wait()
	r.cancel()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		r.t.Fatal(err)
	}
	a := answer{r.stdout.String(), r.stderr.String(), r.cmd.ProcessState.ExitCode(), time.Since(r.began)}
	if panicked(a.stderr) || panicked(a.stdout) {
		r.t.Errorf("a panic: %s", a.stderr)
	}
	return a
}

func (r *running) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

func (h *host) call(c call) answer {
	h.t.Helper()
	return h.start(c).wait()
}

// conf writes the stdin of a lockwrap call as libcni would, with more keys of the lockwrap entry.
func (h *host) conf(version string, more entry, delegates ...entry) string {
	h.t.Helper()
	e := h.wrap(more, delegates...)
	e["name"], e["cniVersion"] = network, version
	b, err := json.Marshal(e)
	h.must(err)
	return string(b)
}

// ok demands success.
func (a answer) ok(t *testing.T) answer {
	t.Helper()
	if a.exit != 0 {
		t.Fatalf("exit %d: %s%s", a.exit, a.stdout, a.stderr)
	}
	return a
}

// failure demands exit 1 and exactly one CNI error on stdout.
func (a answer) failure(t *testing.T) types.Error {
	t.Helper()
	if a.exit != 1 {
		t.Fatalf("exit %d instead of 1: %s%s", a.exit, a.stdout, a.stderr)
	}
	v, ok := decode(t, a.stdout).(map[string]any)
	if !ok {
		t.Fatalf("not an error object: %s", a.stdout)
	}
	if _, ok := v["code"]; !ok {
		t.Errorf("no code in %s", a.stdout)
	}
	var e types.Error
	if err := json.Unmarshal([]byte(a.stdout), &e); err != nil || e.Msg == "" {
		t.Fatalf("not a CNI error (%v): %s", err, a.stdout)
	}
	return e
}

// records lists the files of the attachment records.
func (h *host) records() []string {
	h.t.Helper()
	files, err := filepath.Glob(filepath.Join(h.run, "attachments", "*"))
	h.must(err)
	return files
}

func mustMatch(t *testing.T, pattern, text string) {
	t.Helper()
	if !regexp.MustCompile(`(?s)` + pattern).MatchString(text) {
		t.Errorf("%q does not match %s", text, pattern)
	}
}
