// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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
	tests := []struct {
		name   string
		write  func(*rig.Host, ...rig.Plugin) error
		races  bool
		rounds int
	}{
		{name: "wrapped", write: (*rig.Host).Wrapped, rounds: 1},
		// If the race did not show here, the test above would show nothing.
		{name: "bare", write: (*rig.Host).Bare, races: true, rounds: 5},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for round := range test.rounds {
				h := newHost(t, rig.New, rig.NFT)
				ok(t, test.write(h, h.Usual()...))
				problems := startContainerd(t, h).race(t, 12)
				if !test.races {
					for _, problem := range problems {
						t.Error(problem)
					}
				} else if len(problems) > 0 {
					t.Logf("round %d: %d problems, the first: %s", round+1, len(problems), problems[0])
					return
				}
			}
			if test.races {
				t.Errorf("the bare list raced %d times without a failed start or a duplicated rule", test.rounds)
			}
		})
	}
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
	if slices.Sort(missing); len(missing) > 0 {
		t.Skipf("NO CONTAINERS STARTED: apt-get install %s", strings.Join(slices.Compact(missing), " "))
	}
}

// A containerd is a daemon on a host. Its name there is that of the host, which is also that of its namespace and of the
// cgroup above those of its containers.
type containerd struct {
	h      *rig.Host
	dir    string
	rootfs string
	pid    int // whose mount namespace ctr joins: ctr itself reads the list and runs the plugins
}

// Nothing of /etc and /opt is changed: there are other directories over them in the daemon's mount namespace.
const daemon = `set -e
mount -t tmpfs none /etc
mkdir -p /etc/cni
ln -s "$NETCONFPATH" /etc/cni/net.d
mount -t tmpfs none /opt
mkdir -p /opt/cni
ln -s "$1/plugins" /opt/cni/bin
echo $$ >"$1/pid"
exec containerd --config "$1/config.toml" --root "$1/root" --state "$1/state" --address "$1/sock" --log-level warn
`

func startContainerd(t *testing.T, h *rig.Host) *containerd {
	t.Helper()
	dir := filepath.Join(h.Dir, "containerd")
	c := &containerd{h: h, dir: dir, rootfs: filepath.Join(dir, "rootfs")}
	for _, dir := range []string{"bin", "up"} {
		ok(t, os.MkdirAll(filepath.Join(c.rootfs, dir), 0o755))
	}
	busybox, err := exec.LookPath("busybox")
	ok(t, err)
	data, err := os.ReadFile(busybox)
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(c.rootfs, "bin", "busybox"), data, 0o755))
	ok(t, os.WriteFile(filepath.Join(dir, "config.toml"), []byte("version = 2\ndisabled_plugins = "+
		`["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper"]`+
		"\n"), 0o644))

	// Containerd has one directory of plugins and not a path.
	plugins := filepath.Join(dir, "plugins")
	ok(t, os.Mkdir(plugins, 0o755))
	for _, dir := range filepath.SplitList(h.PluginPath()) {
		for _, name := range []string{"lockwrap", "bridge", "firewall", "portmap", "host-local"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				ok(t, os.Symlink(filepath.Join(dir, name), filepath.Join(plugins, name)))
			}
		}
	}

	cmd := exec.Command("sh", "-c", daemon, "containerd", dir)
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	ended := make(chan rig.Run, 1)
	go func() { ended <- h.Cmd(cmd) }()
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
	pid, err := os.ReadFile(filepath.Join(c.dir, "pid"))
	if err != nil {
		return false
	}
	c.pid, err = strconv.Atoi(strings.TrimSpace(string(pid)))
	return err == nil && c.ctr(context.Background(), "version").OK()
}

func (c *containerd) ctr(ctx context.Context, args ...string) rig.Run {
	return c.h.Cmd(exec.CommandContext(ctx, "nsenter", append([]string{
		fmt.Sprintf("--mount=/proc/%d/ns/mnt", c.pid),
		"ctr", "--address", filepath.Join(c.dir, "sock"), "--namespace", c.h.Name,
	}, args...)...))
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
	runs := make(chan rig.Run, n)
	for i := range n {
		id := fmt.Sprintf("c%d", i+1)
		go func() {
			runs <- c.ctr(ctx, "run", "--rm", "--cni", "--rootfs", c.rootfs, id,
				"/bin/busybox", "sh", "-ec", payload, "sh", id)
		}()
	}
	up := filepath.Join(c.rootfs, "up")
	for len(runs)+len(started(up)) < n && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
	}

	s := stateOf(t, c.h)
	for _, twice := range s.Duplicates() {
		problems = append(problems, "duplicated: "+twice)
	}
	var addresses []string
	for _, file := range started(up) {
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

	ok(t, os.WriteFile(filepath.Join(c.rootfs, "end"), nil, 0o644))
	for range n {
		// A failed DEL is an error in its log only.
		if run := <-runs; !run.OK() || run.Stderr != "" {
			problems = append(problems, fmt.Sprintf("ctr run: %v: %s", run.Err, run.Stderr))
		}
	}
	if err := stateOf(t, c.h).Gone(); err != nil {
		problems = append(problems, fmt.Sprintf("after the end of all: %v", err))
	}
	if left := c.ctr(ctx, "containers", "list", "--quiet"); !left.OK() || left.Stdout != "" {
		problems = append(problems, fmt.Sprintf("ctr containers list: %v: %q", left, left.Stdout))
	}
	return problems
}

func started(up string) []string {
	names, _ := filepath.Glob(filepath.Join(up, "*"))
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, ".new") })
}

// close ends the daemon, its shims, and the containers whose start has failed, which containerd keeps. Their mounts and
// namespaces end with them, their cgroups do not.
func (c *containerd) close(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		pids, cgroups := c.processes()
		if len(pids) == 0 {
			for _, dir := range slices.Backward(cgroups) {
				if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
			}
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("processes of containerd are left: %v", pids)
			return
		}
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// processes are those of the daemon and of its containers; cgroups are the containers', parents first.
func (c *containerd) processes() (pids []int, cgroups []string) {
	all := rig.Processes()
	maps.DeleteFunc(all, func(_ int, p rig.Process) bool { return !p.On(c.h) })
	pids = slices.Collect(maps.Keys(all))
	v2, _ := filepath.Glob("/sys/fs/cgroup/" + c.h.Name)
	v1, _ := filepath.Glob("/sys/fs/cgroup/*/" + c.h.Name)
	for _, top := range append(v1, v2...) {
		filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				cgroups = append(cgroups, path)
				procs, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
				for pid := range strings.FieldsSeq(string(procs)) {
					if pid, err := strconv.Atoi(pid); err == nil && pid > 0 {
						pids = append(pids, pid)
					}
				}
			}
			return nil
		})
	}
	return pids, cgroups
}
