package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// parseYAML reads as much of YAML as deploy/compose.yml is written in: maps and lists by indentation, lists in brackets
// that are JSON, scalars in a line, blocks of text, anchors on maps, aliases, and "<<" that merges one. Values are
// map[string]any, []any and string. Anything else is an error, not a guess.
func parseYAML(text string) (map[string]any, error) {
	p := &yamlParser{anchors: map[string]any{}}
	for i, raw := range strings.Split(text, "\n") {
		line := strings.TrimRight(raw, " ")
		trimmed := strings.TrimLeft(line, " ")
		p.lines = append(p.lines, yamlLine{i + 1, len(line) - len(trimmed), trimmed})
	}
	top, err := p.block(0)
	if err != nil {
		return nil, err
	}
	if p.skip(); p.at < len(p.lines) {
		return nil, p.wrong("is indented less than what is before it")
	}
	m, ok := top.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("it is no map")
	}
	return m, nil
}

type yamlLine struct {
	number, indent int
	text           string
}

type yamlParser struct {
	lines   []yamlLine
	at      int
	anchors map[string]any
}

func (p *yamlParser) wrong(what string) error {
	return fmt.Errorf("line %d, %q, %s", p.lines[p.at].number, p.lines[p.at].text, what)
}

// skip passes over empty lines and comments.
func (p *yamlParser) skip() {
	for p.at < len(p.lines) && (p.lines[p.at].text == "" || strings.HasPrefix(p.lines[p.at].text, "#")) {
		p.at++
	}
}

// block reads the map or list whose lines have this indentation.
func (p *yamlParser) block(indent int) (any, error) {
	m, list := map[string]any{}, []any{}
	for p.skip(); p.at < len(p.lines) && p.lines[p.at].indent >= indent; p.skip() {
		line := &p.lines[p.at]
		if line.indent != indent {
			return nil, p.wrong("is indented more than what is before it")
		}
		if item, ok := strings.CutPrefix(line.text, "- "); ok {
			*line = yamlLine{line.number, indent + 2, item} // the rest is a block of its own
			if !strings.Contains(item, ": ") && !strings.HasSuffix(item, ":") {
				list = append(list, item)
				p.at++
				continue
			}
			v, err := p.block(indent + 2)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
			continue
		}
		key, rest, ok := strings.Cut(line.text, ":")
		if !ok || rest != "" && rest[0] != ' ' {
			return nil, p.wrong("is no key")
		}
		v, err := p.value(indent, strings.TrimSpace(rest))
		if err != nil {
			return nil, err
		}
		if key != "<<" {
			m[key] = v
			continue
		}
		base, ok := v.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%q merges what is no map", line.text)
		}
		merged := maps.Clone(base)
		maps.Copy(merged, m)
		m = merged
	}
	if len(list) > 0 {
		return list, nil
	}
	return m, nil
}

// value reads what follows a key on its line, or the block below it.
func (p *yamlParser) value(indent int, rest string) (any, error) {
	line := p.at
	anchor := ""
	if name, ok := strings.CutPrefix(rest, "&"); ok {
		anchor, rest = name, ""
	}
	p.at++
	switch {
	case rest == "|":
		var text strings.Builder
		for ; p.at < len(p.lines) && (p.lines[p.at].indent > indent || p.lines[p.at].text == ""); p.at++ {
			text.WriteString(strings.Repeat(" ", max(0, p.lines[p.at].indent-indent-2)) + p.lines[p.at].text + "\n")
		}
		return text.String(), nil
	case strings.HasPrefix(rest, "*"):
		v, ok := p.anchors[rest[1:]]
		if !ok {
			return nil, fmt.Errorf("line %d: nothing is called %s", p.lines[line].number, rest)
		}
		return v, nil
	case strings.HasPrefix(rest, "["):
		var list []any
		if err := json.Unmarshal([]byte(rest), &list); err != nil {
			return nil, fmt.Errorf("line %d: %w", p.lines[line].number, err)
		}
		return list, nil
	case rest != "":
		return strings.Trim(rest, `"`), nil
	}
	p.skip()
	if p.at == len(p.lines) || p.lines[p.at].indent <= indent {
		return "", nil
	}
	v, err := p.block(p.lines[p.at].indent)
	if anchor != "" {
		p.anchors[anchor] = v
	}
	return v, err
}
