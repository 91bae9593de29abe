// SPDX-License-Identifier: Apache-2.0

// Package rig builds hosts to try CNI lists on: each a network namespace with an iptables of its own choice, and
// containers that are further namespaces. It runs cnitool and lockwrap in them and tells what is left afterwards.
//
// A program that uses it calls Enter first. Nothing it does then reaches the machine: names in /run/netns, files in
// /run and /var/lib/cni, links and rules exist only in namespaces which end with the program, however it ends.
package rig

import (
	"errors"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

const insideEnv = "LOCKWRAP_RIG_INSIDE"

// Enter runs the program once more in a mount and a network namespace of its own, waits for it and exits with its
// exit status. In that second run it puts empty file systems over /run and /var/lib/cni and returns. Without root it
// returns at once: NewHost then says so.
func Enter() error {
	if os.Geteuid() != 0 {
		return nil
	}
	if os.Getenv(insideEnv) != "" {
		os.Unsetenv(insideEnv)
		// Where Debian has iptables and ip, which the PATH of a root shell need not name.
		os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
		return mountPrivate()
	}
	code, err := runInside()
	if err != nil {
		return err
	}
	os.Exit(code)
	return nil
}

// mountPrivate hides what the machine and the hosts would otherwise share: the names of network namespaces, the D-Bus
// socket by which the firewall plugin finds firewalld, and the cache directory that is compiled into cnitool.
func mountPrivate() error {
	for _, dir := range []string{"/run", "/var/lib/cni"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("lockwrap-rig", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
		}
	}
	return nil
}

func runInside() (int, error) {
	// Plugins whose caller was killed become our children, so that we can wait for the last of them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("become subreaper: %w", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)

	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	inside, err := os.StartProcess(self, os.Args, &os.ProcAttr{
		Env:   append(os.Environ(), insideEnv+"=1"),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys: &unix.SysProcAttr{
			Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET,
			// It follows the thread, and this one is the main thread.
			Pdeathsig: unix.SIGKILL,
		},
	})
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w; if this is a chroot, its directory must be a mount point: mount --bind DIR DIR, before chroot DIR", err)
	}
	if err != nil {
		return 0, fmt.Errorf("start in a namespace of its own: %w", err)
	}
	go func() {
		for s := range signals {
			unix.Kill(inside.Pid, s.(unix.Signal))
		}
	}()

	code, ended := 0, false
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return code, nil // no child is left
		case pid == inside.Pid:
			ended = true
			code = status.ExitStatus()
			if status.Signaled() {
				code = 128 + int(status.Signal())
			}
		}
		if ended {
			killChildren()
		}
	}
}

func killChildren() {
	for pid, p := range Processes() {
		if p.Parent == os.Getpid() {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}
