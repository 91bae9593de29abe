// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/lockwrap/lockwrap/conflist"
)

type severity string

const (
	fine severity = "ok"
	warn severity = "warn"
	fail severity = "fail"
)

// finding is one thing that check or doctor has to say.
type finding struct {
	Severity severity `json:"severity"`
	Subject  string   `json:"subject"` // a file, or a part of the host
	Line     int      `json:"line,omitempty"`
	Column   int      `json:"column,omitempty"`
	What     string   `json:"what"`
	Todo     string   `json:"todo,omitempty"`
	Commands []string `json:"commands,omitempty"` // that do it, for a shell
}

// findings are collected in the order in which they are told.
type findings []finding

func (f *findings) add(s severity, subject, todo, format string, args ...any) *finding {
	*f = append(*f, finding{Severity: s, Subject: subject, What: fmt.Sprintf(format, args...), Todo: todo})
	return &(*f)[len(*f)-1]
}

// addAt is add for a place in a file.
func (f *findings) addAt(s severity, path string, p conflist.Plugin, todo, format string, args ...any) {
	at := f.add(s, path, todo, format, args...)
	at.Line, at.Column = p.Line, p.Column
}

func (f findings) worst() severity {
	for _, s := range []severity{fail, warn} {
		if slices.ContainsFunc(f, func(each finding) bool { return each.Severity == s }) {
			return s
		}
	}
	return fine
}

func (f finding) where() string {
	if f.Line == 0 {
		return f.Subject
	}
	return fmt.Sprintf("%s:%d:%d", f.Subject, f.Line, f.Column)
}

// asRoot is what to do about something that this user can't do.
func asRoot(otherwise string) string {
	if os.Geteuid() != 0 {
		return "run it as root"
	}
	return otherwise
}

// line is the finding in one line, for reading and for grep.
func (f finding) line() string {
	s := fmt.Sprintf("%-4s  %s: %s", f.Severity, f.where(), f.What)
	if f.Todo != "" {
		s += "; " + f.Todo
	}
	return printable(s)
}

// paragraph is the finding for a terminal of 80 columns. Commands are never
// folded, so that they can be copied.
func (f finding) paragraph() string {
	const margin = "      "
	var b strings.Builder
	b.WriteString(fold(printable(fmt.Sprintf("%-4s  %s: %s", f.Severity, f.where(), f.What)), margin))
	if f.Todo != "" {
		b.WriteString(fold(margin+"-> "+printable(f.Todo), margin+"   "))
	}
	for _, command := range f.Commands {
		b.WriteString(margin + "   " + printable(command) + "\n")
	}
	return b.String()
}

// fold breaks a text at blanks, so that no line is longer than 80 columns if
// that can be done. Every line but the first begins with margin.
func fold(text, margin string) string {
	const columns = 80
	var b strings.Builder
	for len([]rune(text)) > columns {
		line := string([]rune(text)[:columns+1])
		at := strings.LastIndexByte(line, ' ')
		if at <= len(margin)+2 { // one long word
			next := strings.IndexByte(text[len(line):], ' ')
			if next < 0 {
				break
			}
			at = len(line) + next
		}
		b.WriteString(text[:at] + "\n")
		text = margin + text[at+1:]
	}
	b.WriteString(text + "\n")
	return b.String()
}

// report prints findings and returns the exit code: 1 if one of them is a
// failure.
func (c *console) report(f findings, asJSON bool, text func(finding) string) int {
	if asJSON {
		c.printJSON(map[string]findings{"findings": append(findings{}, f...)})
	} else {
		for _, each := range f {
			c.printf("%s", text(each))
		}
	}
	if f.worst() == fail {
		return 1
	}
	return 0
}

func (c *console) printJSON(v any) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // only strings, numbers and times
	c.printf("%s", b.String())
}
