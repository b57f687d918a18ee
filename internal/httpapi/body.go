package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxBody bounds a request's body, in bytes.
const maxBody = 1 << 20

var (
	errBodyTooLarge = problem(http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE", "the body may have at most 1 MiB")
	errMediaType    = problem(http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE", "send JSON: Content-Type: application/json, UTF-8, not compressed")
	errBodySlow     = problem(http.StatusRequestTimeout, "BODY_TOO_SLOW", "the body did not arrive in time")
	errBodyCut      = problem(http.StatusBadRequest, "BODY_INCOMPLETE", "the body ended early")
)

// readBody takes the whole body in and lets only clean JSON past. encoding/json alone would repair
// broken UTF-8 silently, and a NUL is text that PostgreSQL can't hold.
func (*deps) readBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(readingDone{w}, r)
			return
		}
		raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			p := errBodyCut
			if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
				p = errBodyTooLarge
			} else if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				p = errBodySlow
			}
			writeProblem(w, r, p)
			return
		}
		if len(raw) > 0 {
			check := checkBody
			if r.URL.Path == importPath {
				check = checkCSV
			}
			if p := check(r.Header, raw); p != nil {
				writeProblem(w, r, p)
				return
			}
		}
		r.Body = io.NopCloser(bytes.NewReader(raw))
		// A read deadline that passes later would end the request's context in the middle of a wait.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // where there is none, none passes
		next.ServeHTTP(readingDone{w}, r)
	})
}

// readingDone keeps huma from setting its deadline for a body that has been read: 5 s, at whose end
// the server takes the client for gone.
type readingDone struct{ http.ResponseWriter }

// SetReadDeadline does nothing, on purpose.
func (readingDone) SetReadDeadline(time.Time) error { return nil }

// Unwrap is how http.ResponseController reaches everything else.
func (w readingDone) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func checkBody(h http.Header, raw []byte) *Problem {
	if !jsonType(h) {
		return errMediaType
	}
	if !utf8.Valid(raw) || bytes.IndexByte(raw, 0) >= 0 {
		return errText
	}
	if !json.Valid(raw) {
		return problem(http.StatusBadRequest, "BAD_JSON", "the body is not JSON: "+syntaxDetail(raw))
	}
	if badEscape(raw) {
		return errText
	}
	return nil
}

// checkCSV is checkBody for the one path that takes a table.
func checkCSV(h http.Header, raw []byte) *Problem {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || media != "text/csv" || h.Get("Content-Encoding") != "" {
		return problem(http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE", "send a table: Content-Type: text/csv, UTF-8, not compressed")
	}
	if !utf8.Valid(raw) || bytes.IndexByte(raw, 0) >= 0 {
		return errText
	}
	return nil
}

// jsonType accepts JSON in UTF-8, and no word about the type at all.
func jsonType(h http.Header) bool {
	if enc := h.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return false
	}
	ct := h.Get("Content-Type")
	if ct == "" {
		return true
	}
	media, params, err := mime.ParseMediaType(ct)
	if err != nil || media != "application/json" {
		return false
	}
	charset, ok := params["charset"]
	return !ok || strings.EqualFold(charset, "utf-8")
}

func syntaxDetail(raw []byte) string {
	var v any
	err := json.Unmarshal(raw, &v)
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("%s at byte %d", e.Error(), e.Offset)
	}
	return "it can't be read"
}

// badEscape reports whether valid JSON names a NUL or half a surrogate pair by an escape.
func badEscape(raw []byte) bool {
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		i++ // now at the escaped character; valid JSON has one
		if raw[i] != 'u' {
			continue
		}
		r := hex4(raw[i+1:])
		i += 4
		switch {
		case r == 0, r >= 0xDC00 && r <= 0xDFFF:
			return true
		case r >= 0xD800 && r <= 0xDBFF:
			if i+6 >= len(raw) || raw[i+1] != '\\' || raw[i+2] != 'u' {
				return true
			}
			if low := hex4(raw[i+3:]); low < 0xDC00 || low > 0xDFFF {
				return true
			}
			i += 6
		}
	}
	return false
}

func hex4(b []byte) uint64 {
	n, err := strconv.ParseUint(string(b[:4]), 16, 32)
	if err != nil {
		return 0 // not in valid JSON
	}
	return n
}
