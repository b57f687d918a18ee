package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// groups of settings, in the order in which people meet them.
var groups = []struct{ key, title string }{
	{"storage", "Storage"},
	{"keys", "Keys"},
	{"http", "HTTP"},
	{"worker", "Workers"},
	{"routing", "Routing"},
	{"webhooks", "Webhooks"},
	{"retention", "Retention"},
	{"logs", "Files and logs"},
}

// Groups are the headings of the settings in help texts.
func Groups() kong.Option {
	var out []kong.Group
	for _, g := range groups {
		out = append(out, kong.Group{Key: g.key, Title: g.title})
	}
	return kong.ExplicitGroups(out)
}

// HelpValue is kong's help of a flag with the setting's name behind it.
func HelpValue(v *kong.Value) string {
	name := v.Tag.Get("setting")
	if name == "" {
		return v.Help
	}
	return strings.TrimSuffix(v.Help, ".") + " [" + name + "]."
}

// setting is one setting as its struct field describes it.
type setting struct {
	Name, Flag, Default, Help, Group string
	Secret                           bool
}

// settings reads Config's tags.
func settings() []setting {
	var out []setting
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		name := f.Tag.Get("setting")
		if name == "" {
			continue
		}
		_, secret := f.Tag.Lookup("secret")
		flag := f.Tag.Get("name")
		if flag == "" {
			flag = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
		}
		out = append(out, setting{name, flag, f.Tag.Get("default"), f.Tag.Get("help"), f.Tag.Get("group"), secret})
	}
	return out
}

// Markdown is docs/configuration.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# Settings

<!-- Made from internal/config by its tests: go test ./internal/config -update -->

Every setting has one name. Give it as an environment variable, as a line in a file, or as a flag: LEASE_TTL is
` + "`--lease-ttl`" + `. Flags count before the environment, and the environment before the file. Empty is the same as absent.

The file is named by ` + "`--config FILE`" + ` or ` + "`WAFLEET_CONFIG`" + ` and holds one ` + "`NAME=value`" + ` a line. ` + "`#`" + ` begins a comment; a value in
single quotes stands as it is, and in double quotes ` + "`\\n \\r \\t \\\" \\\\ \\$`" + ` are understood. Nothing is expanded. An unknown name is an
error, so a typing mistake can't go unseen.

A setting marked † may be secret: ` + "`NAME_FILE`" + ` instead of ` + "`NAME`" + ` names a file that holds it. On a command line it can be seen by
everybody on the machine; prefer the file or the environment. Secrets are never printed or logged.
`)
	all := settings()
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## %s\n\n| name | default | what it does |\n|---|---|---|\n", g.title)
		for _, s := range all {
			if s.Group != g.key {
				continue
			}
			name, def := "`"+s.Name+"`", ""
			if s.Secret {
				name += " †"
			}
			if s.Default != "" {
				def = "`" + s.Default + "`"
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", name, def, strings.ReplaceAll(s.Help, "|", `\|`))
		}
	}
	b.WriteString(`
## Memory

wafleet collects garbage by the rule of the Go runtime, and reads its variables GOGC and GOMEMLIMIT. A process that rests, which
allocates less in ten seconds than lives on its heap, gives back garbage and unused pages as soon as they are a tenth of that.
With a GOGC of your own it leaves the heap to the runtime.
`)
	return b.String()
}

func sortErrors(errs []error) {
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
}
