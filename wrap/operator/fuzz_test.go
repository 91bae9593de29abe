// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lockwrap/lockwrap/wrap"
)

// shellWords reads a command as sh does, as far as forShell and quoteShell write it. What a shell could take for more
// than a word is an error: whoever pastes the command would run something else.
func shellWords(command string) (words []string, err error) {
	var word strings.Builder
	inWord := false
	end := func() {
		if inWord {
			words = append(words, word.String())
		}
		inWord = false
		word.Reset()
	}
	for i := 0; i < len(command); i++ {
		switch c := command[i]; {
		case c == ' ':
			end()
		case c == '\'':
			size := strings.IndexByte(command[i+1:], '\'')
			if size < 0 {
				return nil, fmt.Errorf("no end of the quotes at %d", i)
			}
			word.WriteString(command[i+1 : i+1+size])
			inWord = true
			i += size + 1
		case c == '\\' && i+1 < len(command) && command[i+1] != '\n':
			i++
			word.WriteByte(command[i])
			inWord = true
		case c < ' ' || c > '~' || strings.IndexByte("\\$`\"|&;<>()*?[]{}#~^", c) >= 0:
			return nil, fmt.Errorf("%q at %d is bare", c, i)
		case c == '!' && (inWord || i+1 < len(command) && command[i+1] != ' '):
			return nil, fmt.Errorf("an interactive bash takes the bare ! at %d for a command of its history", i)
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	end()
	return words, nil
}

// saveString writes a word as iptables does in a listing (libxtables/xtables.c, xtables_save_string).
func saveString(word string) string {
	const bare = "_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	if word != "" && strings.Trim(word, bare) == "" {
		return word
	}
	return `"` + strings.NewReplacer(`"`, `\"`, `\`, `\\`, `'`, `\'`).Replace(word) + `"`
}

func mustReadWords(t *testing.T, command string) []string {
	t.Helper()
	words, err := shellWords(command)
	if err != nil {
		t.Fatalf("%v: %q", err, command)
	}
	return words
}

// FuzzForShell: a shell reads the words that iptables wrote.
func FuzzForShell(f *testing.F) {
	f.Add("CNI $(reboot) it's", "a\"b\\c`d`", "!", "")
	f.Add("!", "a\nb", "~root", "#x")
	f.Add("\\", "'", "=x", "é\xff")
	f.Fuzz(func(t *testing.T, a, b, c, raw string) {
		if strings.ContainsRune(a+b+c+raw, 0) {
			return // is in no argument
		}
		want := []string{"-A", a, "--comment", b, c}
		var listed []string
		for _, word := range want {
			listed = append(listed, saveString(word))
		}
		line, ok := forShell(strings.Join(listed, " "))
		if !ok {
			t.Fatalf("not read: %q", listed)
		}
		if got := mustReadWords(t, line); !slices.Equal(got, want) {
			t.Fatalf("got  %q\nwant %q", got, want)
		}
		if line, ok := forShell(raw); ok { // whatever a listing has, nothing in it is alive
			mustReadWords(t, line)
		}
		if got := mustReadWords(t, "x "+quoteShell(raw)); !slices.Equal(got, []string{"x", raw}) {
			t.Fatalf("%q", got)
		}
	})
}

// FuzzJudge: the commands remove and insert only rules that are in the listing, and after them nothing is wrong.
func FuzzJudge(f *testing.F) {
	f.Add(listed([]string{"-P FORWARD ACCEPT", accept, isolate, accept, docker}))
	f.Add(listed([]string{masq, masq, masq, docker, "-A CNI-FORWARD -j NOMAD-ADMIN", "-A CNI-FORWARD -j NOMAD-ADMIN"}))
	f.Add(listed([]string{isolate, accept, isolate, accept}))
	f.Add("-A X --comment \"CNI $(reboot)\"\n-A X --comment \"CNI $(reboot)\"\n-A X --comment \"CNI\nY\"")
	f.Fuzz(func(t *testing.T, listing string) {
		if strings.ContainsRune(listing, 0) || len(listing) > 4<<10 {
			return
		}
		var rules []string
		for line := range strings.Lines(listing) {
			if rule, ok := forShell(strings.TrimSpace(line)); ok && strings.HasPrefix(rule, "-A ") {
				rules = append(rules, rule)
			}
		}
		var others []string
		for _, rule := range rules {
			if !strings.Contains(rule, "CNI") && !strings.Contains(rule, "NOMAD-ADMIN") {
				others = append(others, rule)
			}
		}
		for _, table := range []string{"filter", "nat"} {
			if table == "nat" && strings.Contains(listing, "FORWARD") {
				continue // has no such chain
			}
			after := slices.Clone(rules)
			for _, each := range judge("iptables", table, listing) {
				for _, command := range each.Commands {
					mustReadWords(t, command)
					after = execute(t, after, table, command)
				}
			}
			var again []string
			for _, rule := range after {
				var words []string
				for _, word := range mustReadWords(t, rule) {
					words = append(words, saveString(word))
				}
				again = append(again, strings.Join(words, " "))
			}
			if wrong := judge("iptables", table, strings.Join(again, "\n")); len(wrong) > 0 {
				t.Fatalf("afterwards: %v", wrong)
			}
			left := slices.DeleteFunc(slices.Clone(after), func(rule string) bool { return !slices.Contains(others, rule) })
			if !slices.Equal(left, others) {
				t.Fatalf("others' rules were %q and are %q", others, left)
			}
			for _, rule := range rules {
				if !slices.Contains(after, rule) {
					t.Fatalf("%q is lost", rule)
				}
			}
		}
	})
}

// FuzzPrint: no text can move the cursor of a terminal, and folding it loses nothing but blanks at the breaks.
func FuzzPrint(f *testing.F) {
	f.Add("warn /x: " + strings.Repeat("é ", 90))
	f.Add("fail  /" + strings.Repeat("x", 190) + ": \x1b[2J\r\n\xff ")
	f.Add(strings.Repeat(" ", 200) + "x")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4<<10 {
			return
		}
		clean := printable(text)
		if !utf8.ValidString(clean) || strings.ContainsFunc(clean, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u202e' }) {
			t.Fatalf("%q", clean)
		}
		if printable(clean) != clean {
			t.Fatalf("%q, then %q", clean, printable(clean))
		}
		const margin = "      "
		var whole strings.Builder
		for i, line := range strings.SplitAfter(fold(clean, margin), "\n") {
			line, end := strings.CutSuffix(line, "\n")
			if !end {
				break // behind the last line
			}
			if columns := []rune(line); len(columns) > 80 && strings.LastIndexByte(string(columns[:81]), ' ') > len(margin)+2 {
				t.Fatalf("line %d has %d columns and could be broken: %q", i, len(columns), line)
			}
			if i > 0 {
				rest, indented := strings.CutPrefix(line, margin)
				if !indented {
					t.Fatalf("line %d: %q", i, line)
				}
				line = " " + rest
			}
			whole.WriteString(line)
		}
		if whole.String() != clean {
			t.Fatalf("got  %q\nwant %q", whole.String(), clean)
		}
		if short := excerpt(text); len(short) > 203 || utf8.ValidString(text) && !utf8.ValidString(short) {
			t.Fatalf("%d bytes: %q", len(short), short)
		}
		one := finding{Severity: warn, Subject: text, What: text, Todo: text, Commands: []string{text}}
		if strings.ContainsRune(one.line(), '\n') {
			t.Fatalf("more than a line: %q", one.line())
		}
		_ = one.paragraph()
	})
}

// FuzzOlderThan: releases are compared as numbers, whatever follows them.
func FuzzOlderThan(f *testing.F) {
	f.Add(uint16(0), uint16(8), uint16(3), uint16(0), uint16(8), uint16(4), "-rc1")
	f.Add(uint16(1), uint16(10), uint16(0), uint16(1), uint16(9), uint16(9), "+dirty")
	f.Add(uint16(1), uint16(10), uint16(0), uint16(1), uint16(10), uint16(0), "")
	f.Add(uint16(120), uint16(71), uint16(1), uint16(70), uint16(218), uint16(7), "+7")
	f.Fuzz(func(t *testing.T, a, b, c, x, y, z uint16, suffix string) {
		for _, text := range []string{suffix, "v" + suffix} {
			if olderThan(text, "0.8.4") && olderThan("v0.8.3", strings.TrimPrefix(text, "v")) && strings.Count(suffix, ".") == 0 {
				t.Fatalf("%q is before v0.8.4 and v0.8.3 before it", text)
			}
		}
		if suffix != "" && suffix[0] != '-' && suffix[0] != '+' {
			return // part of the number
		}
		release, other := fmt.Sprintf("v%d.%d.%d%s", a, b, c, suffix), fmt.Sprintf("%d.%d.%d", x, y, z)
		want := cmp.Or(cmp.Compare(a, x), cmp.Compare(b, y), cmp.Compare(c, z)) < 0
		if got := olderThan(release, other); got != want {
			t.Fatalf("%s before %s: %v", release, other, got)
		}
	})
}

// checkOutput runs a command and demands an exit code of its own, a document or lines that a terminal can show.
func checkOutput(t *testing.T, args ...string) {
	t.Helper()
	for _, asJSON := range []bool{false, true} {
		var out, errs bytes.Buffer
		args := slices.Clone(args)
		if asJSON {
			args = append(args, "--json")
		}
		if code := Main(args, &out, &errs); code != 0 && code != 1 {
			t.Fatalf("exit %d: %s", code, errs.String())
		}
		if strings.ContainsFunc(errs.String(), func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }) {
			t.Fatalf("not for a terminal: %q", errs.String())
		}
		var object map[string]any
		if asJSON {
			if err := json.Unmarshal(out.Bytes(), &object); err != nil && out.Len() > 0 {
				t.Fatalf("%v: %.500q", err, out.String())
			}
			continue
		}
		if strings.ContainsFunc(out.String(), func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }) {
			t.Fatalf("not for a terminal: %q", out.String())
		}
	}
}

// fuzzHost is a host's configuration whose lock and records are in a directory.
func fuzzHost(f *testing.F) (dir string) {
	f.Helper()
	dir = f.TempDir()
	conf, err := json.Marshal(map[string]string{"lockFile": filepath.Join(dir, "lock"), "stateDir": dir})
	if err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(dir, "config")
	if err := os.WriteFile(path, conf, 0o600); err != nil {
		f.Fatal(err)
	}
	f.Setenv("LOCKWRAP_CONFIG", path)
	if err := os.Mkdir(filepath.Join(dir, "attachments"), 0o700); err != nil {
		f.Fatal(err)
	}
	return dir
}

// FuzzCheck: whatever is in a list, check says what is wrong with it. There are no plugins that it could ask.
func FuzzCheck(f *testing.F) {
	dir := fuzzHost(f)
	bins := filepath.Join(dir, "bin")
	if err := os.Mkdir(bins, 0o755); err != nil {
		f.Fatal(err)
	}
	for _, data := range []string{
		`{"cniVersion": "1.0.0", "name": "web", "plugins": [{"type": "lockwrap", "capabilities": {"portMappings": true}, "delegates": [
			{"type": "bridge", "ipMasq": true}, {"type": "portmap", "Capabilities": {"portMappings": true}}]}, {"type": "firewall"}]}`,
		`{"name": "web", "plugins": [{"type": "a"}, {"type": "lockwrap", "delegates": [{"type": "b"}], "x": 1, "X": 2}, {"type": "lockwrap"}]}`,
		`{"name": "web", "type": "ptp", "ipMasqBackend": "nftables"}`, `{"name": "a\u001b", "plugins": [{"type": "\u001b[2J"}]}`, `[`, ``,
		`{"cniVersion": "9.9.9", "name": "web", "plugins": [{"type": "bridge"}]}`,
	} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 8<<10 {
			return
		}
		for _, name := range []string{"a.conflist", "a.conf"} {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			checkOutput(t, "check", "--bin-dir", bins, path)
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, data) {
				t.Fatalf("the file has changed: %v", err)
			}
		}
	})
}

// FuzzStatus: whatever is in the lock file and in a record, status tells it.
func FuzzStatus(f *testing.F) {
	dir := fuzzHost(f)
	f.Add([]byte(`{"version":1,"state":"adding","network":"web","container":"c","ifname":"eth0","types":["bridge"],"running":0,"since":"2024-01-01T00:00:00Z"}`),
		[]byte(`{"pid":999999999,"verb":"ADD","network":"\u001b[2J","since":"2024-01-01T00:00:00Z","group":1}`))
	f.Add([]byte(`{"version":1,"state":"added","network":"\n","types":null,"running":-1,"others":[{"version":1,"state":"undone"}],"leftover":{"version":1,"state":"deleting"}}`), []byte(`{}`))
	f.Add([]byte(`{"version":2}`), []byte("\x00"))
	f.Add([]byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, record, note []byte) {
		// The namespace of a record is opened, and a fuzzed path must not be that of a device.
		if lower := strings.ToLower(string(record)); strings.Contains(lower, "netns") || strings.Contains(lower, `\u`) && !strings.Contains(lower, `\u001b`) {
			return
		}
		for path, data := range map[string][]byte{filepath.Join("attachments", "web:c:eth0.json"): record, "lock": note} {
			if err := os.WriteFile(filepath.Join(dir, path), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		checkOutput(t, "status")
		all, err := wrap.Attachments(dir)
		if err != nil || len(all) == 0 {
			t.Fatalf("%d attachments: %v", len(all), err)
		}
		for _, a := range all {
			if age(time.Now(), a.Since) == "" || a.State == "unreadable" && a.Stuck == "" {
				t.Fatalf("%+v", a)
			}
		}
	})
}
