// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// call is one invocation by the runtime.
type call struct {
	verb string
	args *skel.CmdArgs
	env  environment // what the runtime gave, for the delegates
	conf *NetConf
	log  *slog.Logger
	logs io.Writer

	caller context.Context // ends with the process that called us
	lock   *hostLock       // nil without a lock of our own
	rec    *record
	others []*record // of other lockwrap entries of the list
	live   bool      // the attachment was there before this ADD

	firstLink int  // where this call's delegates begin in the record: 0 but for stand-ins
	saved     bool // this call has written its record

	began      time.Time
	last       time.Time     // step
	parts      []any         // of the time, each a name and a duration
	wait, hold time.Duration // for the lock, and under it
	result     []byte        // of ADD
}

// Main runs the plugin: CNI_COMMAND says what to do, stdin has the lockwrap
// entry. It prints one JSON document or nothing to stdout, and returns the exit
// code. Without CNI_COMMAND it prints who it is to stderr, and does not touch
// stdin.
func Main() (exitCode int) { return handle(os.Environ(), parse) }

// handle runs one verb on the configuration that parse makes of stdin.
func handle(environ []string, parse parser) (exitCode int) {
	// A runtime that died leaves broken pipes. A log line must not end a call
	// half-way, so writing to them is an error and not a signal.
	notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	// After an ADD, skel checks that CNI_NETNS is not its own namespace and
	// would print an error behind the result. The delegates check it for
	// themselves; they get the environment as it was.
	os.Setenv("CNI_NETNS_OVERRIDE", "true")
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "lockwrap: %v\n%s", p, debug.Stack())
			_ = ownError(types.ErrInternal, "please report this with the stack trace on stderr", "internal error: %v", p).Print()
			exitCode = 1
		}
	}()

	verb := func(name string, steps func(*call, context.Context) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error { return serve(name, steps, parse, args, environ) }
	}
	about := ""
	if os.Getenv("CNI_COMMAND") == "" {
		about = About() // costs a parse of the build's data, which no container start needs
	}
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    verb("ADD", (*call).cmdAdd),
		Del:    verb("DEL", (*call).cmdDel),
		Check:  verb("CHECK", (*call).cmdCheck),
		GC:     verb("GC", (*call).cmdGC),
		Status: verb("STATUS", (*call).cmdStatus),
	}, version.All, about)
	if err != nil {
		_ = err.Print()
		return 1
	}
	return 0
}

type parser func(stdin []byte, environ []string) (*NetConf, error)

// serve parses the configuration, runs the steps of one verb, and logs the
// call's one line.
func serve(name string, steps func(*call, context.Context) error, parse parser, args *skel.CmdArgs, environ []string) error {
	began, started := time.Now(), startup()
	conf, err := parse(args.StdinData, environ)
	if err != nil {
		return err
	}
	logs, problem := openLog(conf.LogFile)
	c := &call{verb: name, args: args, conf: conf, env: environ, logs: logs, began: began, last: began, parts: []any{"startup", started}}
	c.log = slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: conf.LogLevel, ReplaceAttr: timestamp})).
		With("verb", name, "network", conf.Name, "container", args.ContainerID, "ifname", args.IfName)
	if problem != nil {
		c.log.Warn("cannot open the log file", "err", problem)
	}
	readyToStart()
	c.reached("parsed")

	ctx, stop := stoppable(context.Background())
	defer logs.flush() // without the lock, and when SIGTERM ends us again
	defer stop()
	err = steps(c, ctx)

	c.spent("end")
	c.log.Debug("where the time went", c.parts...)
	attrs := []any{"delegates", len(conf.Delegates), "wait", round(c.wait), "hold", c.hold.Round(time.Millisecond)}
	if err != nil {
		code := types.ErrInternal
		if cniErr := (*types.Error)(nil); errors.As(err, &cniErr) {
			code = cniErr.Code
		}
		c.log.Error("failed", append(attrs, "code", code, "err", err)...)
		return err
	}
	c.log.Info("done", attrs...)
	return nil
}

// stoppable returns a context that ends when lockwrap is told to stop.
func stoppable(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		cancel(fmt.Errorf("%w: %v", errStopped, <-signals))
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// notify relays signals, but for those that the runtime has told us to ignore:
// the delegates inherit that, as they would in the bare list.
func notify(c chan<- os.Signal, signals ...os.Signal) {
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// takeLock waits for the host's lock. A lockwrap above this one that holds it
// holds it for both.
func (c *call) takeLock(ctx context.Context) (unlock func(), err *types.Error) {
	start := time.Now()
	waiting, stopWatching := context.Context(ctx), func() {}
	if !heldAbove(c.env, c.conf.LockFile) {
		waiting, stopWatching = watchCaller(ctx)
		c.lock, err = lockHost(waiting, c.conf.LockFile, c.conf.LockTimeout,
			note{Verb: c.verb, Network: c.conf.Name, Container: c.args.ContainerID, IfName: c.args.IfName})
		c.wait = time.Since(start)
		if err != nil {
			stopWatching()
			return nil, err
		}
		c.env = c.env.with(heldVariable, heldMark(os.Getpid(), c.conf.LockFile))
		if c.wait > 5*time.Second {
			c.log.Warn("waited long for the lock", "wait", round(c.wait))
		}
	}
	c.caller = waiting
	locked := time.Now()
	c.reached("locked")
	return func() {
		stopWatching()
		if c.lock != nil {
			c.lock.unlock()
		}
		c.reached("unlocked")
		c.hold = time.Since(locked)
	}, nil
}

// runner runs delegate d as part of this call.
func (c *call) runner(d *delegate) *runner {
	return &runner{
		log:   c.log.With("plugin", d.Type),
		logs:  c.logs,
		limit: c.conf.PluginTimeout,
		started: func(group int, plugin process) {
			c.reached(d.Type + " started")
			if c.lock != nil {
				c.lock.running(group, plugin.start, d.Type)
			}
			if c.rec != nil {
				c.rec.Group = group
				c.saveRecord()
			}
			c.reached(d.Type + " on record")
		},
	}
}
