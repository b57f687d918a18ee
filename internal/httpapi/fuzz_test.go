package httpapi

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/fleet"
)

func FuzzURLDoor(f *testing.F) {
	f.Add("/api/v1/messages", "limit=5&cursor=7")
	f.Add("/api//messages", "")
	f.Add("/api/v1/../admin", "a=%00")
	f.Add("/\xff", "a=%zz&b")
	f.Add("/api/v1/messages", "Api-Key=x")
	f.Add("/api/v1/messages", "x="+auth.PrefixAdmin)
	d := &deps{metrics: newMetrics(nil), log: slog.New(slog.DiscardHandler)}
	f.Fuzz(func(t *testing.T, path, query string) {
		past := false
		rec := httptest.NewRecorder()
		r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{}}
		d.observe(d.checkURL(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { past = true }))).ServeHTTP(rec, r)
		if !past {
			if rec.Code < 400 || rec.Code >= 500 {
				t.Errorf("the door answers %q?%q with %d", path, query, rec.Code)
			}
			return
		}
		for name, values := range r.URL.Query() {
			for _, v := range append(values, name) {
				if !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
					t.Errorf("the door lets the query %q past", query)
				}
			}
		}
		if !utf8.ValidString(path) || strings.ContainsRune(path, 0) || strings.Contains(path, "//") || strings.Contains(path+"/", "/../") {
			t.Errorf("the door lets the path %q past", path)
		}
	})
}

func FuzzPreferWait(f *testing.F) {
	for _, seed := range []string{"wait=10", "respond-async, WAIT = \"5\" ;x=y", "wait=0", "wait=99999999999", "wait=-1", "wait", ",;=", "wait=1,wait=2"} {
		f.Add(seed, "")
	}
	f.Add("return=minimal", "wait=3")
	f.Fuzz(func(t *testing.T, first, second string) {
		d, ok := preferWait([]string{first, second})
		if (d != 0) != ok || d < 0 || d > maxWait || d%time.Second != 0 {
			t.Errorf("preferWait(%q, %q) = %v, %v", first, second, d, ok)
		}
	})
}

func FuzzNumberCursor(f *testing.F) {
	for _, seed := range []string{"", "1", "0", "-1", "9223372036854775807", "9223372036854775808", "1e3", " 1", "١"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		n, err := numberCursor(in)
		switch {
		case err != nil:
			if _, ok := errors.AsType[*fleet.InvalidError](err); !ok || n != 0 {
				t.Errorf("numberCursor(%q) = %d, %v, want 0 and an InvalidError", in, n, err)
			}
		case in == "" && n == 0:
		case n <= 0 || strings.TrimLeft(in, "+0") != strconv.FormatInt(n, 10):
			t.Errorf("numberCursor(%q) = %d", in, n)
		}
	})
}
