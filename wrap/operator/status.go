// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lockwrap/lockwrap/conflist"
	"github.com/lockwrap/lockwrap/wrap"
)

// The directories where runtimes look for lists by default.
var confDirs = []string{
	"/opt/cni/config", // Nomad
	"/etc/cni/net.d",  // containerd, CRI-O, podman, nerdctl
}

func statusCommand() command {
	return command{
		name:  "status",
		about: "say who holds the lock, who waits, and which attachments are on record",
		help: `Needs no lock and changes nothing. It looks at the lock of the host's
configuration and at those that the lists in /opt/cni/config and /etc/cni/net.d
name. What is stuck comes first.
`,
		setup: func(flags *flag.FlagSet) func(*console, []string) int {
			asJSON := jsonFlag(flags)
			return func(c *console, args []string) int {
				if len(args) > 0 {
					return c.tooMany(args)
				}
				return c.status(*asJSON)
			}
		},
	}
}

// status is one pair of a lock and the records that belong to it.
type status struct {
	Lock        *wrap.LockStatus  `json:"lock"` // nil: not taken since boot
	LockFile    string            `json:"lockFile"`
	StateDir    string            `json:"stateDir"`
	Attachments []wrap.Attachment `json:"attachments"` // the stuck ones first, then by network, state and age

	limit time.Duration // of a wait for the lock
	errs  []error       // what could not be looked at
}

func (c *console) status(asJSON bool) int {
	all, err := readStatus(os.Environ())
	if err != nil {
		c.errorf("%s", ownWords(err))
		return 1
	}
	code := 0
	for _, s := range all {
		for _, err := range s.errs {
			c.errorf("%v", err)
			if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
				c.hintf("run it as root")
			}
			code = 1
		}
	}
	if asJSON {
		c.printJSON(map[string][]status{"status": all})
		return code
	}
	for i, s := range all {
		if i > 0 {
			c.printf("\n")
		}
		c.printf("%s", s)
	}
	return code
}

// ownWords is an error of package wrap without what it has for a runtime: the
// prefix of all of lockwrap's errors, and the details behind the message.
func ownWords(err error) string {
	text := err.Error()
	if cniErr := (*types.Error)(nil); errors.As(err, &cniErr) {
		text = cniErr.Msg
	}
	return strings.TrimPrefix(text, "lockwrap: ")
}

// readStatus looks at every lock and state directory that the host uses.
func readStatus(environ []string) ([]status, error) {
	host, err := wrap.HostSettings(environ)
	if err != nil {
		return nil, err
	}
	var all []status
	for _, s := range append([]wrap.Settings{host}, namedInLists(environ)...) {
		if slices.ContainsFunc(all, func(known status) bool { return known.LockFile == s.LockFile && known.StateDir == s.StateDir }) {
			continue
		}
		all = append(all, statusOf(s))
	}
	return all, nil
}

// statusOf looks at one of them.
func statusOf(s wrap.Settings) status {
	out := status{LockFile: s.LockFile, StateDir: s.StateDir, limit: s.LockTimeout}
	lock, err := wrap.InspectLock(s.LockFile)
	switch {
	case err == nil:
		out.Lock = &lock
	case !errors.Is(err, fs.ErrNotExist):
		out.errs = append(out.errs, err)
	}
	attachments, err := wrap.Attachments(s.StateDir)
	if err != nil {
		out.errs = append(out.errs, err)
	}
	sorted := make([]*wrap.Attachment, 0, len(attachments)) // of pointers, which costs 20 kB of binary less
	for i := range attachments {
		sorted = append(sorted, &attachments[i])
	}
	slices.SortFunc(sorted, func(a, b *wrap.Attachment) int {
		return cmp.Or(
			cmp.Compare(min(len(b.Stuck), 1), min(len(a.Stuck), 1)),
			cmp.Compare(a.Network, b.Network),
			cmp.Compare(a.State, b.State),
			a.Since.Compare(b.Since),
			cmp.Compare(a.File, b.File))
	})
	out.Attachments = make([]wrap.Attachment, 0, len(sorted)) // "[]" in JSON, not "null"
	for _, a := range sorted {
		out.Attachments = append(out.Attachments, *a)
	}
	return out
}

// namedInLists are the settings of the wrapped lists in the default directories.
func namedInLists(environ []string) []wrap.Settings {
	var all []wrap.Settings
	for _, dir := range confDirs {
		for _, file := range listFiles(dir) {
			list, err := loadList(file)
			if err != nil {
				continue // doctor complains
			}
			for _, p := range list.Plugins {
				if p.Type != conflist.PluginName {
					continue
				}
				if conf, err := wrap.ParseEntry(p.Raw, list.Name, list.CNIVersion, environ); err == nil {
					all = append(all, conf.Settings)
				}
			}
		}
	}
	return all
}

// listExtensions are those of the files in which runtimes look for networks.
var listExtensions = []string{".conf", ".conflist", ".json"}

// listFiles are those of a directory.
func listFiles(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var files []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains(listExtensions, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files
}

func (s status) String() string {
	var b strings.Builder
	now := time.Now()
	if s.Lock == nil && len(s.Attachments) == 0 && len(s.errs) == 0 {
		fmt.Fprintf(&b, "lock %s: lockwrap has not run since boot\n", s.LockFile)
		return b.String()
	}
	fmt.Fprintf(&b, "lock %s: ", s.LockFile)
	switch {
	case s.Lock == nil && len(s.errs) > 0:
		b.WriteString("cannot be looked at\n")
	case s.Lock == nil:
		b.WriteString("not taken since it was removed\n")
	case s.Lock.Holder != nil:
		h := *s.Lock.Holder
		fmt.Fprintf(&b, "held for %s", age(now, h.Since))
		if h.State != "" {
			fmt.Fprintf(&b, " by a process that is %s", h.State)
		}
		fmt.Fprintf(&b, "\n  holder  %s\n", describe(h))
		for _, line := range h.Running {
			fmt.Fprintf(&b, "          running %s\n", printable(line))
		}
	case s.Lock.Died != nil:
		fmt.Fprintf(&b, "free; its last holder was killed %s ago or later\n  killed  %s\n", age(now, s.Lock.Died.Since), describe(*s.Lock.Died))
	default:
		b.WriteString("free\n")
	}
	if s.Lock != nil {
		for i, w := range s.Lock.Waiters {
			fmt.Fprintf(&b, "  %-6s  %s, for %s\n", fmt.Sprintf("wait %d", i+1), describe(w), age(now, w.Since))
		}
	}
	s.writeAttachments(&b, now)
	return b.String()
}

// describe names a process by its call.
func describe(u wrap.LockUser) string {
	what := fmt.Sprintf("pid %d", u.PID)
	switch {
	case u.Verb == "" && u.Command != "":
		what += " " + u.Command
	case u.Verb != "":
		what += " " + u.Verb
	}
	if u.Network != "" {
		what += ", network " + u.Network
	}
	if u.Container != "" {
		what += ", container " + u.Container
	}
	if u.IfName != "" {
		what += ", interface " + u.IfName
	}
	if u.Plugin != "" {
		what += ", in " + u.Plugin
	}
	return printable(what)
}

// writeAttachments tells the stuck ones first, and how many there are of each
// kind.
func (s status) writeAttachments(b *strings.Builder, now time.Time) {
	fmt.Fprintf(b, "attachments %s: ", filepath.Join(s.StateDir, "attachments"))
	if len(s.Attachments) == 0 {
		b.WriteString("none\n")
		return
	}
	stuck := 0
	table := [][]string{{"NETWORK", "STATE", "FOR", "CONTAINER", "INTERFACE"}}
	for _, a := range s.Attachments {
		state := a.State
		if a.Plugin != "" {
			state += " (" + a.Plugin + ")"
		}
		table = append(table, []string{orUnknown(a.Network), state, age(now, a.Since), orUnknown(a.Container), orUnknown(a.IfName)})
		if a.Stuck != "" {
			stuck++
		}
	}
	fmt.Fprintf(b, "%d, %d stuck\n", len(s.Attachments), stuck)
	// Package tabwriter would cost three pages of the binary. The reasons go
	// between the lines: as cells they would make it too wide.
	widths := make([]int, len(table[0]))
	for _, row := range table {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for i, row := range table {
		line := ""
		for j, cell := range row {
			line += fmt.Sprintf("  %-*s", widths[j], cell)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
		if i > 0 && i <= stuck {
			fmt.Fprintf(b, "    stuck: %s\n", printable(s.Attachments[i-1].Stuck))
		}
	}
}

func orUnknown(s string) string {
	if s == "" {
		return "?"
	}
	return printable(s)
}

// age is how long ago something was, as precise as one wants to know.
func age(now, then time.Time) string {
	d := max(now.Sub(then), 0)
	switch {
	case then.IsZero():
		return "?"
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}
