package httpapi

import (
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/wafleet/wafleet/internal/auth"
)

var errPanic = errors.New("handler panicked")

func newRequestID() string { return "req_" + strings.ToLower(rand.Text()) }

// cleanText reports whether s can be stored and logged: UTF-8 without NUL.
func cleanText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

var (
	errNoRoute  = problem(http.StatusNotFound, "NOT_FOUND", "there is no such path; /docs lists what there is")
	errBadQuery = problem(http.StatusBadRequest, "BAD_QUERY", "the query string can't be read: percent-encode it")
	errText     = problem(http.StatusUnprocessableEntity, "TEXT_INVALID", "text must be UTF-8 without NUL")
	errKeyInURL = problem(http.StatusUnauthorized, "KEY_IN_URL",
		"a key in the URL ends up in logs of every proxy on the way and is never accepted: send it as \"Authorization: Bearer …\" or X-Api-Key, and replace this one")
)

// checkURL refuses what no route should ever see.
func (*deps) checkURL(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !cleanText(r.URL.Path) || (path.Clean(r.URL.Path) != r.URL.Path) {
			writeProblem(w, r, errNoRoute) // an empty segment, too: a blank id is nobody's
			return
		}
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			writeProblem(w, r, errBadQuery)
			return
		}
		for name, values := range query {
			if secretParam(name, values) {
				writeProblem(w, r, errKeyInURL)
				return
			}
			for _, v := range append(values, name) {
				if !cleanText(v) {
					writeProblem(w, r, errText)
					return
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// secretParam reports whether a query parameter is a key, by its name or by its look.
func secretParam(name string, values []string) bool {
	switch strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(name)) {
	case "token", "apikey", "key", "xapikey", "accesstoken", "authorization", "bearer":
		return true
	}
	for _, v := range values {
		if strings.HasPrefix(v, auth.PrefixOrganization) || strings.HasPrefix(v, auth.PrefixAdmin) {
			return true
		}
	}
	return false
}

// servePages hands requests for pages over. Such a page names its own routes by the pattern it serves.
func (d *deps) servePages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for prefix, page := range d.pages {
			if !strings.HasPrefix(r.URL.Path, prefix) {
				continue
			}
			x := exchangeFrom(r.Context())
			x.route = prefix
			defer func() {
				if _, route, ok := strings.Cut(r.Pattern, " "); ok {
					x.route = route
				}
			}()
			page.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// route finds the handler, names it for the log, and answers unknown paths and methods as problems.
func (d *deps) route(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			_, exchangeFrom(r.Context()).route, _ = strings.Cut(pattern, " ")
			mux.ServeHTTP(w, r)
			return
		}
		// The mux's own answer is text; all that it knows more than us is which methods there are.
		probe := &probeWriter{header: http.Header{}}
		h.ServeHTTP(probe, r)
		if allow := probe.header.Get("Allow"); probe.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", allow)
			writeProblem(w, r, problem(http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED", "this path knows "+allow))
			return
		}
		writeProblem(w, r, errNoRoute)
	})
}

type probeWriter struct {
	header http.Header
	status int
}

// Header implements http.ResponseWriter.
func (p *probeWriter) Header() http.Header { return p.header }

// Write implements http.ResponseWriter.
func (*probeWriter) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements http.ResponseWriter.
func (p *probeWriter) WriteHeader(status int) { p.status = status }
