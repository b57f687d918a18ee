package poolimport

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"
)

// collections are the files that are read, each NAME.json, NAME.jsonl or NAME.ndjson.
var collections = [...]string{"session_pools", "api_keys", "sessions"}

// document is one exported document, with MongoDB's own forms of ids, times and bytes made plain.
type document struct {
	file   string
	line   int
	fields map[string]any
}

func (d *document) where() string { return fmt.Sprintf("%s line %d", d.file, d.line) }

// Export is what was read.
type Export struct {
	files map[string]string // collection → file
	docs  map[string][]document
}

// Read reads the files of a folder. session_pools must be there; the others may be missing.
func Read(dir fs.FS) (*Export, error) {
	e := &Export{files: map[string]string{}, docs: map[string][]document{}}
	for _, name := range collections {
		for _, ext := range []string{".json", ".jsonl", ".ndjson"} {
			raw, err := fs.ReadFile(dir, name+ext)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if e.docs[name], err = decode(name+ext, raw); err != nil {
				return nil, err
			}
			e.files[name] = name + ext
			break
		}
	}
	if e.files["session_pools"] == "" {
		return nil, errors.New("there is no session_pools.json here: export it with mongoexport --collection session_pools --out session_pools.json, and api_keys and sessions likewise")
	}
	return e, nil
}

// decode reads one document a line, or with mongoexport --jsonArray a list of them.
func decode(file string, raw []byte) ([]document, error) {
	raw = bytes.TrimPrefix(raw, []byte("\ufeff"))
	if trimmed := bytes.TrimSpace(raw); len(trimmed) > 0 && trimmed[0] == '[' {
		var list []map[string]any
		d := json.NewDecoder(bytes.NewReader(trimmed))
		d.UseNumber()
		if err := d.Decode(&list); err != nil {
			return nil, fmt.Errorf("%s is no list of documents: %w", file, err)
		}
		out := make([]document, len(list))
		for i, fields := range list {
			out[i] = document{file, i + 1, plainFields(fields)}
		}
		return out, nil
	}
	var out []document
	lines := bufio.NewReader(bytes.NewReader(raw))
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if text := bytes.TrimSpace(line); len(text) > 0 {
			var fields map[string]any
			d := json.NewDecoder(bytes.NewReader(text))
			d.UseNumber()
			if err := d.Decode(&fields); err != nil {
				return nil, fmt.Errorf("%s line %d is no document: %w", file, n, err)
			}
			out = append(out, document{file, n, plainFields(fields)})
		}
		if errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
}

func plainFields(fields map[string]any) map[string]any {
	out := make(map[string]any, len(fields))
	for name, v := range fields {
		out[name] = plain(v)
	}
	return out
}

// plain turns extended JSON, canonical and relaxed, into strings, int64, float64, time.Time and []byte.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = plain(v[i])
		}
		return out
	case map[string]any:
		if special, ok := extended(v); ok {
			return special
		}
		return plainFields(v)
	default:
		return v
	}
}

func extended(v map[string]any) (any, bool) {
	text := func(name string) (string, bool) { s, ok := v[name].(string); return s, ok }
	if s, ok := text("$oid"); ok {
		return s, true
	}
	for _, name := range []string{"$numberInt", "$numberLong"} {
		if s, ok := text(name); ok {
			n, err := strconv.ParseInt(s, 10, 64)
			return n, err == nil
		}
	}
	if s, ok := text("$numberDouble"); ok {
		f, err := strconv.ParseFloat(s, 64)
		return f, err == nil
	}
	if s, ok := text("$uuid"); ok {
		return s, true
	}
	if s, ok := text("$binary"); ok { // MongoDB before 4.2
		b, err := base64.StdEncoding.DecodeString(s)
		return b, err == nil
	}
	if b, ok := v["$binary"].(map[string]any); ok {
		s, _ := b["base64"].(string)
		raw, err := base64.StdEncoding.DecodeString(s)
		return raw, err == nil
	}
	switch date := v["$date"].(type) {
	case string:
		t, err := time.Parse(time.RFC3339Nano, strings.Replace(date, "+0000", "Z", 1))
		return t, err == nil
	case map[string]any, json.Number:
		n, ok := plain(date).(int64)
		return time.UnixMilli(n), ok
	}
	return nil, false
}

// text is the first of the fields that holds one; an id that MongoDB made counts.
func (d *document) text(names ...string) string {
	for _, name := range names {
		if s, ok := d.fields[name].(string); ok && strings.TrimSpace(s) != "" {
			return strings.TrimSpace(s)
		}
	}
	return ""
}

func (d *document) flag(names ...string) bool {
	for _, name := range names {
		if b, ok := d.fields[name].(bool); ok && b {
			return true
		}
	}
	return false
}

func (d *document) time(names ...string) time.Time {
	for _, name := range names {
		switch v := d.fields[name].(type) {
		case time.Time:
			return v
		case string:
			if t, err := time.Parse(time.RFC3339Nano, v); err == nil {
				return t
			}
		case int64:
			if v > 0 {
				return time.UnixMilli(v)
			}
		}
	}
	return time.Time{}
}

// list is a field of ids: strings, or documents that name one.
func (d *document) list(names ...string) []string {
	for _, name := range names {
		items, ok := d.fields[name].([]any)
		if !ok {
			continue
		}
		var out []string
		for _, item := range items {
			switch v := item.(type) {
			case string:
				out = append(out, v)
			case map[string]any:
				inner := document{fields: v}
				out = append(out, inner.text("sessionId", "id", "_id"))
			}
		}
		return out
	}
	return nil
}

// number is a whole number in a document within the document.
func (d *document) number(within, name string) (int, bool) {
	inner, ok := d.fields[within].(map[string]any)
	if !ok {
		return 0, false
	}
	switch n := inner[name].(type) {
	case int64:
		return int(n), n >= 0
	case float64:
		return int(n), n >= 0 && n == float64(int(n))
	default:
		return 0, false
	}
}
