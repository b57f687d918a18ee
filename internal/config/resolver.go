package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/wafleet/wafleet/internal/cmdline"
)

const maxFile = 1 << 20 // of a settings or secret file, in bytes

// Fill sets the flags of a command that were not on its line and are settings, from environ, else from the settings file. A
// flag without a setting tag can be set on the command line and nowhere else. An error is of type *Error.
func Fill(l *cmdline.Line, environ []string) error {
	r := &resolver{env: map[string]string{}}
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			r.env[name] = value
		}
	}
	if err := r.load(l.Flags); err != nil {
		return err
	}
	for _, f := range l.Flags {
		name := f.Tag.Get("setting")
		if f.Given || name == "" || name == fileSetting {
			continue
		}
		_, secret := f.Tag.Lookup("secret")
		value, from, err := r.find(name, secret)
		if err != nil {
			return err
		}
		if value == "" {
			continue
		}
		if err := f.Set(value); err != nil {
			return &Error{name, "in " + from + " " + err.Error()}
		}
	}
	return nil
}

// fileSetting names the file, so it can't stand in it.
const fileSetting = "WAFLEET_CONFIG"

type resolver struct {
	env  map[string]string
	path string // of the settings file
	file map[string]entry
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

// load reads the settings file of --config or WAFLEET_CONFIG, if the command takes one.
func (r *resolver) load(flags []*cmdline.Flag) error {
	i := slices.IndexFunc(flags, func(f *cmdline.Flag) bool { return f.Tag.Get("setting") == fileSetting })
	if i < 0 {
		return nil
	}
	r.path = r.env[fileSetting]
	if flags[i].Given {
		r.path = flags[i].Text
	}
	if r.path == "" {
		return nil
	}
	text, err := readSmall(r.path)
	if err != nil {
		return &Error{fileSetting, "names a file that can't be read: " + err.Error()}
	}
	if r.file, err = parseEnvFile(text); err != nil {
		return &Error{fileSetting, fmt.Sprintf("names %s, which can't be understood: %v", r.path, err)}
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
		if s.Name == fileSetting {
			continue
		}
		known[s.Name] = true
		if s.Secret {
			known[s.Name+"_FILE"] = true
		}
	}
	return known
}

// suggest names the known setting that is nearest, if one is near.
func suggest(name string, known map[string]bool) string {
	best := cmdline.Nearest(name, slices.Sorted(maps.Keys(known)))
	if best == "" {
		return ": see docs/configuration.md"
	}
	return ": did you mean " + best + "?"
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
