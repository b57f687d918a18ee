package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/wafleet/wafleet/internal/cmdline"
)

// Groups are the headings of the settings, in the order in which people meet them.
var Groups = []cmdline.Group{
	{Key: "storage", Title: "Storage"},
	{Key: "keys", Title: "Keys"},
	{Key: "http", Title: "HTTP"},
	{Key: "worker", Title: "Workers"},
	{Key: "routing", Title: "Routing"},
	{Key: "webhooks", Title: "Webhooks"},
	{Key: "retention", Title: "Retention"},
	{Key: "logs", Title: "Files and logs"},
}

// About is a flag's help with the setting's name behind it.
func About(f *cmdline.Flag) string {
	help, name := f.Tag.Get("help"), f.Tag.Get("setting")
	if name == "" {
		return help
	}
	return strings.TrimSuffix(help, ".") + " [" + name + "]."
}

// setting is one setting as its struct field describes it.
type setting struct {
	Name, Flag, Default, Help, Group string
	Secret                           bool
}

// settings reads Config's tags.
func settings() []setting {
	var out []setting
	for _, f := range cmdline.Describe(new(Config)).Flags {
		_, secret := f.Tag.Lookup("secret")
		out = append(out, setting{f.Tag.Get("setting"), f.Name, f.Tag.Get("default"), f.Tag.Get("help"), f.Tag.Get("group"), secret})
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
	for _, g := range Groups {
		fmt.Fprintf(&b, "\n## %s\n\n| name | default | what it does |\n|---|---|---|\n", g.Title)
		for _, s := range all {
			if s.Group != g.Key {
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
