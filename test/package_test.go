// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockwrap/lockwrap/test/rig"
)

// A package is installed, upgraded and removed by the machine's own dpkg, on a copy of the machine's file system that is
// gone afterwards.
func TestPackage(t *testing.T) {
	pkg := debFile(t)
	old := olderPackage(t, pkg)
	const (
		binary = "/usr/lib/cni/lockwrap"
		link   = "/opt/cni/bin/lockwrap"
		list   = "/etc/cni/net.d/web.conflist"
	)

	t.Run("life", func(t *testing.T) {
		m := newMachine(t)
		m.write(list, `{"cniVersion": "1.0.0", "name": "web", "plugins": [{"type": "slow"}]}`, 0o644)
		m.write("/opt/cni/bin/slow", slowPlugin, 0o755)
		m.write(link, "#!/bin/sh\n# what somebody copied there by hand\n", 0o755)

		m.must("dpkg", "-i", old)
		for _, name := range []string{binary, "/usr/sbin/lockwrap", link} {
			m.must(name, "version")
		}
		if to, err := os.Readlink(m.path(link)); to != binary {
			t.Errorf("%s leads to %q (%v)", link, to, err)
		}
		for _, file := range []string{
			"/usr/lib/tmpfiles.d/lockwrap.conf", "/usr/share/man/man8/lockwrap.8.gz",
			"/usr/share/bash-completion/completions/lockwrap", "/usr/share/doc/lockwrap/examples/config.json",
		} {
			if _, err := os.Stat(m.path(file)); err != nil {
				t.Error(err)
			}
		}

		// A call runs while its binary is replaced.
		m.must("lockwrap", "wrap", list)
		call := m.command(link)
		call.Stdin = strings.NewReader(`{"cniVersion": "1.0.0", "name": "web", "type": "lockwrap", "delegates": [{"type": "slow"}]}`)
		call.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/proc/self/ns/net",
			"CNI_PATH=/opt/cni/bin")
		var said bytes.Buffer
		call.Stdout, call.Stderr = &said, &said
		ok(t, call.Start())
		m.must("sh", "-c", "until [ -e /tmp/slow.runs ]; do sleep 0.05; done")
		m.must("dpkg", "-i", pkg)
		ok(t, os.WriteFile(m.path("/tmp/slow.goes-on"), nil, 0o644))
		if err := call.Wait(); err != nil {
			t.Errorf("the call that ran during the upgrade: %v\n%s", err, said.String())
		}
		fresh, err := os.ReadFile(rig.Bin("lockwrap"))
		ok(t, err)
		if installed, err := os.ReadFile(m.path(binary)); err != nil || len(installed) != len(fresh) {
			t.Errorf("the upgrade has left the old binary (%d bytes, %v)", len(installed), err)
		}

		// Debian's plugins are in one directory and Nomad's in another; lockwrap is in both.
		if out, err := m.run("lockwrap", "check", list); err != nil || strings.Contains(out, "warn") {
			t.Errorf("check: %v\n%s", err, out)
		}
		m.write("/usr/lib/cni/fast", slowPlugin, 0o755)
		m.write("/tmp/both.conflist", `{"cniVersion": "1.0.0", "name": "both", "plugins": [
			{"type": "lockwrap", "delegates": [{"type": "slow"}, {"type": "fast"}]}]}`, 0o644)
		if out, err := m.run("lockwrap", "check", "/tmp/both.conflist"); err != nil ||
			!strings.Contains(out, "/opt/cni/bin has slow, but not fast: a runtime that looks there cannot use the list") {
			t.Errorf("check: %v\n%s", err, out)
		}
		if out, err := m.run("lockwrap", "check", "--bin-dir", "/opt/cni/bin:/usr/lib/cni", "/tmp/both.conflist"); err != nil ||
			strings.Contains(out, "warn") {
			t.Errorf("check: %v\n%s", err, out)
		}

		// It stays while it is needed.
		out, err := m.run("dpkg", "-r", "lockwrap")
		if err == nil || !strings.Contains(out, list+": the list still names lockwrap") ||
			!strings.Contains(out, `run "lockwrap unwrap `+list+`" first`) {
			t.Errorf("removing what a list names: %v\n%s", err, out)
		}
		m.must(link, "version")
		m.must("lockwrap", "unwrap", list)
		m.must("dpkg", "-r", "lockwrap")
		if left := m.find("*lockwrap*", "/usr", "/opt", "/etc"); left != "" {
			t.Errorf("left behind:\n%s", left)
		}
		m.must("dpkg", "--purge", "lockwrap")
	})

	t.Run("one directory a link to the other", func(t *testing.T) {
		m := newMachine(t)
		// An older one in the directory of other distributions is not the package's.
		m.write("/usr/libexec/cni/lockwrap", "#!/bin/sh\nexit 1\n", 0o755)
		ok(t, os.MkdirAll(m.path("/opt/cni"), 0o755))
		ok(t, os.Symlink("/usr/lib/cni", m.path("/opt/cni/bin")))
		m.must("dpkg", "-i", pkg)
		m.must(link, "version")
		m.must(binary, "version")
		m.must("dpkg", "-r", "lockwrap")
		if left := m.find("*lockwrap*", "/usr/lib", "/usr/sbin", "/opt"); left != "" {
			t.Errorf("left behind:\n%s", left)
		}
	})

	t.Run("no place for the link", func(t *testing.T) {
		m := newMachine(t)
		ok(t, os.MkdirAll(m.path("/opt/cni"), 0o755))
		ok(t, os.Symlink("/nowhere", m.path("/opt/cni/bin")))
		out, err := m.run("dpkg", "-i", pkg)
		if err != nil || !strings.Contains(out, "lockwrap: there is no link in /opt/cni/bin") {
			t.Errorf("installing: %v\n%s", err, out)
		}
		m.must(binary, "version")
		// A binary that can't be run can't say that it is needed.
		ok(t, os.WriteFile(m.path(binary), []byte("damaged"), 0o755))
		m.must("dpkg", "-r", "lockwrap")
	})
}

// Two builds of a commit are byte-identical, wherever and by whomever they are made.
func TestPackage_reproducible(t *testing.T) {
	debFile(t)
	root, elsewhere := filepath.Dir(rig.Bin("")), t.TempDir()
	script := fmt.Sprintf(`set -e; umask 077; hostname elsewhere; cd %s
		git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t %[2]s
		cp -r .git %[2]s
		cd %[2]s && make -s dist`, root, elsewhere)
	// In the network of whoever runs the tests: go run may have to ask for nfpm.
	build := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", os.Getppid()), "unshare", "--uts", "bash", "-c", script)
	build.Env = append(os.Environ(), "TZ=Asia/Kathmandu", "LC_ALL=C.UTF-8")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command("diff", "-r", filepath.Join(root, "dist"), filepath.Join(elsewhere, "dist")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// slowPlugin says that it runs, and goes on when it is told to.
const slowPlugin = `#!/bin/sh
[ "$CNI_COMMAND" != VERSION ] || echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}'
[ "$CNI_COMMAND" = ADD ] || exit 0
touch /tmp/slow.runs
until [ -e /tmp/slow.goes-on ]; do sleep 0.05; done
echo '{"cniVersion": "1.0.0", "interfaces": [], "ips": [], "dns": {}}'
`

// debFile is the package of this machine's kind that "make dist" has built.
func debFile(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip(rig.ErrNotRoot)
	}
	pattern := filepath.Join(filepath.Dir(rig.Bin("")), "dist", "*_"+runtime.GOARCH+".deb")
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("packages %s: %q (%v): run make dist", pattern, found, err)
	}
	return found[0]
}

// olderPackage is the same with a lower version and another binary.
func olderPackage(t *testing.T, pkg string) string {
	t.Helper()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "old.deb")
	script := fmt.Sprintf(`set -e; dpkg-deb -R %[1]s %[2]s; echo >>%[2]s/usr/lib/cni/lockwrap
		sed -i 's/^Version: .*/Version: 0.0.0~0/' %[2]s/DEBIAN/control; rm %[2]s/DEBIAN/md5sums; dpkg-deb -b %[2]s %[3]s`, pkg, dir, file)
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

// A machine is a copy of this one's file system, changes in memory.
type machine struct {
	t    *testing.T
	root string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	mount := func(source, target, kind, data string, flags uintptr) {
		ok(t, os.MkdirAll(target, 0o755))
		if err := unix.Mount(source, target, kind, flags, data); err != nil {
			t.Fatalf("mount %s on %s: %v", kind, target, err)
		}
		t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
	}
	mount("lockwrap-test", dir, "tmpfs", "", 0)
	for _, sub := range []string{"upper", "work"} {
		ok(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
	}
	root := filepath.Join(dir, "root")
	mount("lockwrap-test", root, "overlay", fmt.Sprintf("lowerdir=/,upperdir=%[1]s/upper,workdir=%[1]s/work", dir), 0)
	mount("proc", filepath.Join(root, "proc"), "proc", "", 0)
	mount("/dev", filepath.Join(root, "dev"), "", "", unix.MS_BIND)
	mount("lockwrap-test", filepath.Join(root, "run"), "tmpfs", "mode=755", 0)
	m := &machine{t, root}
	// The machine's own lists and containers are none of ours.
	for _, dir := range []string{"/etc/cni", "/opt/cni", "/var/lib/cni"} {
		ok(t, os.RemoveAll(m.path(dir)))
	}
	return m
}

func (m *machine) path(file string) string { return filepath.Join(m.root, file) }

func (m *machine) write(file, content string, mode os.FileMode) {
	m.t.Helper()
	ok(m.t, os.MkdirAll(filepath.Dir(m.path(file)), 0o755))
	ok(m.t, os.WriteFile(m.path(file), []byte(content), mode))
}

// command runs on the machine. Files of this one, such as packages, are there under the same name.
func (m *machine) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/usr/bin/env", append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", name}, args...)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: m.root}
	return cmd
}

func (m *machine) run(name string, args ...string) (string, error) {
	out, err := m.command(name, args...).CombinedOutput()
	return string(out), err
}

func (m *machine) must(name string, args ...string) {
	m.t.Helper()
	if out, err := m.run(name, args...); err != nil {
		m.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// find lists files of the machine that this one does not have.
func (m *machine) find(pattern string, dirs ...string) string {
	m.t.Helper()
	out, err := m.run("find", append(append([]string{}, dirs...), "-name", pattern)...)
	if err != nil {
		m.t.Fatalf("find: %v\n%s", err, out)
	}
	return out
}
