// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/lockwrap/lockwrap/wrap"
)

// command is one of the operator's commands.
type command struct {
	name     string
	operands string   // as the usage shows them
	about    string   // one line
	help     string   // what the usage says beyond that
	words    []string // what the operands can be; nil if they are files or none
	// setup defines the flags and returns what runs when they are set.
	setup func(*flag.FlagSet) func(*console, []string) (exitCode int)
}

// console is where a command prints.
type console struct {
	out, errs io.Writer

	lost error // why the output is not complete
}

func (c *console) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(c.out, format, args...); err != nil && c.lost == nil {
		c.lost = err
	}
}

// linef prints one line, whatever is in the arguments.
func (c *console) linef(format string, args ...any) {
	c.printf("%s\n", printable(fmt.Sprintf(format, args...)))
}

func (c *console) errorf(format string, args ...any) { c.complain("error", format, args...) }
func (c *console) warnf(format string, args ...any)  { c.complain("warning", format, args...) }
func (c *console) hintf(format string, args ...any)  { c.complain("hint", format, args...) }

func (c *console) complain(what, format string, args ...any) {
	fmt.Fprintf(c.errs, "lockwrap: %s: %s\n", what, printable(fmt.Sprintf(format, args...)))
}

// printable escapes what a terminal would take for a command, or a reader for
// another line: file names, plugins' output and records may contain anything.
func printable(s string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// commands are in the order in which one needs them.
func commands() []command {
	return []command{
		wrapCommand(), unwrapCommand(), checkCommand(), doctorCommand(), statusCommand(), chainsCommand(),
		standInCommand(), installCommand(), uninstallCommand(),
		completionCommand(), versionCommand(), helpCommand(),
	}
}

func versionCommand() command {
	return command{
		name:  "version",
		about: "print the version",
		setup: func(*flag.FlagSet) func(*console, []string) int {
			return func(c *console, args []string) int {
				if len(args) > 0 {
					return c.tooMany(args)
				}
				c.printf("lockwrap %s\n", wrap.Version())
				return 0
			}
		},
	}
}

func helpCommand() command {
	return command{
		name:     "help",
		operands: "[COMMAND]",
		about:    "print the usage, or that of a command",
		setup: func(*flag.FlagSet) func(*console, []string) int {
			return func(c *console, args []string) int {
				switch {
				case len(args) == 0:
					c.printf("%s", usage())
					return 0
				case len(args) == 1:
					if cmd := find(args[0]); cmd != nil {
						c.printf("%s", cmd.usage())
						return 0
					}
					c.errorf("unknown command %q", args[0])
					return misused
				}
				return c.tooMany(args[1:])
			}
		},
	}
}

func (c *console) tooMany(args []string) int {
	c.errorf("unexpected argument %q", args[0])
	return misused
}

// misused is what a command returns for arguments that it can't take.
const misused = 2

// Main runs a command and returns the exit code.
func Main(args []string, out, errs io.Writer) (exitCode int) {
	c := &console{out: out, errs: errs}
	// A reader that has seen enough must not stop a list half-way through the
	// files: writing to it is an error, and not a signal.
	signal.Ignore(syscall.SIGPIPE)
	code := c.run(args)
	if c.lost != nil && code == 0 {
		c.errorf("cannot print: %v", c.lost)
		code = 1
	}
	return code
}

func (c *console) run(args []string) (exitCode int) {
	errs := c.errs
	if len(args) == 0 {
		fmt.Fprint(errs, usage())
		return misused
	}
	if slices.Contains([]string{"-h", "-help", "--help"}, args[0]) {
		c.printf("%s", usage())
		return 0
	}
	cmd := find(args[0])
	if cmd == nil {
		c.errorf("unknown command %q", args[0])
		fmt.Fprint(errs, usage())
		return misused
	}
	flags, run := cmd.flags()
	operands, err := parseFlags(flags, args[1:])
	if errors.Is(err, flag.ErrHelp) {
		c.printf("%s", cmd.usage())
		return 0
	}
	code := misused
	if err != nil {
		c.errorf("%v", err)
	} else {
		code = run(c, operands)
	}
	if code == misused {
		fmt.Fprint(errs, cmd.usage())
	}
	return code
}

func find(name string) *command {
	for _, cmd := range commands() {
		if cmd.name == name {
			return &cmd
		}
	}
	return nil
}

func (cmd *command) flags() (*flag.FlagSet, func(*console, []string) int) {
	flags := flag.NewFlagSet(cmd.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags, cmd.setup(flags)
}

// parseFlags takes flags wherever they stand. Package flag stops at the first
// operand, and whoever writes "wrap FILE --dry-run" must not have FILE changed.
func parseFlags(flags *flag.FlagSet, args []string) (operands []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		rest := flags.Args()
		if len(rest) == 0 {
			return operands, nil
		}
		if read := len(args) - len(rest); read > 0 && args[read-1] == "--" {
			return append(operands, rest...), nil
		}
		operands, args = append(operands, rest[0]), rest[1:]
	}
}

func usage() string {
	var b strings.Builder
	b.WriteString("Usage: lockwrap COMMAND ...\n\n")
	for _, cmd := range commands() {
		fmt.Fprintf(&b, "  %-10s  %s\n", cmd.name, cmd.about)
	}
	b.WriteString(`
"lockwrap help COMMAND" tells more. Exit codes: 0 done, 1 failed or found wrong,
2 usage.

Without arguments and without CNI_COMMAND it prints the about line of a CNI
plugin. With CNI_COMMAND it is one: a runtime calls it for a list like

  {"cniVersion": "1.0.0", "name": "web", "plugins": [
    {"type": "lockwrap", "capabilities": {"portMappings": true}, "delegates": [
    {"type": "bridge", ...},
    {"type": "firewall", ...},
    {"type": "portmap", "capabilities": {"portMappings": true}}
    ]}
  ]}
`)
	return b.String()
}

func (cmd *command) usage() string {
	var b strings.Builder
	flags, _ := cmd.flags()
	fmt.Fprintf(&b, "Usage: lockwrap %s", cmd.name)
	options := cmd.options(flags)
	if len(options) > 0 {
		b.WriteString(" [OPTION]...")
	}
	if cmd.operands != "" {
		b.WriteString(" " + cmd.operands)
	}
	fmt.Fprintf(&b, "\n\n%s.\n", strings.ToUpper(cmd.about[:1])+cmd.about[1:])
	for i, o := range options {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "  %-16s  %s\n", o.String(), o.about)
	}
	if cmd.help != "" {
		b.WriteString("\n" + cmd.help)
	}
	return b.String()
}

// option is a flag with all its names.
type option struct {
	names []string // with dashes, the long one last
	value string   // "" for a switch
	about string
}

func (o option) String() string {
	s := strings.Join(o.names, ", ")
	if o.value != "" {
		s += " " + o.value
	}
	return s
}

// options are the flags, those of one meaning together.
func (cmd *command) options(flags *flag.FlagSet) []option {
	var all []option
	flags.VisitAll(func(f *flag.Flag) {
		value, about := flag.UnquoteUsage(f)
		i := slices.IndexFunc(all, func(o option) bool { return o.about == about })
		if i < 0 {
			all = append(all, option{value: value, about: about})
			i = len(all) - 1
		}
		if len(f.Name) == 1 {
			all[i].names = append([]string{"-" + f.Name}, all[i].names...)
		} else {
			all[i].names = append(all[i].names, "--"+f.Name)
		}
	})
	return all
}
