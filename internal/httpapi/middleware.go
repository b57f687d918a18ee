package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/fleet"
)

// exchange is what is known of one request beside the request itself; it is filled while the
// request passes the doors and ends up in its log line. One goroutine at a time touches it.
type exchange struct {
	id        string
	principal fleet.Principal
	known     bool // principal is set
	route     string
	code      string // of the problem that was answered
	err       error  // what was behind it, for the log only
}

type exchangeKey struct{}

func exchangeFrom(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// caller is who the request speaks for. Handlers behind authenticate always have one.
func caller(ctx context.Context) fleet.Principal {
	p, _ := auth.PrincipalFrom(ctx)
	return p
}

const requestIDHeader = "X-Request-Id"

// requestLimit bounds what a request asks of the database, which may not answer. It leaves room for the
// slowest answer: a slow body, the wait for another request's key, the work, and the longest Prefer: wait.
const requestLimit = 100 * time.Second

// observe gives the request an id, survives a panic, and writes one log line and the metrics. The
// line names the route's pattern and never the URL: paths hold ids, and links may hold tokens.
func (d *deps) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		x := &exchange{id: r.Header.Get(requestIDHeader)}
		if !validRequestID(x.id) {
			x.id = newRequestID()
		}
		ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), exchangeKey{}, x), requestLimit)
		defer cancel()
		r = r.WithContext(ctx)
		h := w.Header()
		h.Set(requestIDHeader, x.id)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		sw := &statusWriter{ResponseWriter: w}
		defer func() { //nolint:contextcheck // it goes in with the request
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler { //nolint:errorlint // net/http's own word for: say nothing
					panic(v)
				}
				d.log.ErrorContext(r.Context(), "request handler panicked", slog.String("request_id", x.id),
					slog.String("route", x.route), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
				if sw.status == 0 {
					writeProblem(sw, r, problemFor(errPanic))
				}
			}
			d.logRequest(r, x, sw, time.Since(start))
		}()
		next.ServeHTTP(sw, r)
	})
}

func (d *deps) logRequest(r *http.Request, x *exchange, sw *statusWriter, took time.Duration) {
	route := x.route
	if route == "" {
		route = "none"
	}
	status := sw.status
	if status == 0 {
		status = http.StatusOK
	}
	d.metrics.observe(r.Method, route, status, took)
	level := slog.LevelInfo
	attrs := []slog.Attr{
		slog.String("request_id", x.id), slog.String("method", r.Method), slog.String("route", route),
		slog.Int("status", status), slog.Int64("bytes", sw.bytes), slog.Int64("duration_ms", took.Milliseconds()),
	}
	if x.known {
		attrs = append(attrs, slog.String("key_id", string(x.principal.KeyID)), slog.String("org_id", string(x.principal.OrgID)))
	}
	if x.code != "" {
		attrs = append(attrs, slog.String("code", x.code))
	}
	if status >= http.StatusInternalServerError && x.err != nil {
		level = slog.LevelError
		if status == http.StatusServiceUnavailable {
			level = slog.LevelWarn // an expected answer: no number can send, or the database is away
		}
		attrs = append(attrs, slog.Any("err", x.err))
	}
	d.log.LogAttrs(r.Context(), level, "request", attrs...)
}

// validRequestID accepts a caller's own id if it is short and can't break a log line.
func validRequestID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

// statusWriter remembers what was answered.
type statusWriter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Unwrap is how http.ResponseController reaches the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// writeJSON writes v without HTML escapes. The client may be gone: there is nobody to tell then.
func writeJSON(w io.Writer, v any) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}
