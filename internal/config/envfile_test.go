package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSettingsFilesAreReadAsDocumented(t *testing.T) {
	text := "\ufeff# a comment\r\n\n  LISTEN = 127.0.0.1:8080  \r\nexport LOG_LEVEL=debug # why\nURL=postgres://u:p#w@h/db\n" +
		"SINGLE='a #\"\\n' # comment\nDOUBLE=\"a\\tb \\\"c\\\" \\\\ \\$X # no comment\\n\"\nEMPTY=\nEMPTY_TOO= # nothing\nQUOTED=''\nSPACES=a  b\nEQUALS=a=b=c"
	got, err := parseEnvFile(text)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"LISTEN": "127.0.0.1:8080", "LOG_LEVEL": "debug", "URL": "postgres://u:p#w@h/db", "SINGLE": `a #"\n`,
		"DOUBLE": "a\tb \"c\" \\ $X # no comment\n", "EMPTY": "", "EMPTY_TOO": "", "QUOTED": "", "SPACES": "a  b", "EQUALS": "a=b=c",
	}
	values := map[string]string{}
	for name, e := range got {
		values[name] = e.value
	}
	if d := cmp.Diff(want, values); d != "" {
		t.Errorf("parseEnvFile (-want +got):\n%s", d)
	}
	if got["URL"].line != 5 {
		t.Errorf("URL stands in line %d, want 5", got["URL"].line)
	}
}

func TestBadSettingsFilesNameTheLineAndNeverTheValue(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"no equals sign", "\nsecret-word", "line 2: expected NAME=value"},
		{"small letters", "name=secret-word", "line 1: expected NAME=value"},
		{"a digit first", "1A=secret-word", "line 1: expected NAME=value"},
		{"no name", "=secret-word", "line 1: expected NAME=value"},
		{"a name twice", "A=1\n\nA=secret-word", "line 3: A stands in line 1 already"},
		{"an open single quote", "A='secret-word", "line 1: A has no closing quote"},
		{"an open double quote", `A="secret-word`, "line 1: A has no closing quote"},
		{"an open escape", `A="secret-word\`, "line 1: A has no closing quote"},
		{"an unknown escape", `A="secret-word\x"`, "line 1: A has a backslash"},
		{"text after a quote", "A='secret'-word", "line 1: A goes on after its closing quote"},
		{"a NUL byte", "A=secret-word\x00", "line 1: A has a NUL byte"},
		{"not UTF-8", "A=\xff", "is not UTF-8 text"},
	} {
		_, err := parseEnvFile(tc.text)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret-word") {
			t.Errorf("%s: parseEnvFile = %v, want %q", tc.name, err, tc.want)
		}
	}
}

// What was read can be written in double quotes and is read the same again.
func FuzzSettingsFile(f *testing.F) {
	for _, s := range []string{"", "A=1", "export A = 'x' # y", "A=\"\\n\\\"\"", "A=a #b\nB=#", "\ufeffA=\r\n", "A=\"", "=", "A='\x00'"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseEnvFile(text)
		if err != nil {
			return
		}
		var b strings.Builder
		for name, e := range got {
			if !validName(name) || strings.ContainsRune(e.value, 0) {
				t.Fatalf("read %q=%q", name, e.value)
			}
			quoted := strings.NewReplacer("\\", "\\\\", "\"", "\\\"", "\n", "\\n", "\r", "\\r", "\t", "\\t", "$", "\\$").Replace(e.value)
			b.WriteString(name + "=\"" + quoted + "\"\n")
		}
		again, err := parseEnvFile(b.String())
		if err != nil {
			t.Fatalf("parseEnvFile(%q) = %v", b.String(), err)
		}
		for name, e := range got {
			if again[name].value != e.value {
				t.Fatalf("%s is %q, then %q", name, e.value, again[name].value)
			}
		}
		if len(again) != len(got) {
			t.Fatalf("%d settings, then %d", len(got), len(again))
		}
	})
}
