// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockwrap/lockwrap/wrap"
)

// sandbox is where a fuzzed lockwrap lives. Whatever its input makes of it must not reach the machine:
//
//   - As root it runs as nobody: no path that a fuzzer may find is writable, no namespace can be entered and no rule
//     changed. (World-writable directories are the rest of the risk.)
//   - The host's configuration puts lock and records here, and an input that could name other files is discarded.
//   - PATH is an empty directory, so there is no iptables to run.
//   - The plugins that it can find are the fakes in bin. They succeed, but for what the script of b says.
type sandbox struct {
	dir        string
	attr       *syscall.SysProcAttr
	config     string
	kept       []string // what is in dir at all times
	scratch    []string // made anew for each input
	run        string   // lock and records
	bin, empty string
	cwd        string
}

func newSandbox(f *testing.F) *sandbox {
	f.Helper()
	must := func(err error) {
		f.Helper()
		if err != nil {
			f.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "lockwrap-fuzz") // not f.TempDir, whose parent is closed to others
	must(err)
	f.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &sandbox{
		dir: dir, config: filepath.Join(dir, "config.json"), bin: filepath.Join(dir, "bin"), empty: filepath.Join(dir, "empty"),
		run: filepath.Join(dir, "run"), cwd: filepath.Join(dir, "cwd"), attr: &syscall.SysProcAttr{Setpgid: true},
	}
	s.scratch = []string{s.run, s.cwd}
	must(os.Chmod(dir, 0o755))
	must(os.Mkdir(s.bin, 0o755))
	must(os.Mkdir(s.empty, 0o755))
	for _, name := range []string{"a", "b"} {
		must(os.Link(fakeBin, filepath.Join(s.bin, name)))
	}
	must(os.Link(lockwrapBin, filepath.Join(dir, "lockwrap")))
	must(os.WriteFile(filepath.Join(s.bin, "log"), nil, 0o600))
	config, err := json.Marshal(map[string]any{
		"lockFile": filepath.Join(s.run, "lock"), "stateDir": s.run, "lockTimeout": "5s", "pluginTimeout": "5s", "pluginDirs": []string{s.bin},
	})
	must(err)
	must(os.WriteFile(s.config, config, 0o644))
	s.kept = []string{"bin", "bin/a", "bin/b", "bin/b.ADD", "bin/log", "config.json", "cwd", "empty", "lockwrap", "run"}
	if os.Geteuid() == 0 {
		const nobody = 65534
		s.attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		must(os.Chown(filepath.Join(s.bin, "log"), nobody, nobody))
	}
	if a := s.exec(f.Context(), "lockwrap", []string{"CNI_COMMAND=VERSION"}, ""); a.exit != 0 {
		f.Skipf("lockwrap cannot be run in %s as another user: exit %d, %s%s", dir, a.exit, a.stdout, a.stderr)
	}
	return s
}

// reset makes the sandbox as it was before the first call.
func (s *sandbox) reset(t *testing.T, answer string, exit uint8) {
	t.Helper()
	for _, dir := range s.scratch {
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		if s.attr.Credential != nil {
			if err := os.Chown(dir, int(s.attr.Credential.Uid), int(s.attr.Credential.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	script := ""
	if answer != "" {
		script = say(answer) + fmt.Sprintf("\nexit %d\n", exit%4)
	}
	if err := errors.Join(os.Truncate(filepath.Join(s.bin, "log"), 0),
		os.WriteFile(filepath.Join(s.bin, "b.ADD"), []byte(script), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// exec runs lockwrap under a name. It is killed after 20 s, which nothing here may take.
func (s *sandbox) exec(ctx context.Context, name string, env []string, stdin string) answer {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(s.dir, "lockwrap"))
	cmd.Args = []string{name}
	cmd.Env = slices.Concat([]string{"LOCKWRAP_CONFIG=" + s.config, "PATH=" + s.empty, "TMPDIR=" + s.cwd}, env)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = s.cwd, strings.NewReader(stdin), &stdout, &stderr, s.attr
	if _, err := os.Stat(s.cwd); err != nil {
		cmd.Dir = s.empty
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	began := time.Now()
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return answer{stderr: err.Error(), exit: -2}
	}
	return answer{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode(), time.Since(began)}
}

// stray lists what is in the sandbox and should not be.
func (s *sandbox) stray(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(s.dir, func(path string, _ fs.DirEntry, err error) error {
		name, _ := filepath.Rel(s.dir, path)
		inRun, _ := filepath.Match("run/attachments/*.json", name)
		if name != "." && !inRun && name != "run/lock" && name != "run/attachments" && !slices.Contains(s.kept, name) {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// harmless reports whether an input can't name files: lockwrap's keys for them, or an escape behind which one could hide.
func harmless(stdin string) bool {
	lower := strings.ToLower(stdin)
	return !slices.ContainsFunc([]string{"lockfile", "statedir", "logfile", `\u`}, func(s string) bool { return strings.Contains(lower, s) })
}

// FuzzPlugin runs the whole plugin, in a list and as a stand-in, with whatever input, and a DEL behind an ADD: it ends in
// time and by itself, prints one JSON document or nothing, and writes nowhere but where it should.
func FuzzPlugin(f *testing.F) {
	s := newSandbox(f)
	verbs := []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "", "add", "ADDD"}
	head := `{"cniVersion":"1.1.0","name":"net","type":"lockwrap",`
	both := head + `"delegates":[{"type":"a"},{"type":"b"}]}`
	result := `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"}],"ips":[{"address":"10.0.0.1/8","interface":0}]}`
	failed := `{"cniVersion":"1.0.0","code":11,"msg":"try again"}`
	for i := range verbs {
		f.Add(uint8(i), i == 0, both, "c1", "eth0", "", "", uint8(0))
	}
	for _, stdin := range []string{
		"", "null", `"lockwrap"`, "[" + both + "]", "{}", both[:len(both)/2], both + both, "\xef\xbb\xbf" + both, "\x00\x01",
		strings.Repeat("[", 5000), head + `"delegates":[]}`, head + `"delegates":[{"type":".."}]}`, head + `"delegates":[{"type":"log"}]}`,
		head + `"delegates":[{"type":"nowhere"}]}`, head + `"delegates":[{"type":"lockwrap"}]}`, head + `"not found":1,"delegates":[{"type":"a"}]}`,
		strings.Replace(both, `"net"`, `"../../x"`, 1), strings.Replace(both, `"1.1.0"`, `"9.9.9"`, 1), strings.Replace(both, `"1.1.0"`, `1`, 1),
	} {
		f.Add(uint8(0), false, stdin, "c1", "eth0", "", "", uint8(0))
	}
	for _, version := range []string{"0.1.0", "0.2.0", "0.3.1", "0.4.0", "1.0.0"} {
		f.Add(uint8(0), false, strings.Replace(both, "1.1.0", version, 1), "c1", "eth0", "", "", uint8(0))
	}
	f.Add(uint8(0), false, head+`"capabilities":{"ips":true},"runtimeConfig":{"ips":["10.0.0.1/8"]},"args":{"cni":{"k":1}},
		"chains":[{"table":"nat","name":"X"}],"delegates":[{"type":"a","capabilities":{"ips":true}},{"type":"b","args":{}}]}`, "c1", "eth0", "FOO=bar;;=;x", result, uint8(0))
	f.Add(uint8(0), false, both, "c1", "eth0", "", failed, uint8(1))
	f.Add(uint8(0), true, both, "c1", "eth0", "", failed, uint8(1))
	f.Add(uint8(0), false, both, "c1", "eth0", "", "no JSON", uint8(0))
	f.Add(uint8(0), false, both, "../../x", "a/b", "A=\n", result, uint8(0))
	f.Add(uint8(3), false, head+`"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}],"delegates":[{"type":"a"}]}`, "", "", "", "", uint8(0))
	f.Add(uint8(1), false, head+`"prevResult":`+result+`,"pluginTimeout":"1s","delegates":[{"type":"b"}]}`, "c1", "eth0", "", "", uint8(0))
	f.Fuzz(func(t *testing.T, verb uint8, standIn bool, stdin, id, ifName, cniArgs, said string, exit uint8) {
		env := id + ifName + cniArgs
		if !harmless(stdin) || len(stdin) > 8<<10 || len(env)+len(said) > 8<<10 || strings.ContainsRune(env, 0) {
			return
		}
		// The fuzzer sees what of lockwrap runs in this process only: this shows it the way to an entry.
		_, refused := wrap.ParseEntry(json.RawMessage(stdin), network, "1.0.0", []string{"LOCKWRAP_CONFIG=" + s.config})
		s.reset(t, said, exit)
		name := "lockwrap"
		if standIn {
			name, refused = "b", nil // its settings are the host's alone
		}
		calls := []string{verbs[int(verb)%len(verbs)], "DEL"}
		if calls[0] != "ADD" || refused != nil {
			calls = calls[:1] // it left nothing to delete
		}
		for _, verb := range calls {
			a := s.exec(t.Context(), name, []string{
				"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_IFNAME=" + ifName, "CNI_ARGS=" + cniArgs,
				"CNI_NETNS=" + filepath.Join(s.empty, "netns"), "CNI_PATH=" + s.bin + ":" + s.dir,
			}, stdin)
			checkAnswer(t, verb, a, refused != nil && verb != "VERSION" && verb != "")
			if verb == "ADD" && a.exit == 0 && a.stdout == "" || verb == "VERSION" && !standIn && a.stdout == "" {
				t.Fatalf("%s: succeeded and said nothing", verb)
			}
			if calls := s.calls(t); refused != nil && len(calls) > 0 {
				t.Fatalf("%s: refused (%v) and yet called %v", verb, refused, order(calls))
			}
			if _, err := os.Lstat(filepath.Join(s.run, "lock")); refused != nil && err == nil {
				t.Fatalf("%s: refused (%v) and yet took the lock", verb, refused)
			}
			if files := s.stray(t); len(files) > 0 {
				t.Fatalf("%s has made %q", verb, files)
			}
		}
	})
}

func (s *sandbox) calls(t *testing.T) []record {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(s.bin, "log"))
	if err != nil {
		t.Fatal(err)
	}
	calls, rest := parseLog(log)
	if len(rest) > 0 {
		t.Fatalf("broken log at %.80q", rest)
	}
	return calls
}

// checkAnswer holds what a runtime relies on (pkg/skel, and libcni's RawExec on the other side).
func checkAnswer(t *testing.T, verb string, a answer, mustFail bool) {
	t.Helper()
	if a.exit != 0 && a.exit != 1 || mustFail && a.exit == 0 {
		t.Fatalf("%s: exit %d after %s: %.2000s%.2000s", verb, a.exit, a.took, a.stdout, a.stderr)
	}
	if strings.Contains(a.stdout+a.stderr, "goroutine ") || strings.Contains(a.stdout, "internal error") {
		t.Fatalf("%s: a panic: %s%s", verb, a.stdout, a.stderr)
	}
	var object map[string]json.RawMessage
	if a.stdout != "" {
		if err := json.Unmarshal([]byte(a.stdout), &object); err != nil || object == nil {
			t.Fatalf("%s: exit %d and not one JSON object (%v): %.2000q", verb, a.exit, err, a.stdout)
		}
	}
	if a.exit == 0 {
		// A stand-in's VERSION is the answer of the plugin behind it; the fake has none.
		if object != nil && verb != "ADD" && verb != "VERSION" {
			t.Fatalf("%s: succeeded with %.2000q", verb, a.stdout)
		}
		return
	}
	var code uint
	var msg, details string
	if json.Unmarshal(object["code"], &code) != nil || json.Unmarshal(object["msg"], &msg) != nil || msg == "" {
		t.Fatalf("%s: not an error: %.2000q", verb, a.stdout)
	}
	_ = json.Unmarshal(object["details"], &details)
	// A delegate's error comes through with its own code, which is 0 if it gave none.
	if code == 0 && strings.HasPrefix(msg, "lockwrap: ") {
		t.Fatalf("%s: an error of lockwrap's own with code 0: %s", verb, a.stdout)
	}
	if own := strings.HasPrefix(msg, "lockwrap: "); verb == "DEL" && own &&
		(strings.Contains(msg+details, "not found") || strings.Contains(msg+details, "no such file or directory")) {
		t.Fatalf("go-cni would take this for a success: %s", a.stdout)
	}
}
