package config

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// entry is one line of a settings file.
type entry struct {
	value string
	line  int
}

// parseEnvFile reads NAME=value lines:
//
//	# a comment; empty lines are fine
//	LISTEN=127.0.0.1:8080
//	export LOG_LEVEL=debug        # spaces around are dropped, and so is a comment after a space
//	REDIS_URL='redis://:a#b@host' # single quotes: as it stands
//	LABEL="a \"b\"\tc\n"          # double quotes: \n \r \t \" \\ and \$ are understood
//
// Nothing is expanded. A name that stands twice is an error, and so is everything that is not of this
// form; errors name the line and never show a value.
func parseEnvFile(text string) (map[string]entry, error) {
	text = strings.TrimPrefix(text, "\ufeff")
	if !utf8.ValidString(text) {
		return nil, errors.New("is not UTF-8 text")
	}
	out := map[string]entry{}
	n := 0
	for line := range strings.SplitSeq(text, "\n") {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "export "); ok {
			line = strings.TrimSpace(rest)
		}
		name, raw, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if !ok || !validName(name) {
			return nil, fmt.Errorf("line %d: expected NAME=value with a name in capitals", n)
		}
		if earlier, twice := out[name]; twice {
			return nil, fmt.Errorf("line %d: %s stands in line %d already", n, name, earlier.line)
		}
		value, err := parseValue(strings.TrimSpace(raw))
		if err != nil {
			return nil, fmt.Errorf("line %d: %s %w", n, name, err)
		}
		out[name] = entry{value, n}
	}
	return out, nil
}

func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c >= 'A' && c <= 'Z' || c == '_' || i > 0 && c >= '0' && c <= '9' {
			continue
		}
		return false
	}
	return s != ""
}

func parseValue(s string) (string, error) {
	if strings.ContainsRune(s, 0) {
		return "", errors.New("has a NUL byte")
	}
	if s == "" || s[0] == '#' {
		return "", nil
	}
	switch s[0] {
	case '\'':
		value, rest, ok := strings.Cut(s[1:], "'")
		if !ok {
			return "", errors.New("has no closing quote")
		}
		return value, onlyComment(rest)
	case '"':
		var b strings.Builder
		for i := 1; i < len(s); i++ {
			switch c := s[i]; c {
			case '"':
				return b.String(), onlyComment(s[i+1:])
			case '\\':
				i++
				if i == len(s) {
					return "", errors.New("has no closing quote")
				}
				switch s[i] {
				case 'n':
					b.WriteByte('\n')
				case 'r':
					b.WriteByte('\r')
				case 't':
					b.WriteByte('\t')
				case '"', '\\', '$':
					b.WriteByte(s[i])
				default:
					return "", errors.New("has a backslash before a character that needs none: in double quotes use \\\\ for a backslash")
				}
			default:
				b.WriteByte(c)
			}
		}
		return "", errors.New("has no closing quote")
	}
	for i := 1; i < len(s); i++ {
		if s[i] == '#' && (s[i-1] == ' ' || s[i-1] == '\t') {
			return strings.TrimSpace(s[:i]), nil
		}
	}
	return s, nil
}

func onlyComment(rest string) error {
	rest = strings.TrimSpace(rest)
	if rest == "" || rest[0] == '#' {
		return nil
	}
	return errors.New("goes on after its closing quote")
}
