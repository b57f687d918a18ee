package cmdline

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type shared struct {
	Level slog.Level `setting:"LOG_LEVEL" default:"info" group:"logs" help:"How much is said."`
}

type options struct {
	shared
	Name    string        `help:"A name." placeholder:"TEXT"`
	Wait    time.Duration `default:"30s" help:"How long."`
	Count   int           `default:"3" help:"How many."`
	DryRun  bool          `help:"Do nothing."`
	Hosts   []string      `help:"Where."`
	Format  string        `default:"text" enum:"text,json" help:"text or json."`
	Admin   bool          `xor:"who" help:"For operators."`
	Org     string        `xor:"who" placeholder:"ORG" help:"For one organization."`
	Folder  string        `arg:"" type:"existingdir" placeholder:"DIR" help:"Where it is."`
	KeyFile string        `type:"existingfile" help:"A file."`
}

func read(args ...string) (options, error) {
	var o options
	_, err := Describe(&o).Read(args)
	return o, err
}

func TestALineFillsTheStruct(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	plain := options{Wait: 30 * time.Second, Count: 3, Format: "text", Admin: true, Folder: dir}
	for name, tc := range map[string]struct {
		args   []string
		change func(*options)
	}{
		"defaults": {[]string{"--admin", dir}, func(*options) {}},
		"values behind a sign and behind a space": {[]string{"--admin", "--name=a=b", "--wait", "5m", dir}, func(o *options) { o.Name, o.Wait = "a=b", 5*time.Minute }},
		"flags behind the argument":               {[]string{dir, "--admin", "--count=-1"}, func(o *options) { o.Count = -1 }},
		"a negative number behind a space":        {[]string{dir, "--admin", "--count", "-1"}, func(o *options) { o.Count = -1 }},
		"a switch turned off":                     {[]string{"--admin=true", "--dry-run=false", dir}, func(*options) {}},
		"the last one counts":                     {[]string{"--admin", "--count=1", "--count=2", dir}, func(o *options) { o.Count = 2 }},
		"a list":                                  {[]string{"--admin", "--hosts=a,b", dir}, func(o *options) { o.Hosts = []string{"a", "b"} }},
		"an empty value":                          {[]string{"--admin", "--name=", dir}, func(*options) {}},
		"a field of an embedded struct":           {[]string{"--admin", "--log-level=debug", dir}, func(o *options) { o.Level = slog.LevelDebug }},
		"one of two":                              {[]string{"--org=org-a", dir}, func(o *options) { o.Admin, o.Org = false, "org-a" }},
		"a file that is there":                    {[]string{"--admin", "--key-file", file, dir}, func(o *options) { o.KeyFile = file }},
		"what follows two dashes is no flag":      {[]string{"--admin", "--", dir}, func(*options) {}},
	} {
		want := plain
		tc.change(&want)
		got, err := read(tc.args...)
		if d := cmp.Diff(want, got, cmp.AllowUnexported(options{})); err != nil || d != "" {
			t.Errorf("%s: %v, %v (-want +got):\n%s", name, tc.args, err, d)
		}
	}
}

func TestAWrongLineIsRefusedWithWhatToDo(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"an unknown flag":            {[]string{"--xyzzyx=secret-word"}, "unknown flag --xyzzyx"},
		"a flag that is nearly one":  {[]string{"--dryrun"}, "unknown flag --dryrun: did you mean --dry-run?"},
		"a single dash":              {[]string{"-wait=5s"}, "unknown flag -wait: did you mean --wait?"},
		"a flag without its value":   {[]string{"--wait"}, "--wait needs a value: --wait=30s"},
		"a flag as another's value":  {[]string{"--name", "--admin"}, "--name needs a value: --name=TEXT"},
		"no duration":                {[]string{"--wait=soon"}, `--wait must be a duration such as 30s or 5m, not "soon"`},
		"no number":                  {[]string{"--count=few"}, `--count must be a whole number, not "few"`},
		"no switch":                  {[]string{"--dry-run=perhaps"}, `--dry-run must be true or false, not "perhaps"`},
		"a word that it can't be":    {[]string{"--format=xml"}, `--format must be one of text, json, not "xml"`},
		"no level":                   {[]string{"--log-level=loud"}, "--log-level must be debug, info, warn or error"},
		"too little":                 {[]string{"--admin"}, "expected <DIR>"},
		"too much":                   {[]string{"--admin", dir, "more"}, "unexpected argument more"},
		"neither of two":             {[]string{dir}, "missing --admin or --org"},
		"both of two":                {[]string{dir, "--admin", "--org=a"}, "--admin and --org exclude each other"},
		"a folder that is not there": {[]string{"--admin", filepath.Join(dir, "no")}, "<DIR> can't be used: "},
		"a folder for a file":        {[]string{"--admin", dir, "--key-file=" + dir}, "--key-file must be a file"},
	} {
		_, err := read(tc.args...)
		if _, ok := errors.AsType[*Error](err); !ok || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret-word") {
			t.Errorf("%s: %v = %v, want %q", name, tc.args, err, tc.want)
		}
	}
}

func TestHelpIsAskedForAtAnyPlace(t *testing.T) {
	p := Program{
		Name: "tool", Help: "Does things.", Groups: []Group{{"logs", "Logs"}},
		Commands: []Command{{"keys", "Keys.", nil}, {"keys make", "Make one of them and say where it is, in as many words as it takes to fill the line.", new(options)}, {"end", "End.", new(shared)}},
	}
	for _, tc := range []struct {
		args       []string
		want, lack string
	}{
		{[]string{"--help"}, "keys make    Make one", "\n  keys   "},
		{[]string{"keys", "-h"}, "Usage: tool keys <command>", "end"},
		{[]string{"keys", "make", "--count=9", "--help"}, "Usage: tool keys make <DIR> [flags]", "Does things"},
		{[]string{"keys", "make", "--help"}, "\nLogs\n  --log-level=info    How much is said.\n", "Keys."},
		{[]string{"end", "-h"}, "  -h, --help    Show help.", "DIR"},
	} {
		got, err := p.Parse(tc.args)
		if err != nil || !strings.Contains(got.Help, tc.want) || strings.Contains(got.Help, tc.lack) {
			t.Errorf("help of %v = %v, want %q and not %q:\n%s", tc.args, err, tc.want, tc.lack, got.Help)
			continue
		}
		for line := range strings.Lines(got.Help) {
			if len([]rune(line)) > 81 && !strings.HasPrefix(line, "Make one of them") {
				t.Errorf("help of %v has a line of %d characters: %s", tc.args, len(line), line)
			}
		}
	}
	got, err := p.Parse([]string{"end", "--log-level=warn"})
	if o, ok := got.Into.(*shared); err != nil || got.Help != "" || !ok || o.Level != slog.LevelWarn {
		t.Errorf("Parse of a command = %+v, %v", got, err)
	}
	for _, args := range [][]string{nil, {"keys"}, {"keys", "take"}, {"begin"}, {"--log-level=warn", "end"}} {
		if got, err := p.Parse(args); err == nil {
			t.Errorf("Parse(%v) = %+v, want an error", args, got)
		}
	}
}
