// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/lockwrap/lockwrap/wrap"
)

// The code is the source of keys, defaults, commands, options, error codes and
// environment variables; README and man page say the same.
const (
	root      = "../.."
	readme    = root + "/README.md"
	manPage   = "lockwrap.8"
	keySource = "../config.go"
)

// Keys that are not the operator's: runtimes and the CNI libraries put them in.
var libraryKeys = []string{"type", "name", "cniVersion", "prevResult", "runtimeConfig", "args", "deviceID", "pciBusID", "cni.dev/"}

func TestDocs_keys(t *testing.T) {
	entry, host := defaults(t)
	theirs := caseStrings(t, "take")
	maps.DeleteFunc(theirs, func(key, _ string) bool { return entry[key] != "" })
	compare(t, "key", theirs, keySource, set(libraryKeys), "the list libraryKeys")

	man := manSection(t, "KEYS")
	for _, tt := range []struct {
		name      string
		want, got map[string]string
		file      string
	}{
		{"entry in README", entry, readmeEntry(t), readme},
		{"host file in README", host, readmeHost(t, entry), readme},
		{"entry in man page", entry, manKeys(man["Of the lockwrap entry"], nil), manPage},
		{"libraries in man page", theirs, manKeys(man["Of the runtime and the CNI libraries"], nil), manPage},
		{"host file in man page", host, manKeys(man["Of the host configuration file"], entry), manPage},
	} {
		t.Run(tt.name, func(t *testing.T) { compare(t, "key", tt.want, keySource, tt.got, tt.file) })
	}
}

// defaults are those of the keys of the lockwrap entry, and of the host file's.
func defaults(t *testing.T) (entry, host map[string]string) {
	empty := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(empty, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"LOCKWRAP_CONFIG=" + empty}
	conf, err := wrap.ParseEntry(json.RawMessage(`{"delegates": [{"type": "bridge"}]}`), "web", "1.0.0", environ)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wrap.ParseEntry(json.RawMessage(`{"delegates": []}`), "web", "1.0.0", environ); err == nil {
		t.Error("an entry without delegates is accepted")
	}
	conf.Delegates = nil
	entry, host = map[string]string{}, map[string]string{}
	keys := func(function string, into ...map[string]string) {
		for key := range caseStrings(t, function) {
			if slices.Contains(libraryKeys, key) {
				continue
			}
			field := reflect.ValueOf(*conf).FieldByName(strings.ToUpper(key[:1]) + key[1:])
			if !field.IsValid() {
				t.Errorf("%s: the key %q has no field of its name", keySource, key)
				continue
			}
			for _, m := range into {
				m[key] = inDocs(t, key, field.Interface())
			}
		}
	}
	keys("set", entry, host)
	keys("take", entry)
	keys("readHostConfig", host)
	return entry, host
}

// inDocs writes a default as the documents do.
func inDocs(t *testing.T, key string, value any) string {
	switch v := value.(type) {
	case string:
		if v == "" {
			return "none"
		}
		return strconv.Quote(v)
	case time.Duration:
		return strconv.Quote(strings.TrimSuffix(v.String(), "0s"))
	case slog.Level:
		return strconv.Quote(strings.ToLower(v.String()))
	case []string:
		return `["` + strings.Join(v, `", "`) + `"]`
	}
	switch {
	case key == "delegates":
		return "required, not empty"
	case reflect.ValueOf(value).Len() > 0:
		t.Errorf("%s: how is the default of %q written in the documents?", keySource, key)
	case reflect.TypeOf(value).Kind() == reflect.Slice:
		return "[]"
	}
	return "none"
}

// caseStrings are the strings in the case clauses of a function of config.go.
func caseStrings(t *testing.T, function string) map[string]string {
	file, err := parser.ParseFile(token.NewFileSet(), keySource, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); !ok || f.Name.Name != function {
			continue
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			if clause, ok := n.(*ast.CaseClause); ok {
				for _, expr := range clause.List {
					maps.Copy(found, literals(expr))
				}
			}
			return true
		})
	}
	if len(found) == 0 {
		t.Errorf("%s: no keys in the cases of %s", keySource, function)
	}
	return found
}

func literals(root ast.Node) map[string]string {
	found := map[string]string{}
	ast.Inspect(root, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				found[s] = ""
			}
		}
		return true
	})
	return found
}

func readmeEntry(t *testing.T) map[string]string {
	keys := map[string]string{}
	for _, row := range readmeTable(t, "key", "default", "meaning") {
		keys[strings.Trim(row[0], "`")] = strings.Trim(row[1], "`")
	}
	return keys
}

// readmeHost reads the sentence on the host's file. Keys without a default there
// have that of the entry.
func readmeHost(t *testing.T, entry map[string]string) map[string]string {
	sentence := regexp.MustCompile("(?s)\n`/etc/lockwrap/config.json` sets (.*?) for the whole host").FindStringSubmatch(read(t, readme))
	if sentence == nil {
		t.Fatalf("%s: no sentence on what /etc/lockwrap/config.json sets", readme)
	}
	keys := map[string]string{}
	for _, m := range regexp.MustCompile("`(\\w+)`(?: \\(`(.*?)`\\))?").FindAllStringSubmatch(sentence[1], -1) {
		keys[m[1]] = cmp.Or(m[2], entry[m[1]])
	}
	return keys
}

// manKeys reads ".It Cm KEY No (default VALUE)", and ".Cm KEY" for keys whose
// default has been told.
func manKeys(lines []string, told map[string]string) map[string]string {
	keys := map[string]string{}
	item := regexp.MustCompile(`^\.It Cm (.*?)(?: No \((?:default )?(.*)\))?$`)
	for _, line := range lines {
		if m := item.FindStringSubmatch(line); m != nil {
			for _, key := range strings.Split(m[1], " , ") {
				keys[key] = strings.ReplaceAll(m[2], `\(dq`, `"`)
			}
		} else if fields := strings.Fields(line); told != nil && len(fields) > 1 && fields[0] == ".Cm" {
			keys[fields[1]] = told[fields[1]]
		}
	}
	return keys
}

func TestDocs_commands(t *testing.T) {
	man, order := map[string]string{}, []string{} // a command's heading and options
	for _, line := range manSection(t, "COMMANDS")[""] {
		heading, ok := strings.CutPrefix(line, ".It Cm ")
		if ok {
			heading = plain(heading)
			order = append(order, strings.Fields(heading)[0])
			man[order[len(order)-1]] = heading
		} else if item, ok := strings.CutPrefix(line, ".It "); ok {
			man[order[len(order)-1]] += "\n" + plain(item)
		}
	}
	code, names := map[string]string{}, []string{}
	known := map[string][]string{} // options
	for _, cmd := range commands() {
		heading, items := cmd.name, ""
		flags, _ := cmd.flags()
		for _, o := range cmd.options(flags) {
			heading += " [" + strings.Replace(o.String(), ", ", " | ", 1) + "]"
			items += "\n" + o.String()
			known[cmd.name] = append(known[cmd.name], o.names...)
		}
		code[cmd.name] = strings.TrimSpace(heading+" "+cmd.operands) + items
		names = append(names, cmd.name)
	}
	compare(t, "command", code, "the code", man, manPage)
	if !slices.Equal(order, names) {
		t.Errorf("%s has the commands in the order %q, the code in %q", manPage, order, names)
	}

	told := []string{"completion", "version", "help"} // need no row
	option := regexp.MustCompile("(?:^|[ `[])(--?\\w[\\w-]*)")
	for _, row := range readmeTable(t, "command", "does") {
		var options []string // of all commands in the row
		for _, m := range regexp.MustCompile("`([\\w-]+)[^`]*`").FindAllStringSubmatch(row[0], -1) {
			told, options = append(told, m[1]), append(options, known[m[1]]...)
			if !slices.Contains(names, m[1]) {
				t.Errorf("%s has the command %q, which the code has not", readme, m[1])
			}
		}
		for _, m := range option.FindAllStringSubmatch(strings.Join(row, " "), -1) {
			if !slices.Contains(options, m[1]) {
				t.Errorf("%s has the option %s in the row of %s, which the code has not", readme, m[1], row[0])
			}
		}
	}
	for _, name := range names {
		if !slices.Contains(told, name) {
			t.Errorf("%s lacks the command %q", readme, name)
		}
	}
}

// plain is what the macros of a line print.
func plain(line string) string {
	var words []string
	macros := strings.Fields(line)
	for i := 0; i < len(macros); i++ {
		switch macros[i] {
		case "Ar", "Cm", "No":
		case "Oo":
			words = append(words, "[")
		case "Oc":
			words = append(words, "]")
		case "Op": // to the end of the line
			words, macros = append(words, "["), append(macros, "]")
		case "Fl":
			i++
			words = append(words, "-"+macros[i])
		default:
			words = append(words, macros[i])
		}
	}
	return strings.NewReplacer("[ ", "[", " ]", "]", " ,", ",").Replace(strings.Join(words, " "))
}

func TestDocs_errorCodes(t *testing.T) {
	values := map[string]uint{
		"ErrIOFailure":            types.ErrIOFailure,
		"ErrDecodingFailure":      types.ErrDecodingFailure,
		"ErrInvalidNetworkConfig": types.ErrInvalidNetworkConfig,
		"ErrTryAgainLater":        types.ErrTryAgainLater,
		"ErrInternal":             types.ErrInternal,
	}
	code := map[string]string{}
	for path, file := range sources(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if from, ok := n.X.(*ast.Ident); ok && from.Name == "types" && strings.HasPrefix(n.Sel.Name, "Err") && n.Sel.Name != "Error" {
					if value, ok := values[n.Sel.Name]; ok {
						code[strconv.Itoa(int(value))] = ""
					} else {
						t.Errorf("%s: types.%s is new to this test: add it, and its number to %s", path, n.Sel.Name, manPage)
					}
				}
			case *ast.ValueSpec:
				for i, value := range n.Values { // errOther
					if lit, ok := value.(*ast.BasicLit); ok && lit.Kind == token.INT && strings.HasPrefix(n.Names[i].Name, "err") {
						code[lit.Value] = ""
					}
				}
			}
			return true
		})
	}
	man := map[string]string{}
	for _, line := range manSection(t, "CNI ERRORS")[""] {
		if number, ok := strings.CutPrefix(line, ".It Sy "); ok {
			man[number] = ""
		}
	}
	compare(t, "error code", code, "the code", man, manPage)

	told := regexp.MustCompile(`\bcode (\d+)`).FindAllStringSubmatch(read(t, readme), -1)
	for _, row := range readmeTable(t, "code", "message", "what to do") {
		told = append(told, []string{"", row[0]})
	}
	for _, number := range told {
		if _, ok := code[number[1]]; !ok && number[1] != "as given" {
			t.Errorf("%s has the error code %s, which the code has not", readme, number[1])
		}
	}
}

func TestDocs_environment(t *testing.T) {
	name := regexp.MustCompile(`LOCKWRAP_[A-Z_]+`)
	code, man := map[string]string{}, map[string]string{}
	for _, file := range sources(t) {
		for s := range literals(file) {
			maps.Copy(code, set(name.FindAllString(s, -1)))
		}
	}
	for _, line := range manSection(t, "ENVIRONMENT")[""] {
		if strings.HasPrefix(line, ".It Ev ") {
			maps.Copy(man, set(name.FindAllString(line, -1)))
		}
	}
	compare(t, "variable", code, "the code", man, manPage)
	compare(t, "variable", code, "the code", set(name.FindAllString(read(t, readme), -1)), readme)
}

// sources are the files that a build has: without tests, and without the faults
// that only tests build in.
func sources(t *testing.T) map[string]*ast.File {
	files := map[string]*ast.File{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{"test", "testdata", "bin"}, entry.Name()):
			return filepath.SkipDir
		case filepath.Ext(path) != ".go", strings.HasSuffix(path, "_test.go"), entry.Name() == "fault.go":
			return nil
		}
		files[path], err = parser.ParseFile(token.NewFileSet(), path, nil, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// readmeTable are the rows of the table with these columns.
func readmeTable(t *testing.T, columns ...string) (rows [][]string) {
	_, table, found := strings.Cut(read(t, readme), "\n| "+strings.Join(columns, " | ")+" |\n")
	if !found {
		t.Fatalf("%s: no table with the columns %q", readme, columns)
	}
	for line := range strings.Lines(table) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			break
		}
		if row := strings.Split(strings.Trim(line, "| "), " | "); !strings.HasPrefix(line, "|---") {
			rows = append(rows, row)
		}
	}
	return rows
}

// manSection are the lines of a section by subsection; those before the first
// one are under "".
func manSection(t *testing.T, name string) map[string][]string {
	_, section, found := strings.Cut(read(t, manPage), "\n.Sh "+name+"\n")
	if !found {
		t.Fatalf("%s: no section %s", manPage, name)
	}
	section, _, _ = strings.Cut(section, "\n.Sh ")
	lines, sub := map[string][]string{}, ""
	for line := range strings.Lines(section) {
		line = strings.TrimSuffix(line, "\n")
		if title, ok := strings.CutPrefix(line, ".Ss "); ok {
			sub = title
			continue
		}
		lines[sub] = append(lines[sub], line)
	}
	return lines
}

func read(t *testing.T, path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func set(list []string) map[string]string {
	all := map[string]string{}
	for _, s := range list {
		all[s] = ""
	}
	return all
}

// compare finds what only one of two has, or what they say differently.
func compare(t *testing.T, kind string, want map[string]string, source string, got map[string]string, file string) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if value, ok := got[key]; !ok {
			t.Errorf("%s lacks the %s %q, which %s has", file, kind, key, source)
		} else if value != want[key] {
			t.Errorf("%s has the %s %q as\n%s\n%s has it as\n%s", file, kind, key, value, source, want[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[key]; !ok {
			t.Errorf("%s has the %s %q, which %s has not", file, kind, key, source)
		}
	}
}
