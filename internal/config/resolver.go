package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

const maxFile = 1 << 20 // of a settings or secret file, in bytes

// Resolver gives kong the settings that are not on the command line: from environ, else from the
// settings file. It answers for flags with a setting tag only, so a flag without one can be set on the
// command line and nowhere else.
func Resolver(environ []string) kong.Resolver {
	r := &resolver{env: map[string]string{}}
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			r.env[name] = value
		}
	}
	return r
}

type resolver struct {
	env    map[string]string
	path   string // of the settings file
	file   map[string]entry
	loaded bool
}

// Validate implements kong.Resolver.
func (*resolver) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver. An error is of type *Error.
func (r *resolver) Resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	name := flag.Tag.Get("setting")
	if name == "" {
		return nil, nil //nolint:nilnil // kong's way to say "no value"
	}
	if name == "WAFLEET_CONFIG" {
		return orNil(r.env[name]), nil
	}
	if err := r.load(ctx); err != nil {
		return nil, err
	}
	value, from, err := r.find(name, flag.Tag.Has("secret"))
	if err != nil || value == "" {
		return nil, err
	}
	// Decoded here once more, so that the error can say where the value stands.
	probe := reflect.New(flag.Target.Type()).Elem()
	scan := kong.Scan().PushTyped(value, kong.FlagValueToken)
	if err := flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: scan}, probe); err != nil {
		return nil, &Error{name, "in " + from + " " + err.Error()}
	}
	if flag.Enum != "" && !flag.EnumMap()[value] {
		return nil, &Error{name, fmt.Sprintf("in %s must be one of %s", from, strings.Join(flag.EnumSlice(), ", "))}
	}
	return value, nil
}

func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// find looks through the layers; in each, NAME and NAME_FILE exclude each other.
func (r *resolver) find(name string, secret bool) (value, from string, err error) {
	layers := []struct {
		from string
		get  func(string) string
	}{
		{"the environment", func(n string) string { return r.env[n] }},
		{r.path, func(n string) string { return r.file[n].value }},
	}
	for _, l := range layers {
		value = l.get(name)
		path := ""
		if secret {
			path = l.get(name + "_FILE")
		}
		switch {
		case value != "" && path != "":
			return "", "", &Error{name, fmt.Sprintf("and %s_FILE are both set in %s: remove one", name, l.from)}
		case path != "":
			value, err := readSmall(path)
			if err != nil {
				return "", "", &Error{name, fmt.Sprintf("can't be read as %s_FILE in %s says: %v", name, l.from, err)}
			}
			if value = strings.TrimSpace(value); value == "" {
				return "", "", &Error{name, fmt.Sprintf("is empty in the file that %s_FILE in %s names", name, l.from)}
			}
			return value, path, nil
		case value != "":
			return value, l.from, nil
		}
	}
	return "", "", nil
}

// load reads the settings file of --config or WAFLEET_CONFIG once.
func (r *resolver) load(ctx *kong.Context) error {
	if r.loaded {
		return nil
	}
	r.loaded = true
	r.path = r.env["WAFLEET_CONFIG"]
	for _, p := range ctx.Path {
		if p.Flag != nil && p.Flag.Name == "config" && !p.Resolved {
			r.path, _ = ctx.FlagValue(p.Flag).(string)
		}
	}
	if r.path == "" {
		return nil
	}
	text, err := readSmall(r.path)
	if err != nil {
		return &Error{"WAFLEET_CONFIG", "names a file that can't be read: " + err.Error()}
	}
	if r.file, err = parseEnvFile(text); err != nil {
		return &Error{"WAFLEET_CONFIG", fmt.Sprintf("names %s, which can't be understood: %v", r.path, err)}
	}
	known := names()
	for _, name := range slices.Sorted(maps.Keys(r.file)) {
		if !known[name] {
			return &Error{name, fmt.Sprintf("in line %d of %s is not a setting%s", r.file[name].line, r.path, suggest(name, known))}
		}
	}
	return nil
}

// names are all settings that may stand in a file.
func names() map[string]bool {
	known := map[string]bool{}
	for _, s := range settings() {
		if s.Name == "WAFLEET_CONFIG" {
			continue
		}
		known[s.Name] = true
		if s.Secret {
			known[s.Name+"_FILE"] = true
		}
	}
	return known
}

// suggest names the known setting that differs in the fewest characters, if it is close.
func suggest(name string, known map[string]bool) string {
	best, least := "", 4
	for _, k := range slices.Sorted(maps.Keys(known)) {
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ": see docs/configuration.md"
	}
	return ": did you mean " + best + "?"
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

func readSmall(path string) (string, error) {
	f, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // it was only read
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", err
	}
	if len(raw) > maxFile {
		return "", errors.New("is larger than 1 MB")
	}
	return string(raw), nil
}
