// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

const (
	// termGrace is how long a delegate may take to end after SIGTERM.
	termGrace = 2 * time.Second
	// pipeGrace is how long output is waited for after a delegate has ended
	// and a process it left behind still holds its pipes.
	pipeGrace = time.Second
	// busyLimit is how long a delegate's binary may be "text file busy", that
	// is, in the middle of being replaced (calico#8932).
	busyLimit = 5 * time.Second

	maxStdout  = 16 << 20 // more is no CNI result
	keptStderr = 64 << 10
	// quoted is how much of a delegate's output an error message shows.
	quoted = 2 << 10
)

var (
	errStopped    = errors.New("stopped by a signal")
	errCallerGone = errors.New("the runtime is gone")
)

// runner runs one delegate as a process, for the functions of pkg/invoke.
type runner struct {
	version.PluginDecoder

	log     *slog.Logger
	logs    io.Writer // where the delegate's stderr goes
	limit   time.Duration
	started func(group int, plugin process) // called before the delegate gets its configuration

	group   int    // process group of the delegate, 0 if it was not started
	printed []byte // the delegate's stdout
}

var _ invoke.Exec = (*runner)(nil)

// FindInPath is libcni's; the callers have found the plugin already.
func (r *runner) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// ExecPlugin runs the plugin in a process group of its own and with pipes of
// its own: the runtime waits for everybody who holds its pipes (go#21922), and
// a killed plugin's children must not go on changing rules. If lockwrap dies,
// the plugin dies with it, as it would have died with the runtime's kill.
//
// Errors are *types.Error in libcni's words: the plugin's own, or what became
// of the process.
func (r *runner) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, ownError(errOther, "", "not started: %w", context.Cause(ctx))
	}
	// The parent-death signal comes when the thread that started the child
	// ends, not the process (go#27505).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	var stdout, stderr bytes.Buffer
	out := &capped{buf: &stdout}
	cmd, feed, err := r.start(ctx, path, environ, out, &tail{buf: &stderr})
	if err != nil {
		failed := pluginError(err, nil, nil)
		if verb, _ := lookupEnv(environ, "CNI_COMMAND"); verb == "DEL" {
			failed.Msg = loud(failed.Msg)
		}
		return nil, failed
	}
	r.group = cmd.Process.Pid
	born, _ := readProcess(r.group)
	start := time.Now()
	r.started(r.group, born)
	go feed(stdin)

	err, ended := r.wait(ctx, cmd)
	r.log.Debug("delegate has run", "took", time.Since(start).Round(time.Microsecond), "err", err)
	if !ended {
		return nil, err
	}
	_, _ = r.logs.Write(stderr.Bytes())
	if errors.Is(err, exec.ErrWaitDelay) {
		r.log.Warn("a process that the delegate left behind holds its output open; not waiting for it", "group", r.group)
		err = nil
	}
	if out.full {
		err = ownError(errOther, "", "the plugin printed more than %d MiB to stdout", maxStdout>>20)
	}
	if err != nil {
		settle(born, r.group, environ)
		return nil, pluginError(err, stdout.Bytes(), stderr.Bytes())
	}
	r.printed = stdout.Bytes()
	return r.printed, nil
}

// readyToStart has Go do what it does once, before the first process is started from
// a locked thread: while the lock is held others would wait for it. That is a thread
// that can start further ones, and a try-out of pidfds with a process of its own.
func readyToStart() {
	runtime.LockOSThread()
	runtime.UnlockOSThread()
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Release()
	}
}

// start starts the plugin, which waits for its configuration until feed is
// called.
func (r *runner) start(ctx context.Context, path string, environ []string, stdout, stderr io.Writer) (cmd *exec.Cmd, feed func([]byte), err error) {
	for deadline := time.Now().Add(busyLimit); ; time.Sleep(100 * time.Millisecond) {
		cmd = exec.Command(path)
		cmd.Env = environ
		cmd.Stdout = stdout
		cmd.Stderr = stderr
		cmd.WaitDelay = pipeGrace
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		in, err := cmd.StdinPipe()
		if err != nil {
			return nil, nil, err
		}
		err = cmd.Start()
		if errors.Is(err, syscall.ETXTBSY) && time.Now().Before(deadline) && ctx.Err() == nil {
			continue
		}
		return cmd, func(stdin []byte) {
			// A plugin that does not read its stdin is free not to.
			_, _ = in.Write(stdin)
			_ = in.Close()
		}, err
	}
}

// wait waits for the plugin's end, which comes by force when its time is up or
// lockwrap is told to stop. Only a process that the kernel can't kill is not
// ended then.
func (r *runner) wait(ctx context.Context, cmd *exec.Cmd) (err error, ended bool) {
	end := make(chan error, 1)
	go func() { end <- cmd.Wait() }()
	limit := time.NewTimer(r.limit)
	defer limit.Stop()

	var why *types.Error
	select {
	case err := <-end:
		return err, true
	case <-limit.C:
		why = ownError(errOther, `raise "pluginTimeout" if the plugin is only slow`,
			"killed after running longer than pluginTimeout (%s)", r.limit)
	case <-ctx.Done():
		why = ownError(errOther, "", "killed: %w", context.Cause(ctx))
	}
	if p, err := readProcess(cmd.Process.Pid); err != nil || p.state == "Z" {
		select {
		case err := <-end:
			return err, true // in time; lockwrap itself was stopped for a while
		case <-time.After(pipeGrace + termGrace):
			// Only its first thread has ended.
		}
	}
	if children := commands(cmd.Process.Pid); children != "" {
		addDetail(why, loud("it was running "+children))
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		_ = syscall.Kill(-cmd.Process.Pid, sig)
		select {
		case <-end:
			return why, true
		case <-time.After(termGrace):
		}
	}
	return why, false
}

// settle waits until nobody is left of a failed plugin's process group, nor of
// what a lockwrap below it has started: an iptables call that outlives it would
// still change rules during the undo. What carries another lockwrap's mark is
// that one's to settle.
func settle(plugin process, group int, environ []string) {
	mark, _ := lookupEnv(environ, heldVariable)
	below := func(process) bool { return false }
	if strings.HasPrefix(mark, fmt.Sprintf("%d:", os.Getpid())) && plugin.start > 0 {
		session, _ := unix.Getsid(0)
		below = inSession(session, plugin.start)
	}
	outwait(time.Second, func() []int {
		left := stragglers(mark, below)
		// The quick question counts zombies that nobody has reaped yet.
		if syscall.Kill(-group, 0) == nil {
			left = append(left, groupMembers(group)...)
		}
		return left
	})
}

// commands are the command lines of what a plugin is waiting for.
func commands(group int) string {
	var lines []string
	for _, pid := range groupMembers(group) {
		if pid != group {
			lines = append(lines, strconv.Quote(command(pid)))
		}
	}
	return strings.Join(lines, ", ")
}

// pluginError says what became of a plugin in the words of libcni's RawExec.
func pluginError(err error, stdout, stderr []byte) *types.Error {
	var own *types.Error
	if errors.As(err, &own) {
		if len(stderr) > 0 {
			addDetail(own, loud(fmt.Sprintf("the plugin's stderr: %q", last(stderr))))
		}
		return own
	}
	out := &types.Error{}
	switch {
	case len(stdout) == 0 && len(stderr) == 0:
		out.Msg = fmt.Sprintf("netplugin failed with no error message: %v", err)
	case len(stdout) == 0:
		out.Msg = fmt.Sprintf("netplugin failed: %q: %v", last(stderr), err)
	default:
		if perr := json.Unmarshal(stdout, out); perr != nil {
			// What could be read of it stays: the code, perhaps.
			out.Msg = fmt.Sprintf("netplugin failed but error parsing its diagnostic message %q: %.200v", last(stdout), perr.Error())
		}
		if out.Msg == "" {
			out.Msg = fmt.Sprintf("netplugin failed with no error message: %v", err)
		}
	}
	return out
}

func last(output []byte) string {
	return string(output[max(0, len(output)-quoted):])
}

// capped keeps a plugin from filling the memory.
type capped struct {
	buf  *bytes.Buffer
	full bool
}

func (c *capped) Write(p []byte) (int, error) {
	if c.buf.Len()+len(p) > maxStdout {
		c.full = true
		return 0, io.ErrShortWrite
	}
	return c.buf.Write(p)
}

// tail keeps the end of what is written to it.
type tail struct{ buf *bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	t.buf.Write(p)
	if excess := t.buf.Len() - keptStderr; excess > 0 {
		t.buf.Next(excess)
	}
	return len(p), nil
}
