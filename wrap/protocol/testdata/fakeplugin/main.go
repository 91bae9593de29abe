// SPDX-License-Identifier: Apache-2.0

// Fakeplugin stands in for any CNI plugin: it writes down how it was called and then does what a script tells it.
//
// It is linked under many names. Beside the executable lie
//
//	log         one record for the start of a call, one for its stdin, one for its end
//	NAME.VERB   the script for that name and verb, one step a line; without it the plugin just succeeds
//	present     who is at work: see present
//	overlaps    who was at work for two calls at once
//
// Nothing comes by environment or arguments, so that a call looks the same whoever makes it.
package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

var (
	dir  = filepath.Dir(os.Args[0])
	name = filepath.Base(os.Args[0])
	verb = os.Getenv("CNI_COMMAND")

	stdin []byte
)

func init() { runtime.LockOSThread() } // main gets the first thread

func main() {
	if len(os.Args) == 3 && os.Args[1] == "daemon" {
		time.Sleep(duration(os.Args[2]))
		return
	}
	logStart()
	if len(os.Args) == 3 && os.Args[1] == "child" {
		present()
		time.Sleep(duration(os.Args[2]))
		exit(0)
	}
	steps := script()
	if !strings.Contains("\n"+steps, "\nread\n") && !strings.Contains("\n"+steps, "\nnoread\n") {
		read()
	}
	active := true
	for line := range strings.Lines(steps) {
		word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch {
		case word == "on":
			active = turn(rest)
		case active:
			step(word, rest)
		}
	}
	if verb == "ADD" {
		os.Stdout.WriteString(`{"dns":{"domain":` + strconv.Quote(name) + `}}`)
	}
	exit(0)
}

func script() string {
	b, _ := os.ReadFile(filepath.Join(dir, name+"."+verb))
	return string(b)
}

// step does one line of the script. A script that runs out goes on to the plain answer; "exit" ends it before.
func step(word, rest string) {
	switch word {
	case "read":
		read()
	case "noread":
	case "stdout":
		os.Stdout.WriteString(unquote(rest))
	case "stderr":
		os.Stderr.WriteString(unquote(rest))
	case "fill": // fill stdout|stderr BYTES
		stream, n, _ := strings.Cut(rest, " ")
		fill(stream, n)
	case "sleep":
		time.Sleep(duration(rest))
	case "touch":
		must(os.WriteFile(unquote(rest), nil, 0o600))
	case "await": // until that file is there
		for path := unquote(rest); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(path); err == nil {
				return
			}
		}
	case "ignore": // survives a polite request to stop
		signal.Ignore(syscall.SIGTERM)
	case "daemon": // daemon hold|free session|group DURATION
		daemon(strings.Fields(rest))
	case "child": // child DURATION: a process in this group that logs as we do, as an iptables call would be
		child(rest)
	case "call": // call NAME STDIN: a plugin that delegates, as bridge does to its IPAM
		plugin, conf, _ := strings.Cut(rest, " ")
		call(plugin, unquote(conf))
	case "threadexit": // only this thread ends; the process lives on in another one
		go func() {
			runtime.LockOSThread()
			time.Sleep(time.Minute)
			os.Exit(0)
		}()
		time.Sleep(10 * time.Millisecond)
		syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
	case "panic":
		panic(rest)
	case "kill":
		die(syscall.Signal(number(rest)))
	case "exit":
		exit(number(rest))
	default:
		panic("unknown step " + word)
	}
}

// turn counts the calls in a file and tells whether this is call N ("N") or a later one ("N+").
func turn(which string) bool {
	f, err := os.OpenFile(filepath.Join(dir, name+"."+verb+".count"), os.O_CREATE|os.O_RDWR, 0o600)
	must(err)
	defer f.Close()
	if count == 0 {
		fi, err := f.Stat()
		must(err)
		count = int(fi.Size()) + 1
		_, err = f.WriteAt([]byte{'.'}, fi.Size())
		must(err)
	}
	if n, more := strings.CutSuffix(which, "+"); more {
		return count >= number(n)
	}
	return count == number(which)
}

var count int

func read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := os.Stdin.Read(buf)
		stdin = append(stdin, buf[:n]...)
		if err != nil {
			break
		}
	}
	write("event", "stdin", "pid", pid(), "stdin", string(stdin))
	// The caller died before it gave us anything to do; a plugin would fail now.
	if len(stdin) > 0 {
		present()
	}
}

// present shows that this process works for the call with the number in the variable CALL, if there is one, and looks
// whether anybody works for another call. A process shows itself by a lock on the byte of that number, which the kernel
// takes away when the process ends, however it ends. Each locks before it looks, so of two that overlap in time at least
// one sees the other.
func present() {
	call, err := strconv.ParseInt(os.Getenv("CALL"), 10, 64)
	if err != nil {
		return
	}
	f, err := os.OpenFile(filepath.Join(dir, "present"), os.O_CREATE|os.O_RDWR, 0o600)
	must(err)
	here = f // never closed, or the lock would be gone
	must(syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_RDLCK, Start: call, Len: 1}))
	for _, others := range []syscall.Flock_t{{Start: 0, Len: call}, {Start: call + 1}} {
		others.Type = syscall.F_WRLCK
		must(syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &others))
		if others.Type == syscall.F_UNLCK {
			continue
		}
		out, err := os.OpenFile(filepath.Join(dir, "overlaps"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		must(err)
		_, err = out.WriteString("process " + pid() + " (" + verb + " " + name + ") of call " + strconv.FormatInt(call, 10) +
			" began while " + strconv.Itoa(int(others.Pid)) + " was at work for call " +
			strconv.FormatInt(others.Start, 10) + "\n")
		must(err)
	}
}

var here *os.File

func fill(stream, n string) {
	out := os.Stdout
	if stream == "stderr" {
		out = os.Stderr
	}
	line := strings.Repeat(".", 1023) + "\n"
	for left := number(n); left > 0; left -= len(line) {
		out.WriteString(line[:min(left, len(line))])
	}
}

// daemon leaves a process behind, in this process group or away from it, with our pipes or without them.
func daemon(arg []string) {
	attr := &os.ProcAttr{Sys: &syscall.SysProcAttr{Setsid: arg[1] == "session"}}
	if arg[0] == "hold" {
		attr.Files = []*os.File{nil, os.Stdout, os.Stderr}
	}
	p, err := os.StartProcess("/proc/self/exe", []string{name, "daemon", arg[2]}, attr)
	must(err)
	write("event", "child", "pid", pid(), "child", strconv.Itoa(p.Pid))
}

func child(d string) {
	p, err := os.StartProcess("/proc/self/exe", []string{os.Args[0], "child", d}, &os.ProcAttr{Env: os.Environ()})
	must(err)
	write("event", "child", "pid", pid(), "child", strconv.Itoa(p.Pid))
}

func call(plugin, conf string) {
	for _, d := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		path := filepath.Join(d, plugin)
		if fi, err := os.Stat(path); err != nil || !fi.Mode().IsRegular() {
			continue
		}
		r, w, err := os.Pipe()
		must(err)
		p, err := os.StartProcess(path, []string{path}, &os.ProcAttr{
			Env: os.Environ(), Files: []*os.File{r, os.Stdout, os.Stderr},
		})
		must(err)
		r.Close()
		w.WriteString(conf)
		w.Close()
		st, err := p.Wait()
		must(err)
		exit(st.ExitCode())
	}
	panic("no plugin " + plugin)
}

// die ends by the signal itself; the Go runtime would turn some signals into a panic.
func die(sig syscall.Signal) {
	var byDefault [4]uint64 // a struct sigaction of zeros
	syscall.Syscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	must(syscall.Kill(os.Getpid(), sig))
	time.Sleep(time.Minute)
}

func exit(code int) {
	write("event", "end", "pid", pid(), "t", now(), "exit", strconv.Itoa(code))
	os.Exit(code)
}

func logStart() {
	var fds []string
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			fds = append(fds, e.Name()+" "+target)
		}
	}
	env, err := os.ReadFile("/proc/self/environ")
	must(err)
	// Of this thread: another one may be blocking all signals for a moment, to start a further one.
	status, err := os.ReadFile("/proc/thread-self/status")
	must(err)
	cwd, _ := os.Getwd()
	write("event", "start", "name", name, "verb", verb, "pid", pid(),
		"ppid", strconv.Itoa(os.Getppid()), "pgid", strconv.Itoa(syscall.Getpgrp()),
		"argv", strings.Join(os.Args, "\x00"), "cwd", cwd, "env", string(env), "fds", strings.Join(fds, "\n"),
		"status", string(status), "t", now())
}

// write appends one record in a single call, so that records of parallel plugins do not mix.
func write(fields ...string) {
	var b strings.Builder
	for i := 0; i < len(fields); i += 2 {
		b.WriteString(fields[i] + " " + strconv.Itoa(len(fields[i+1])) + "\n" + fields[i+1] + "\n")
	}
	b.WriteString("\n")
	if log == nil {
		var err error
		log, err = os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		must(err)
	}
	_, err := log.WriteString(b.String())
	must(err)
}

var log *os.File

func now() string {
	var ts syscall.Timespec
	const monotonic = 1
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&ts)), 0)
	return strconv.FormatInt(ts.Nano(), 10)
}

func pid() string { return strconv.Itoa(os.Getpid()) }

func unquote(s string) string {
	u, err := strconv.Unquote(s)
	must(err)
	return u
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	must(err)
	return n
}

func duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	must(err)
	return d
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
