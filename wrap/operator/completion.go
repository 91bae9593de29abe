// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"flag"
	"fmt"
	"slices"
	"strings"
)

var shells = []string{"bash", "zsh", "fish"}

func completionCommand() command {
	return command{
		name:     "completion",
		operands: "bash|zsh|fish",
		about:    "print the completion of commands and options for a shell",
		help: `For bash:  lockwrap completion bash > /etc/bash_completion.d/lockwrap
For zsh:   lockwrap completion zsh > /usr/local/share/zsh/site-functions/_lockwrap
For fish:  lockwrap completion fish > /etc/fish/completions/lockwrap.fish
`,
		words: shells,
		setup: func(*flag.FlagSet) func(*console, []string) int {
			return func(c *console, args []string) int {
				if len(args) != 1 || !slices.Contains(shells, args[0]) {
					c.errorf("name one shell: bash, zsh or fish")
					return misused
				}
				c.printf("%s", map[string]func() string{"bash": bash, "zsh": zsh, "fish": fish}[args[0]]())
				return 0
			}
		},
	}
}

// completions are the words behind a command.
func (cmd *command) completions() (flags []option, words []string) {
	set, _ := cmd.flags()
	words = cmd.words
	if cmd.name == "help" {
		for _, other := range commands() {
			words = append(words, other.name)
		}
	}
	return cmd.options(set), words
}

func names(options []option) []string {
	var all []string
	for _, o := range options {
		all = append(all, o.names...)
	}
	return all
}

func bash() string {
	var verbs []string
	var cases strings.Builder
	for _, cmd := range commands() {
		verbs = append(verbs, cmd.name)
		options, words := cmd.completions()
		files := ""
		if strings.HasPrefix(cmd.operands, "FILE") {
			files = " files=yes"
		}
		fmt.Fprintf(&cases, "\t%s) words=%q%s ;;\n", cmd.name, strings.Join(append(names(options), words...), " "), files)
	}
	return fmt.Sprintf(`# bash completion for lockwrap
_lockwrap() {
	local cur=${COMP_WORDS[COMP_CWORD]} words files=
	if [ "$COMP_CWORD" = 1 ]; then
		mapfile -t COMPREPLY < <(compgen -W %q -- "$cur")
		return
	fi
	case ${COMP_WORDS[1]} in
%s	esac
	if [ -n "$files" ] && [[ $cur != -* ]]; then
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
	else
		mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
	fi
}
complete -o filenames -F _lockwrap lockwrap
`, strings.Join(verbs, " "), cases.String())
}

func zsh() string {
	var verbs, cases strings.Builder
	for _, cmd := range commands() {
		fmt.Fprintf(&verbs, "\t\t%s\n", quoteShell(cmd.name+":"+cmd.about))
		options, words := cmd.completions()
		fmt.Fprintf(&cases, "\t%s)\n\t\t_arguments", cmd.name)
		for _, o := range options {
			for _, name := range o.names {
				spec := name + "[" + o.about + "]"
				if o.value != "" {
					spec += ":" + o.value + ":"
					if o.value == "DIR" {
						spec += "_directories"
					}
				}
				fmt.Fprintf(&cases, " %s", quoteShell(spec))
			}
		}
		switch {
		case len(words) > 0:
			fmt.Fprintf(&cases, " %s", quoteShell("*:word:("+strings.Join(words, " ")+")"))
		case strings.HasPrefix(cmd.operands, "FILE"):
			fmt.Fprintf(&cases, " %s", quoteShell("*:file:_files"))
		}
		cases.WriteString(" ;;\n")
	}
	return fmt.Sprintf(`#compdef lockwrap
# zsh completion for lockwrap
_lockwrap() {
	local -a commands
	commands=(
%s	)
	if (( CURRENT == 2 )); then
		_describe command commands
		return
	fi
	local command=$words[2]
	shift words
	(( CURRENT-- ))
	case $command in
%s	esac
}
_lockwrap "$@"
`, verbs.String(), cases.String())
}

func fish() string {
	var b strings.Builder
	b.WriteString("# fish completion for lockwrap\n")
	for _, cmd := range commands() {
		fmt.Fprintf(&b, "complete -c lockwrap -f -n __fish_use_subcommand -a %s -d %s\n", cmd.name, quoteShell(cmd.about))
		options, words := cmd.completions()
		at := fmt.Sprintf("complete -c lockwrap -n '__fish_seen_subcommand_from %s'", cmd.name)
		for _, o := range options {
			b.WriteString(at)
			for _, name := range o.names {
				if long, ok := strings.CutPrefix(name, "--"); ok {
					b.WriteString(" -l " + long)
				} else {
					b.WriteString(" -s " + name[1:])
				}
			}
			if o.value != "" {
				b.WriteString(" -r")
			}
			fmt.Fprintf(&b, " -d %s\n", quoteShell(o.about))
		}
		switch {
		case len(words) > 0:
			fmt.Fprintf(&b, "%s -f -a %s\n", at, quoteShell(strings.Join(words, " ")))
		case strings.HasPrefix(cmd.operands, "FILE"):
			fmt.Fprintf(&b, "%s -F\n", at)
		}
	}
	return b.String()
}

func quoteShell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
