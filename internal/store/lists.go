package store

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/wafleet/wafleet/internal/fleet"
)

// valuesMost is how many rows of a list SQLite gets as VALUES. It reads them three times as fast as JSON, but each
// number of rows is another text to keep prepared.
const valuesMost = 4

// list is the argument of an @ids@ or @rows@ table: strings, or structs whose fields are strings, numbers and booleans
// named by their json tags. On SQLite a short one is spread over the statement's parameters (spread); otherwise it
// travels as JSON.
type list struct{ rows any }

// idList is the argument of an @ids@ table.
func idList[T ~string](ids []T) list { return list{ids} }

// rowList is the argument of an @rows@ table.
func rowList[T any](rows []T) list { return list{rows} }

// Value implements driver.Valuer.
func (l list) Value() (driver.Value, error) { return l.text(), nil }

// text is the list as JSON.
func (l list) text() string {
	if l.len() == 0 {
		return "[]"
	}
	b, err := json.Marshal(l.rows)
	if err != nil {
		panic(err) // strings, numbers and booleans always marshal
	}
	return string(b)
}

func (l list) len() int { return reflect.ValueOf(l.rows).Len() }

// cells appends the values of the named columns, row by row.
func (l list) cells(into []any, columns []string) []any {
	rows := reflect.ValueOf(l.rows)
	for i := range rows.Len() {
		row := reflect.Indirect(rows.Index(i))
		if row.Kind() == reflect.String {
			into = append(into, row.String())
			continue
		}
		fields := fieldsOf(row.Type())
		for _, column := range columns {
			f, ok := fields[column]
			if !ok {
				panic(fmt.Sprintf("a list of %s has no %q", row.Type(), column))
			}
			into = append(into, f.of(row))
		}
	}
	return into
}

// field is how a struct holds a column.
type field struct {
	index int
	empty bool // its zero value stands for NULL
}

func (f field) of(row reflect.Value) any {
	v := row.Field(f.index)
	if f.empty && v.IsZero() {
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		return v.String()
	case reflect.Bool:
		return v.Bool()
	case reflect.Int, reflect.Int64:
		return v.Int()
	default:
		panic("a list holds a " + v.Type().String())
	}
}

var fieldsByType sync.Map // reflect.Type → map[string]field

func fieldsOf(t reflect.Type) map[string]field {
	if known, ok := fieldsByType.Load(t); ok {
		if fields, ok := known.(map[string]field); ok {
			return fields
		}
	}
	fields := map[string]field{}
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			fields[name] = field{i, options == "omitempty"}
		}
	}
	fieldsByType.Store(t, fields)
	return fields
}

// spread returns the statement and its arguments with the short lists in them as rows of VALUES, for SQLite. q is what a
// caller wrote, with its tokens.
func (s *Store) spread(q string, args []any) (string, []any) {
	shape := make([]byte, len(args)) // rows of each list and one more; 0: it stays an argument
	short := false
	for i, arg := range args {
		if l, ok := arg.(list); ok {
			if n := l.len(); n > 0 && n <= valuesMost {
				shape[i], short = byte(n)+1, true
			}
		}
	}
	if !short {
		return s.sql(q), args
	}
	key := spreadKey{q, string(shape)}
	kept, _ := s.spreads.Load(key)
	plan, ok := kept.(*spreadText)
	if !ok {
		plan = s.spreadOut(q, shape)
		s.spreads.Store(key, plan)
	}
	out := make([]any, 0, len(args)+len(plan.args))
	for _, a := range plan.args {
		if a.columns == nil {
			out = append(out, args[a.index])
		} else if l, ok := args[a.index].(list); ok {
			out = l.cells(out, a.columns)
		}
	}
	text := plan.text
	if s.now != nil {
		text = strings.ReplaceAll(text, "@now@", s.clock())
	}
	return text, out
}

type spreadKey struct{ text, shape string }

// spreadText is a statement whose parameters have no numbers: each takes the next of args.
type spreadText struct {
	text string
	args []spreadArg
}

type spreadArg struct {
	index   int      // of the caller's argument
	columns []string // of the list that it is; nil: it is no list
}

// spreadMark stands for a list's VALUES until the parameters are numbered in the order of the text.
var spreadMark = regexp.MustCompile(`\$(\d+)|@values:(\d+):([a-z_,]*)@`)

func (s *Store) spreadOut(q string, shape []byte) *spreadText {
	q = tables(sqliteTokens.Replace(q), func(kind, arg, columns string) string {
		n, err := strconv.Atoi(strings.TrimPrefix(arg, "$"))
		if kind == "@bytes:" || err != nil || shape[n-1] == 0 {
			return sqliteTable(kind, arg, columns)
		}
		names := []string{"id"}
		if kind == "@rows:" {
			names = columnNames(columns)
		}
		return "@values:" + strconv.Itoa(n) + ":" + strings.Join(names, ",") + "@"
	})
	p := &spreadText{}
	p.text = spreadMark.ReplaceAllStringFunc(q, func(token string) string {
		m := spreadMark.FindStringSubmatch(token)
		if m[2] == "" {
			n, _ := strconv.Atoi(m[1])
			p.args = append(p.args, spreadArg{index: n - 1})
			return "?"
		}
		n, _ := strconv.Atoi(m[2])
		names := strings.Split(m[3], ",")
		p.args = append(p.args, spreadArg{n - 1, names})
		row := "(?" + strings.Repeat(",?", len(names)-1) + ")"
		columns := make([]string, len(names))
		for i, name := range names {
			columns[i] = "column" + strconv.Itoa(i+1) + " AS " + name
		}
		return "(SELECT " + strings.Join(columns, ", ") + " FROM (VALUES " + strings.Join(slices.Repeat([]string{row}, int(shape[n-1])-1), ",") + "))"
	})
	if s.now == nil {
		p.text = strings.ReplaceAll(p.text, "@now@", s.clock())
	}
	return p
}

// columnNames are those of an @rows@ table.
func columnNames(columns string) []string {
	var names []string
	for column := range strings.SplitSeq(columns, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(column), " ")
		names = append(names, name)
	}
	return names
}

type termArg struct {
	ID    fleet.SessionID `json:"id"`
	Epoch int64           `json:"epoch"`
}

// termList is the argument of a table of (id, epoch).
func termList(terms []fleet.Term) list {
	args := make([]termArg, len(terms))
	for i, t := range terms {
		args[i] = termArg{t.SessionID, t.Epoch}
	}
	return rowList(args)
}

// Held is a list of terms as statements take it. To make one costs more than to look for work and find
// none, so who looks every second keeps it as long as its terms stay the same.
type Held struct {
	n    int
	rows string
}

// Hold makes the list of these terms.
func Hold(terms []fleet.Term) Held { return Held{len(terms), termList(terms).text()} }
