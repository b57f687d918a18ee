package cmdline

import (
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Error is a mistake in a command line.
type Error struct{ text string }

// Error says what is wrong and names the flag.
func (e *Error) Error() string { return e.text }

func wrong(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// Line is the flags and arguments of one command.
type Line struct {
	Flags []*Flag
	Args  []*Flag // without names, in their order
}

// Flag is one field of a command's struct.
type Flag struct {
	Name  string // without the dashes
	Tag   reflect.StructTag
	Text  string // what the line gave
	Given bool   // on the line
	value reflect.Value
}

// Describe reads the tags of the struct that into points to, with those of the structs embedded in it, and sets its
// defaults. It panics if they can't be read: that is seen at every start or never.
func Describe(into any) *Line {
	l := &Line{}
	l.describe(reflect.ValueOf(into).Elem())
	return l
}

func (l *Line) describe(v reflect.Value) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Anonymous {
			l.describe(v.Field(i))
			continue
		}
		f := &Flag{Name: flagName(&field), Tag: field.Tag, value: v.Field(i)}
		if text, ok := field.Tag.Lookup("default"); ok {
			if err := f.Set(text); err != nil {
				panic(fmt.Errorf("default of --%s %w", f.Name, err))
			}
		}
		if _, ok := field.Tag.Lookup("arg"); ok {
			l.Args = append(l.Args, f)
		} else {
			l.Flags = append(l.Flags, f)
		}
	}
}

func flagName(f *reflect.StructField) string {
	if name := f.Tag.Get("name"); name != "" {
		return name
	}
	if name := f.Tag.Get("setting"); name != "" {
		return strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	}
	var b strings.Builder
	for i, r := range f.Name {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('-')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

func (f *Flag) isBool() bool { return f.value.Kind() == reflect.Bool }

// Set gives the field a value. The error says what is wrong with it, and begins with a verb.
func (f *Flag) Set(text string) error {
	if words := f.Tag.Get("enum"); words != "" && !contains(words, text) {
		return wrong("must be one of %s, not %q", strings.ReplaceAll(words, ",", ", "), text)
	}
	switch v := f.value.Addr().Interface().(type) {
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return wrong("must be a duration such as 30s or 5m, not %q", text)
		}
		*v = d
		return nil
	case *slog.Level:
		if v.UnmarshalText([]byte(text)) != nil {
			return wrong("must be debug, info, warn or error, not %q", text)
		}
		return nil
	case *[]string:
		*v = strings.Split(text, ",")
		return nil
	case **int: // a number that may be absent
		n, err := strconv.Atoi(text)
		if err != nil {
			return wrong("must be a whole number, not %q", text)
		}
		*v = &n
		return nil
	}
	switch f.value.Kind() {
	case reflect.String:
		f.value.SetString(text)
		return f.exists(text)
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return wrong("must be a whole number, not %q", text)
		}
		f.value.SetInt(int64(n))
	case reflect.Bool:
		switch strings.ToLower(text) {
		case "true", "yes", "1":
			f.value.SetBool(true)
		case "false", "no", "0":
			f.value.SetBool(false)
		default:
			return wrong("must be true or false, not %q", text)
		}
	default:
		panic("a flag can't be a " + f.value.Type().String())
	}
	return nil
}

func contains(words, text string) bool {
	for word := range strings.SplitSeq(words, ",") {
		if word == text {
			return true
		}
	}
	return false
}

func (f *Flag) exists(path string) error {
	kind := f.Tag.Get("type")
	if kind == "" || path == "" {
		return nil
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return wrong("can't be used: %v", err)
	case info.IsDir() && kind == "existingfile":
		return wrong("must be a file: %s is a folder", path)
	case !info.IsDir() && kind == "existingdir":
		return wrong("must be a folder: %s is a file", path)
	}
	return nil
}

// Read takes what args say. help: they ask for it, and nothing else counts. The error is an *Error.
func (l *Line) Read(args []string) (help bool, err error) {
	placed := 0
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		switch {
		case word == "--":
			for ; len(args) > 0; args = args[1:] {
				if err := l.place(&placed, args[0]); err != nil {
					return false, err
				}
			}
		case word == "-h", word == "--help":
			return true, nil
		case len(word) > 1 && word[0] == '-':
			if args, err = l.flag(word, args); err != nil {
				return false, err
			}
		default:
			if err := l.place(&placed, word); err != nil {
				return false, err
			}
		}
	}
	return false, l.complete(placed)
}

// place takes a word without a name.
func (l *Line) place(placed *int, word string) error {
	if *placed >= len(l.Args) {
		return wrong("unexpected argument %s", word)
	}
	f := l.Args[*placed]
	*placed++
	if err := f.Set(word); err != nil {
		return wrong("%s %v", f.shown(), err)
	}
	f.Text, f.Given = word, true
	return nil
}

// flag takes a flag and its value, and returns what follows.
func (l *Line) flag(word string, rest []string) ([]string, error) {
	name, text, joined := strings.Cut(strings.TrimPrefix(word, "--"), "=")
	var f *Flag
	for _, known := range l.Flags {
		if known.Name == name {
			f = known
		}
	}
	if f == nil || !strings.HasPrefix(word, "--") {
		var names []string
		for _, known := range l.Flags {
			names = append(names, "--"+known.Name)
		}
		word, _, _ = strings.Cut(word, "=") // its value may be a secret
		if near := Nearest(word, names); near != "" {
			return nil, wrong("unknown flag %s: did you mean %s?", word, near)
		}
		return nil, wrong("unknown flag %s", word)
	}
	switch {
	case joined:
	case f.isBool():
		text = "true"
	case len(rest) == 0 || strings.HasPrefix(rest[0], "--"):
		return nil, wrong("%s needs a value: %s", word, f.shown())
	default:
		text, rest = rest[0], rest[1:]
	}
	if err := f.Set(text); err != nil {
		return nil, wrong("--%s %v", name, err)
	}
	f.Text, f.Given = text, true
	return rest, nil
}

// complete reports what is missing, and what excludes each other.
func (l *Line) complete(placed int) error {
	if placed < len(l.Args) {
		return wrong("expected %s", l.Args[placed].shown())
	}
	all, given := map[string][]string{}, map[string][]string{}
	for _, f := range l.Flags {
		if word := f.Tag.Get("xor"); word != "" {
			all[word] = append(all[word], "--"+f.Name)
			if f.Given {
				given[word] = append(given[word], "--"+f.Name)
			}
		}
	}
	for word, names := range all {
		switch len(given[word]) {
		case 0:
			return wrong("missing %s", strings.Join(names, " or "))
		case 1:
		default:
			return wrong("%s exclude each other", strings.Join(given[word], " and "))
		}
	}
	return nil
}

// shown is the flag or argument as help shows it.
func (f *Flag) shown() string {
	value := f.Tag.Get("placeholder")
	if def := f.Tag.Get("default"); def != "" {
		value = def
	}
	if _, ok := f.Tag.Lookup("arg"); ok {
		if value == "" {
			value = strings.ToUpper(f.Name)
		}
		return "<" + value + ">"
	}
	if f.isBool() {
		return "--" + f.Name
	}
	if value == "" {
		value = strings.ToUpper(f.Name)
	}
	return "--" + f.Name + "=" + value
}

// Nearest is the word that differs from one in the fewest characters, "" if none is close.
func Nearest(word string, words []string) string {
	best, least := "", 4
	for _, w := range words {
		if d := distance(word, w); d < least {
			best, least = w, d
		}
	}
	return best
}

// distance is the number of characters to insert, remove or change.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := last
			if a[i] != b[j] {
				cost++
			}
			last = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
