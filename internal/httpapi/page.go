package httpapi

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Page is one part of a list.
type Page[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"nextCursor,omitempty" doc:"Give it as \"cursor\" to read on. Missing: this was the last part."`
}

// Paging are the parameters of every list. Parameter groups are exported because huma does not see
// into embedded types that are not.
type Paging struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many at most."`
	Cursor string `query:"cursor" maxLength:"64" doc:"nextCursor of the part before."`
}

// pageOf makes a part from up to limit+1 rows: the one too many only says that there is more.
func pageOf[R, T any](rows []R, limit int, view func(R) T, cursor func(R) string) Page[T] {
	p := Page[T]{Items: make([]T, 0, min(len(rows), limit))}
	for i, row := range rows {
		if i == limit {
			p.NextCursor = cursor(rows[i-1])
			break
		}
		p.Items = append(p.Items, view(row))
	}
	return p
}

// wholeList is a list that is short enough to be given at once.
func wholeList[R, T any](rows []R, view func(R) T) *reply[Page[T]] {
	return &reply[Page[T]]{pageOf(rows, len(rows), view, func(R) string { return "" })}
}

// reply is an answer that is only a body.
type reply[T any] struct{ Body T }

// fileReply is an answer that is written already: a picture, a text, JSON from elsewhere.
type fileReply struct {
	ContentType string `header:"Content-Type"`
	Body        []byte
}

// when writes a time for JSON: UTC, milliseconds, and nothing for no time.
func when(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Millisecond)
	return &t
}

const maxLabel = 200

// checkLabel refuses labels that would not survive a line of a list.
func checkLabel(s string) error {
	if utf8.RuneCountInString(s) > maxLabel {
		return invalid("LABEL_INVALID", "label", "may have at most 200 characters")
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		return invalid("LABEL_INVALID", "label", "must be one line without control characters")
	}
	return nil
}
