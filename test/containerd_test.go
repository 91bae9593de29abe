// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/lockwrap/lockwrap/test/rig"
)

// Real containers, started by a containerd that nobody has changed and that takes no lock of its own.
func TestContainerd(t *testing.T) {
	needContainerd(t)
	t.Run("wrapped", func(t *testing.T) {
		h := newHost(t, rig.New, rig.NFT)
		ok(t, h.Wrapped(isolated(h)...))
		for _, problem := range startContainerd(t, h, "lockwrap").race(t, 12) {
			t.Error(problem)
		}
	})
	// If the race did not show here, the test above would show nothing.
	t.Run("bare", func(t *testing.T) {
		const rounds = 5
		for range rounds {
			h := newHost(t, rig.New, rig.NFT)
			ok(t, h.Bare(isolated(h)...))
			problems := startContainerd(t, h, "bridge").race(t, 12)
			problems = slices.DeleteFunc(problems, func(problem string) bool {
				return !strings.HasPrefix(problem, "duplicated: ") && !strings.Contains(problem, "CHAIN_USER_ADD failed")
			})
			if len(problems) > 0 {
				t.Logf("raced: %d problems, the first: %s", len(problems), problems[0])
				return
			}
		}
		t.Errorf("the bare list raced %d times without a failed ADD or a duplicated rule", rounds)
	})
}

// ctr has no host ports to give to portmap, so the shared rules are firewall's; with ingressPolicy there are more.
func isolated(h *rig.Host) []rig.Plugin {
	return []rig.Plugin{h.Bridge(rig.Net4), rig.Firewall().With("ingressPolicy", "same-bridge"), rig.Portmap()}
}

func needContainerd(t *testing.T) {
	t.Helper()
	var missing []string
	for program, pkg := range map[string]string{
		"containerd": "containerd", "ctr": "containerd", "runc": "runc", "busybox": "busybox-static",
	} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	// Debian has a busybox with shared libraries, too.
	if path, err := exec.LookPath("busybox"); err == nil {
		if file, err := elf.Open(path); err == nil {
			defer file.Close()
			if libs, err := file.ImportedLibraries(); err != nil || len(libs) > 0 {
				missing = append(missing, "busybox-static")
			}
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		t.Skipf("NO CONTAINERS STARTED: apt-get install %s", strings.Join(slices.Compact(missing), " "))
	}
}

// A containerd is a daemon on a host. Its namespace has the name of the host, and so has the cgroup above those of its
// containers.
type containerd struct {
	h   *rig.Host
	dir string
	pid string // of unshare, in whose namespaces all runs
}

// The daemon has a process namespace, so that its shims and containers die with it, however the test ends. Nothing of
// /etc and /opt is changed: in the daemon's mount namespace there are other directories over them.
const daemon = `
echo $$ >"$1/pid"
exec unshare --mount --pid --fork --kill-child --mount-proc sh -ec '
mount -t tmpfs none /etc
mkdir -p /etc/cni
ln -s "$NETCONFPATH" /etc/cni/net.d
mount -t tmpfs none /opt
mkdir -p /opt/cni
ln -s "$1/plugins" /opt/cni/bin
exec containerd --config "$1/config.toml" --root "$1/root" --state "$1/state" --address "$1/sock" --log-level warn
' sh "$1"`

// Two slow cores start one container after the other. The gate before the first plugin of the list lets the ADDs begin
// at once, as they do on a machine with many cores.
const gate = `#!/bin/sh
dir=%s
if [ "$CNI_COMMAND" = ADD ]; then
	: >"$dir/waiting/$CNI_CONTAINERID"
	read _ <"$dir/gate"
fi
exec %s
`

func startContainerd(t *testing.T, h *rig.Host, first string) *containerd {
	t.Helper()
	dir := filepath.Join(h.Dir, "containerd")
	for _, sub := range []string{"rootfs/bin", "rootfs/up", "plugins", "waiting"} {
		ok(t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	ok(t, unix.Mkfifo(filepath.Join(dir, "gate"), 0o600))
	busybox, err := exec.LookPath("busybox")
	ok(t, err)
	data, err := os.ReadFile(busybox)
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(dir, "rootfs/bin/busybox"), data, 0o755))
	ok(t, os.WriteFile(filepath.Join(dir, "config.toml"), []byte("version = 2\ndisabled_plugins = "+
		`["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper"]`+
		"\n"), 0o644))

	// containerd has one directory of plugins and not a path.
	for _, from := range filepath.SplitList(h.PluginPath()) {
		for _, name := range []string{"lockwrap", "bridge", "firewall", "portmap", "host-local"} {
			real, link := filepath.Join(from, name), filepath.Join(dir, "plugins", name)
			if _, err := os.Stat(real); err != nil {
				continue
			}
			if name == first {
				ok(t, os.WriteFile(link, fmt.Appendf(nil, gate, dir, real), 0o755))
			} else {
				ok(t, os.Symlink(real, link))
			}
		}
	}

	ended := make(chan rig.Run, 1)
	go func() { ended <- h.Exec("sh", "-ec", daemon, "sh", dir) }()
	c := &containerd{h: h, dir: dir}
	t.Cleanup(func() { c.close(t) })
	for deadline := time.Now().Add(time.Minute); !c.answers(); time.Sleep(100 * time.Millisecond) {
		select {
		case run := <-ended:
			t.Fatalf("containerd: %v", run)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("containerd does not answer")
		}
	}
	return c
}

func (c *containerd) answers() bool {
	if _, err := os.Stat(filepath.Join(c.dir, "sock")); err != nil {
		return false
	}
	pid, err := os.ReadFile(filepath.Join(c.dir, "pid"))
	c.pid = strings.TrimSpace(string(pid))
	return err == nil && c.ctr("version").OK()
}

// ctr has to be where the daemon is: ctr itself reads the list and runs the plugins.
func (c *containerd) ctr(args ...string) rig.Run {
	return c.h.Exec("nsenter", append([]string{
		"--mount=/proc/" + c.pid + "/ns/mnt", "--pid=/proc/" + c.pid + "/ns/pid_for_children",
		"ctr", "--address", filepath.Join(c.dir, "sock"), "--namespace", c.h.Name,
	}, args...)...)
}

// What each container does: tell its address once it has reached the bridge, and run until all may end.
const payload = `
PATH=/bin
busybox ping -c 1 -w 20 10.99.0.1 >/dev/null
set -- $1 $(busybox ip -4 -o address show dev eth0)
echo "${5%/*}" >/up/$1.new
busybox mv /up/$1.new /up/$1
until [ -e /end ]; do busybox sleep 0.3; done
`

// race starts n containers at once, then ends them at once, and returns what went wrong. Only a ctr that waits for its
// container deletes the network, so each stays until then.
func (c *containerd) race(t *testing.T, n int) (problems []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	defer context.AfterFunc(ctx, c.kill)()
	runs := make(chan rig.Run, n)
	for i := range n {
		id := fmt.Sprintf("c%d", i+1)
		go func() {
			runs <- c.ctr("run", "--rm", "--cni", "--rootfs", filepath.Join(c.dir, "rootfs"), id,
				"/bin/busybox", "sh", "-ec", payload, "sh", id)
		}()
	}
	c.await(ctx, n, runs, "waiting")
	gate, err := os.OpenFile(filepath.Join(c.dir, "gate"), os.O_RDWR, 0)
	ok(t, err)
	defer gate.Close()
	_, err = gate.WriteString(strings.Repeat("\n", n))
	ok(t, err)
	up := "rootfs/up"
	c.await(ctx, n, runs, up)

	s := stateOf(t, c.h)
	for _, twice := range s.Duplicates() {
		problems = append(problems, "duplicated: "+twice)
	}
	var addresses []string
	for _, file := range c.files(up) {
		address, err := os.ReadFile(file)
		ok(t, err)
		addresses = append(addresses, strings.TrimSpace(string(address)))
	}
	if slices.Sort(addresses); len(addresses) != n {
		problems = append(problems, fmt.Sprintf("%d of %d containers have a network", len(addresses), n))
	}
	slices.Sort(s.Addresses)
	if diff := cmp.Diff(s.Addresses, addresses); diff != "" {
		problems = append(problems, "addresses that are reserved and that the containers have (-want +got):\n"+diff)
	}

	ok(t, os.WriteFile(filepath.Join(c.dir, "rootfs/end"), nil, 0o644))
	for range n {
		// A failed DEL is an error in its log only.
		if run := <-runs; !run.OK() || strings.Contains(run.Stderr, "level=error") {
			problems = append(problems, fmt.Sprintf("ctr run: %v: %s", run.Err, run.Stderr))
		}
	}
	if err := stateOf(t, c.h).Gone(); err != nil {
		problems = append(problems, fmt.Sprintf("after the end of all: %v", err))
	}
	if left := c.ctr("containers", "list", "--quiet"); !left.OK() || left.Stdout != "" {
		problems = append(problems, fmt.Sprintf("ctr containers list: %v: %q", left, left.Stdout))
	}
	return problems
}

// await waits until each of n starts has either made its file or failed.
func (c *containerd) await(ctx context.Context, n int, ended <-chan rig.Run, dir string) {
	for len(ended)+len(c.files(dir)) < n && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond)
	}
}

func (c *containerd) files(dir string) []string {
	names, _ := filepath.Glob(filepath.Join(c.dir, dir, "*"))
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, ".new") })
}

func (c *containerd) kill() {
	if pid, err := strconv.Atoi(c.pid); err == nil {
		unix.Kill(pid, unix.SIGKILL)
	}
}

// close ends the daemon, its shims, and the containers whose start has failed, which containerd keeps. Their mounts and
// namespaces end with them, their cgroups do not.
func (c *containerd) close(t *testing.T) {
	t.Helper()
	c.kill()
	var err error
	for range 1000 {
		if err = c.removeCgroups(); err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond) // a cgroup is busy as long as it has processes
	}
	t.Error(err)
}

func (c *containerd) removeCgroups() error {
	v1, _ := filepath.Glob("/sys/fs/cgroup/*/" + c.h.Name)
	v2, _ := filepath.Glob("/sys/fs/cgroup/" + c.h.Name)
	var errs []error
	for _, top := range append(v1, v2...) {
		entries, _ := os.ReadDir(top)
		for _, e := range entries {
			if e.IsDir() {
				errs = append(errs, os.Remove(filepath.Join(top, e.Name())))
			}
		}
		errs = append(errs, os.Remove(top))
	}
	return errors.Join(errs...)
}
