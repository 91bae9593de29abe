// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestHostConfig_defaults: the file sets what the entry does not, and a broken one is a configuration error.
func TestHostConfig_defaults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		content string
		more    entry    // of the entry
		want    []string // of the error; none is success
	}{
		{name: "all keys", content: `{"lockTimeout":"1s","pluginTimeout":"1s","logLevel":"debug","logFile":"DIR/log","stateDir":"DIR/state","lockFile":"DIR/lock","pluginDirs":["/x"]}`},
		{name: "entry wins", content: `{"lockFile":"/proc/no/such/lock","stateDir":"/proc/no"}`, more: entry{"lockFile": "DIR/lock", "stateDir": "DIR/state"}},
		{name: "unknown key", content: `{"lockFile":"DIR/lock","timeout":"1s"}`, want: []string{`"timeout"`, "config.json"}},
		{name: "key of the entry only", content: `{"delegates":[]}`, want: []string{`"delegates"`}},
		{name: "bad duration", content: `{"lockTimeout":"0s"}`, want: []string{`"lockTimeout"`, "0s"}},
		{name: "relative path", content: `{"lockFile":"lock"}`, want: []string{`"lockFile"`}},
		{name: "wrong type", content: `{"pluginDirs":"/opt/cni/bin"}`, want: []string{`"pluginDirs"`}},
		{name: "not JSON", content: `lockTimeout: 1s`, want: []string{"config.json"}},
		{name: "null", content: `null`, want: []string{"config.json"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "a")
			dir := t.TempDir()
			path := filepath.Join(dir, "config.json")
			h.must(os.WriteFile(path, []byte(strings.ReplaceAll(tt.content, "DIR", dir)), 0o600))
			conf := h.conf("1.0.0", tt.more, entry{"type": "a"})
			if tt.more == nil { // leave the two to the host
				conf = strings.NewReplacer(`"lockFile":"`+h.lockFile+`",`, "", `"stateDir":"`+h.run+`",`, "").Replace(conf)
			}
			conf = strings.ReplaceAll(conf, "DIR", dir)
			a := h.call(call{verb: "ADD", conf: conf, env: []string{"LOCKWRAP_CONFIG=" + path}})
			if tt.want == nil {
				a.ok(t)
				for _, f := range []string{"lock", "state/attachments"} {
					if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
						t.Error(err)
					}
				}
				return
			}
			e := a.failure(t)
			for _, w := range tt.want {
				if e.Code != 7 || !strings.Contains(e.Msg, w) {
					t.Errorf("want code 7 and %s: %+v", w, e)
				}
			}
			h.nothingHappened()
		})
	}
}

// TestLog_lines: one a call at info, one a delegate at debug, in the file as on stderr; no log is no reason to fail.
func TestLog_lines(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	file := filepath.Join(h.bin, "lockwrap.log")
	for _, level := range []string{"info", "debug", "error"} {
		a := h.call(call{verb: "ADD", id: level, conf: h.conf("1.0.0", entry{"logFile": file, "logLevel": level}, entry{"type": "a"}, entry{"type": "b"})}).ok(t)
		want := map[string]int{"info": 1, "debug": 3, "error": 0}[level]
		log, err := os.ReadFile(file)
		h.must(err)
		h.must(os.Remove(file))
		for _, text := range []string{string(log), a.stderr} {
			if got := strings.Count(text, "container="+level); got < want || level != "debug" && got > want {
				t.Errorf("%s: %d lines: %s", level, got, text)
			}
			if level == "info" {
				mustMatch(t, `verb=ADD network=net container=info ifname=eth0 .*wait=\S+ hold=\S+`, text)
			}
		}
	}
	link := filepath.Join(h.bin, "link.log")
	h.must(os.Symlink(file, link))
	h.call(call{verb: "ADD", id: "linked", conf: h.conf("1.0.0", entry{"logFile": link}, entry{"type": "a"})}).ok(t)
	if log, err := os.ReadFile(file); err != nil || !strings.Contains(string(log), "container=linked") {
		t.Errorf("nothing behind a link of our own: %v", err)
	}
	for _, bad := range []string{filepath.Join(fakeBin, "log"), h.bin, "/proc/no/such/log"} {
		h.call(call{verb: "ADD", conf: h.conf("1.0.0", entry{"logFile": bad}, entry{"type": "a"})}).ok(t)
	}
}

// TestLog_breakdown: at debug any call tells where its time went.
func TestLog_breakdown(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a", "b")
	for verb, parts := range map[string]string{
		"ADD":    "startup parsed located locked recovered chains exec record a b printed unlocked end",
		"DEL":    "startup parsed locked exec record b a unlocked end",
		"CHECK":  "startup parsed locked exec record a b unlocked end",
		"GC":     "startup parsed locked exec record a b unlocked end",
		"STATUS": "startup parsed exec record a b end",
	} {
		h.on("b", verb, "sleep 300ms")
		a := h.call(call{verb: verb, conf: h.conf("1.1.0", entry{"logLevel": "debug"}, entry{"type": "a"}, entry{"type": "b"})}).ok(t)
		line := regexp.MustCompile(`msg="where the time went" .*ifname=\S* (.*)`).FindStringSubmatch(a.stderr)
		if line == nil {
			t.Errorf("%s: no breakdown in %s", verb, a.stderr)
			continue
		}
		var names []string
		var sum time.Duration
		for _, part := range strings.Fields(line[1]) {
			name, value, _ := strings.Cut(part, "=")
			names = append(names, name)
			took, err := time.ParseDuration(value)
			if err != nil || took < 0 {
				t.Errorf("%s: %s: %v", verb, part, err)
			}
			if name == "b" && took < 300*time.Millisecond {
				t.Errorf("%s: %s, of a plugin that takes 300 ms", verb, part)
			}
			if name != "startup" {
				sum += took
			}
		}
		if got := strings.Join(names, " "); got != parts {
			t.Errorf("%s: parts %s, want %s", verb, got, parts)
		}
		if sum > a.took {
			t.Errorf("%s: the parts take %v together, the call %v", verb, sum, a.took)
		}
	}
}

// TestADD_noSecretsInErrors: a configuration may hold secrets.
func TestADD_noSecretsInErrors(t *testing.T) {
	t.Parallel()
	h := newHost(t, "a")
	h.on("a", "ADD", "exit 1")
	a := h.call(call{verb: "ADD", conf: h.conf("1.0.0", nil, entry{"type": "a", "password": "hunter2"})})
	a.failure(t)
	if strings.Contains(a.stdout+a.stderr, "hunter2") {
		t.Errorf("%s%s", a.stdout, a.stderr)
	}
}
