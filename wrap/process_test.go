// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// script is a plugin made of a line of shell.
func script(t *testing.T, line string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+line+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func testRunner(limit time.Duration) *runner {
	return &runner{log: slog.New(slog.DiscardHandler), logs: io.Discard, limit: limit, started: func(int, process) {}}
}

func TestExecPlugin_errors(t *testing.T) {
	missingInterpreter := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(missingInterpreter, []byte("#!/no/such/shell\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	notExecutable := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(notExecutable, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, path string
		want       types.Error
	}{
		{"its own error", script(t, `echo '{"code": 107, "msg": "no luck", "details": "d"}'; exit 1`), types.Error{Code: 107, Msg: "no luck", Details: "d"}},
		{"stderr only", script(t, `echo boom >&2; exit 3`), types.Error{Msg: `netplugin failed: "boom\n": exit status 3`}},
		{"nothing", script(t, `exit 2`), types.Error{Msg: "netplugin failed with no error message: exit status 2"}},
		{"a signal", script(t, `kill -SEGV $$`), types.Error{Msg: "netplugin failed with no error message: signal: segmentation fault"}},
		{"a result and a failure", script(t, `echo '{"cniVersion": "1.0.0"}'; exit 1`), types.Error{Msg: "netplugin failed with no error message: exit status 1"}},
		{"no interpreter", missingInterpreter, types.Error{Msg: "netplugin failed with no error message: fork/exec " + missingInterpreter + ": no such file or directory"}},
		{"not executable", notExecutable, types.Error{Msg: "netplugin failed with no error message: fork/exec " + notExecutable + ": permission denied"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := testRunner(time.Minute).ExecPlugin(t.Context(), tt.path, nil, os.Environ())
			var got *types.Error
			if !errors.As(err, &got) {
				t.Fatalf("got %v, want a CNI error", err)
			}
			got.Msg = strings.Replace(got.Msg, " (core dumped)", "", 1)
			if *got != tt.want {
				t.Errorf("got  %+v\nwant %+v", *got, tt.want)
			}
		})
	}
}

// go-cni takes a DEL that fails with this text for a success.
func TestExecPlugin_errorsOfDel(t *testing.T) {
	_, err := testRunner(time.Minute).ExecPlugin(t.Context(), "/no/such/plugin", nil, []string{"CNI_COMMAND=DEL"})
	if err == nil || strings.Contains(err.Error(), "no such file or directory") || !strings.Contains(err.Error(), "/no/such/plugin") {
		t.Errorf("got %v", err)
	}
}

func TestExecPlugin_garbage(t *testing.T) {
	_, err := testRunner(time.Minute).ExecPlugin(t.Context(), script(t, `head -c 100000 /dev/zero | tr '\0' x; exit 1`), nil, os.Environ())
	if err == nil || !strings.Contains(err.Error(), "error parsing its diagnostic message") || len(err.Error()) > 2*quoted {
		t.Errorf("got %.200v (%d bytes)", err, len(fmt.Sprint(err)))
	}
}

// A plugin that writes before it reads must not hang (mesos#306).
func TestExecPlugin_pipes(t *testing.T) {
	r := testRunner(time.Minute)
	var logs bytes.Buffer
	r.logs = &logs
	out, err := r.ExecPlugin(t.Context(),
		script(t, `head -c 1000000 /dev/zero >&2; head -c 300000 /dev/zero | tr '\0' x; wc -c`), make([]byte, 200000), os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat("x", 300000) + "200000\n"; string(out) != want {
		t.Errorf("stdout has %d bytes, want %d", len(out), len(want))
	}
	if logs.Len() != keptStderr {
		t.Errorf("%d bytes of stderr were kept, want %d", logs.Len(), keptStderr)
	}
}

func TestExecPlugin_stops(t *testing.T) {
	tests := []struct {
		name, line string
		limit      time.Duration
		stop       bool
		want       string
	}{
		{"at its limit", "exec sleep 60", 100 * time.Millisecond, false, "pluginTimeout (100ms)"},
		{"with its children, which are named", "sleep 61 & wait", 300 * time.Millisecond, false, `it was running "sleep 61"`},
		{"when lockwrap is told to", "sleep 60", time.Minute, true, "stopped by a signal"},
		{"though it ignores SIGTERM", "trap '' TERM; sleep 60; sleep 60", 100 * time.Millisecond, false, "pluginTimeout"},
		{"with what it said", "echo waiting >&2; exec sleep 60", 300 * time.Millisecond, false, `the plugin's stderr: "waiting\n"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := testRunner(tt.limit)
			ctx, cancel := context.WithCancelCause(t.Context())
			r.started = func(int, process) {
				if tt.stop {
					cancel(errStopped)
				}
			}
			start := time.Now()
			_, err := r.ExecPlugin(ctx, script(t, tt.line), nil, os.Environ())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %s", took)
			}
			if left := groupMembers(r.group); r.group == 0 || len(left) > 0 {
				t.Errorf("process group %d has %v", r.group, left)
			}
		})
	}
}

func TestExecPlugin_notStarted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStopped)
	r := testRunner(time.Minute)
	if _, err := r.ExecPlugin(ctx, script(t, "exit 0"), nil, os.Environ()); err == nil || r.group != 0 {
		t.Errorf("started a plugin after the signal: %v", err)
	}
}

// A daemon that holds the pipes would keep libcni waiting for ever (cni#550).
func TestExecPlugin_daemon(t *testing.T) {
	r := testRunner(time.Minute)
	var group int
	r.started = func(g int, _ process) { group = g }
	start := time.Now()
	out, err := r.ExecPlugin(t.Context(), script(t, `sleep 60 & echo result`), nil, os.Environ())
	defer func() { _ = syscall.Kill(-group, syscall.SIGKILL) }()
	if err != nil || string(out) != "result\n" {
		t.Errorf("got %q, %v", out, err)
	}
	if took := time.Since(start); took > 10*pipeGrace {
		t.Errorf("took %s", took)
	}
}

func TestExecPlugin_tooMuch(t *testing.T) {
	_, err := testRunner(time.Minute).ExecPlugin(t.Context(), script(t, `exec cat /dev/zero`), nil, os.Environ())
	if err == nil || !strings.Contains(err.Error(), "16 MiB") {
		t.Errorf("got %.200v", err)
	}
}
