// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Set is a set of plugins.
type Set struct {
	Name       string
	CNIVersion string   // the newest that all of them know
	dirs       []string // of CNI_PATH, below bin/
}

var (
	// New is the newest release of the reference plugins.
	New = Set{"v1.10.0", "1.0.0", []string{"plugins/v1.10.0"}}
	// Old has firewall and portmap of nomad#6567. Bridge v0.8.2 always asks for VLAN filtering, which not every
	// kernel has, so bridge is the newest; the pair is where the old races are.
	Old = Set{"v0.8.2 pair", "0.4.0", []string{"plugins/v0.8.2", "plugins/v1.10.0"}}
)

// Sets are both.
var Sets = []Set{New, Old}

// The two implementations of iptables.
const (
	NFT    = "nft"
	Legacy = "legacy"
)

var (
	// ErrNotRoot is the error of NewHost without root.
	ErrNotRoot = errors.New("needs root, to make network namespaces")
	errPlugins = errors.New(`cnitool or plugins are missing: run "make plugins build"`)
	errPackage = errors.New(`a program is missing: run "make setup"`)
)

// A Host is a network namespace with iptables rules, plugins, lists and containers of its own.
type Host struct {
	Name    string
	Dir     string // for whatever belongs to this host
	Backend string // NFT or Legacy
	Set     Set
	Version string   // cniVersion of the list
	Env     []string // further environment of whatever runs here
	Before  []string // a program and its arguments that cnitool is run by

	path       []string // directories before PATH
	faults     bool     // WithFaults
	containers atomic.Int64
	mu         sync.Mutex
	netns      []string
}

// A Container is a network namespace on a host.
type Container struct {
	Name  string
	NetNS string // path
	ID    string // as cnitool makes it from the path
	Ports string // CAP_ARGS
}

var hosts atomic.Int64

// NewHost makes a cold host: no table, no chain, no bridge.
func NewHost(set Set, backend string) (*Host, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	name := fmt.Sprintf("lw-%d-%d", os.Getpid(), hosts.Add(1))
	h := &Host{Name: name, Dir: filepath.Join("/run/rig", name), Backend: backend, Set: set, Version: set.CNIVersion}
	for _, dir := range []string{"net.d", "bin", "ipam"} {
		if err := os.MkdirAll(filepath.Join(h.Dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	// The machine's own settings are not this host's, and hosts share /run but neither lock nor records.
	err := writeJSON(filepath.Join(h.Dir, "config.json"), map[string]string{
		"lockFile": filepath.Join(h.StateDir(), "lock"), "stateDir": h.StateDir(),
	})
	if err != nil {
		return nil, err
	}
	for _, cmd := range []string{"iptables", "ip6tables"} {
		real, err := exec.LookPath(cmd + "-" + backend)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errPackage, err)
		}
		if err := os.Symlink(real, filepath.Join(h.Dir, "bin", cmd)); err != nil {
			return nil, err
		}
	}
	h.path = []string{filepath.Join(h.Dir, "bin")}
	for _, dir := range append(set.dirs, "cnitool") {
		if _, err := os.Stat(Bin(dir)); err != nil {
			return nil, fmt.Errorf("%w: %w", errPlugins, err)
		}
	}
	if err := h.addNetns(name); err != nil {
		return nil, err
	}
	return h, nil
}

// Bin is the path of a file in bin/ of this repository.
func Bin(name string) string {
	return filepath.Join(binDir(), name)
}

// binDir is bin/ above the working directory: tests run in the directory of their package, the demo anywhere.
var binDir = sync.OnceValue(func() string {
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "bin", "cnitool")); err == nil {
			return filepath.Join(dir, "bin")
		}
	}
	return "bin"
})

func (h *Host) addNetns(name string) error {
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		return fmt.Errorf("ip netns add %s: %w: %s", name, err, out)
	}
	h.mu.Lock()
	h.netns = append(h.netns, name)
	h.mu.Unlock()
	return inNetns(name, func() error {
		// Duplicate address detection makes every ADD with IPv6 wait for seconds. Without IPv6 there is none.
		for _, conf := range []string{"all", "default"} {
			os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/accept_dad", []byte("0"), 0)
		}
		out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip link set lo up: %w: %s", err, out)
		}
		return nil
	})
}

// The main goroutine keeps the main thread, so that inNetns never gets it: it cannot end, and would keep a namespace.
func init() { runtime.LockOSThread() }

// inNetns calls f on a thread that is in the namespace, as are the processes f starts.
func inNetns(name string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		if err := join(name); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// join puts the calling goroutine into the namespace until it ends.
func join(name string) error {
	// Never unlocked, so the thread ends with this goroutine and nothing else runs in the namespace.
	runtime.LockOSThread()
	ns, err := os.Open("/run/netns/" + name)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", name, err)
	}
	return nil
}

// Join puts the calling goroutine, and the processes that it starts, into the host's namespace until it ends.
func (h *Host) Join() error { return join(h.Name) }

// Close ends the host with all its containers.
func (h *Host) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range h.netns {
		exec.Command("ip", "netns", "del", name).Run()
	}
	h.netns = nil
	cached, _ := filepath.Glob("/var/lib/cni/results/" + h.Name + "-*")
	for _, file := range cached {
		os.Remove(file)
	}
	os.RemoveAll(h.Dir)
}

// NewContainer makes a network namespace with two host ports of its own, one TCP, one UDP.
func (h *Host) NewContainer() (*Container, error) {
	n := h.containers.Add(1)
	name := fmt.Sprintf("%s-c%d", h.Name, n)
	if err := h.addNetns(name); err != nil {
		return nil, err
	}
	c := &Container{Name: name, NetNS: "/run/netns/" + name}
	c.ID = containerID(c.NetNS)
	c.Ports = fmt.Sprintf(`{"portMappings":[{"hostPort":%d,"containerPort":80,"protocol":"tcp"},`+
		`{"hostPort":%d,"containerPort":53,"protocol":"udp"}]}`, 10000+n, 20000+n)
	return c, nil
}

// Remove removes the namespace of a container.
func (h *Host) Remove(c *Container) error {
	before, err := h.links()
	if err != nil {
		return err
	}
	inside, err := h.ContainerLinks(c)
	if err != nil {
		return err
	}
	if out, err := exec.Command("ip", "netns", "del", c.Name).CombinedOutput(); err != nil {
		return fmt.Errorf("ip netns del %s: %w: %s", c.Name, err, out)
	}
	// The kernel takes the other ends of the container's links away some time later.
	for range 1000 {
		after, err := h.links()
		if err != nil {
			return err
		}
		if len(after) <= len(before)-len(inside) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("the links of %s outlived its namespace", c.Name)
}

// Replace gives the container a new, empty namespace under the path of the old one.
func (h *Host) Replace(c *Container) error {
	if err := h.Remove(c); err != nil {
		return err
	}
	return h.addNetns(c.Name)
}

// PluginPath is CNI_PATH on this host.
func (h *Host) PluginPath() string {
	dirs := []string{binDir()}
	if h.faults {
		dirs = []string{Bin("faults")}
	}
	for _, first := range []string{"shims", "stand-ins"} {
		if dir := filepath.Join(h.Dir, first); isDir(dir) {
			dirs = append([]string{dir}, dirs...)
		}
	}
	for _, dir := range h.Set.dirs {
		dirs = append(dirs, Bin(dir))
	}
	return strings.Join(dirs, ":")
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// Environ is the environment of whatever runs on this host.
func (h *Host) Environ(more ...string) []string {
	return append(append(append(os.Environ(), h.Vars()...), h.Env...), more...)
}

// Vars are the variables of it that every host has.
func (h *Host) Vars() []string {
	return []string{
		"PATH=" + strings.Join(append(h.path, os.Getenv("PATH")), ":"),
		"NETCONFPATH=" + filepath.Join(h.Dir, "net.d"),
		"CNI_PATH=" + h.PluginPath(),
		"LOCKWRAP_CONFIG=" + filepath.Join(h.Dir, "config.json"),
		// Hosts do not share iptables, so they need not wait for each other.
		"XTABLES_LOCKFILE=" + filepath.Join(h.Dir, "xtables.lock"),
	}
}

// A Run is a program that has ended.
type Run struct {
	Stdout, Stderr string
	Err            error
	Took           time.Duration
	CPU            time.Duration // of it and all that it has waited for
	Faults         int64         // pages that it had to get from the kernel, the same
}

// OK tells whether it exited with 0.
func (r Run) OK() bool { return r.Err == nil }

// String is what went wrong, as the program printed it.
func (r Run) String() string {
	if r.Err == nil {
		return "ok"
	}
	text := strings.TrimSpace(r.Stderr)
	if text == "" {
		text = strings.TrimSpace(r.Stdout)
	}
	return fmt.Sprintf("%v: %s", r.Err, text)
}

// Cmd runs a program on the host. It dies with the caller.
func (h *Host) Cmd(cmd *exec.Cmd) Run { return h.cmd(h.Name, cmd) }

// In runs a program in the container's namespace.
func (h *Host) In(c *Container, name string, args ...string) Run {
	return h.cmd(c.Name, exec.Command(name, args...))
}

func (h *Host) cmd(netns string, cmd *exec.Cmd) Run {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if cmd.Env == nil {
		cmd.Env = h.Environ()
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	// The thread that starts it lives as long as inNetns, so this is the death of the process.
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	start := time.Now()
	err := inNetns(netns, cmd.Run)
	run := Run{Stdout: stdout.String(), Stderr: stderr.String(), Err: err, Took: time.Since(start)}
	if state := cmd.ProcessState; state != nil {
		run.CPU = state.UserTime() + state.SystemTime()
		run.Faults = state.SysUsage().(*syscall.Rusage).Minflt
	}
	return run
}

// Listen listens on a TCP port of the container.
func (h *Host) Listen(c *Container, port int) (l net.Listener, err error) {
	err = inNetns(c.Name, func() error {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	return l, err
}

// Exec runs a program on the host.
func (h *Host) Exec(name string, args ...string) Run {
	if path, err := exec.LookPath(name); err == nil {
		name = path
	}
	return h.Cmd(exec.Command(name, args...))
}

// Tool runs cnitool: add, del, check, gc or status, for the host's network. Env adds to the environment.
func (h *Host) Tool(verb string, c *Container, env ...string) Run {
	command := append(slices.Clone(h.Before), Bin("cnitool"), verb, h.Name, c.NetNS)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = h.Environ(append([]string{"CAP_ARGS=" + c.Ports}, env...)...)
	return h.Cmd(cmd)
}

// Add, Del and Check are the verbs of Tool that are used most.
func (h *Host) Add(c *Container) Run   { return h.Tool("add", c) }
func (h *Host) Del(c *Container) Run   { return h.Tool("del", c) }
func (h *Host) Check(c *Container) Run { return h.Tool("check", c) }

// Forget removes the result that libcni keeps of the container's ADD, so that the next DEL comes without prevResult.
func (h *Host) Forget(c *Container) error {
	return os.Remove(fmt.Sprintf("/var/lib/cni/results/%s-%s-eth0", h.Name, c.ID))
}

// All calls f for every container at once and returns the runs in the same order, and the time until the last ended.
func All(containers []*Container, f func(*Container) Run) ([]Run, time.Duration) {
	runs := make([]Run, len(containers))
	start := time.Now()
	var wg sync.WaitGroup
	for i, c := range containers {
		wg.Go(func() { runs[i] = f(c) })
	}
	wg.Wait()
	return runs, time.Since(start)
}
