package httpapi_test

import (
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

const golden = "../../docs/openapi.json"

func TestOpenAPIDocumentIsTheOneInTheRepository(t *testing.T) {
	got := sqliteFixture(t).do("", "GET", "/openapi.json", nil)
	if got.status != http.StatusOK || got.header.Get("Content-Type") != "application/json" {
		t.Fatalf("/openapi.json = %d %s", got.status, got.header.Get("Content-Type"))
	}
	if *update {
		if err := os.WriteFile(filepath.FromSlash(golden), []byte(got.body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(filepath.FromSlash(golden))
	if err != nil {
		t.Fatalf("%v: run go test ./internal/httpapi -run OpenAPI -update", err)
	}
	if diff := cmp.Diff(string(want), got.body); diff != "" {
		t.Errorf("run go test ./internal/httpapi -run OpenAPI -update and look at the change (-want +got):\n%s", diff)
	}
}

func TestOpenAPIDocumentIsCompleteInItself(t *testing.T) {
	var doc map[string]any
	if err := json.Unmarshal([]byte(sqliteFixture(t).do("", "GET", "/openapi.json", nil).body), &doc); err != nil {
		t.Fatal(err)
	}
	if doc["openapi"] != "3.1.0" {
		t.Errorf("openapi = %v, want 3.1.0", doc["openapi"])
	}
	ids := map[string]bool{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, inner := range v {
				if k == "$schema" || k == "$ref" && !resolves(doc, inner) {
					t.Errorf("%s/%s = %v", path, k, inner)
				}
				if k == "operationId" {
					if ids[inner.(string)] {
						t.Errorf("operation id %v is there twice", inner)
					}
					ids[inner.(string)] = true
				}
				walk(path+"/"+k, inner)
			}
		case []any:
			for _, inner := range v {
				walk(path, inner)
			}
		}
	}
	walk("", doc)
	problems := doc["components"].(map[string]any)["schemas"].(map[string]any)["Problem"]
	if problems == nil {
		t.Error("the problem is not described")
	}
}

func resolves(doc map[string]any, ref any) bool {
	s, ok := ref.(string)
	if !ok || !strings.HasPrefix(s, "#/") {
		return false
	}
	var at any = doc
	for part := range strings.SplitSeq(strings.TrimPrefix(s, "#/"), "/") {
		m, ok := at.(map[string]any)
		if !ok || m[part] == nil {
			return false
		}
		at = m[part]
	}
	return true
}

func TestDocumentationPageNeedsNothingFromElsewhere(t *testing.T) {
	f := sqliteFixture(t)
	if a := f.do("", "GET", "/", nil); a.status != http.StatusFound || a.header.Get("Location") != "/docs" {
		t.Errorf("/ = %d to %q, want /docs", a.status, a.header.Get("Location"))
	}
	page := f.do("", "GET", "/docs", nil)
	if page.status != http.StatusOK || !strings.HasPrefix(page.header.Get("Content-Type"), "text/html") {
		t.Fatalf("/docs = %d %s", page.status, page.header.Get("Content-Type"))
	}
	assets := regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(page.body, -1)
	if len(assets) < 3 {
		t.Errorf("page names %d assets, want its style, its script and the document", len(assets))
	}
	for _, m := range assets {
		a := f.do("", "GET", m[1], nil)
		if !strings.HasPrefix(m[1], "/") || a.status != http.StatusOK {
			t.Errorf("page needs %s, which is %d here", m[1], a.status)
		}
		if csp := a.header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'; script-src 'self'") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") {
			t.Errorf("%s: Content-Security-Policy = %q", m[1], csp)
		}
		if m[1] != "/openapi.json" && regexp.MustCompile(`(?i)https?://|innerHTML|\son\w+=|style=`).MatchString(a.body) {
			t.Errorf("%s reaches out or has inline code", m[1])
		}
	}
	if strings.Contains(page.body, "<style") || regexp.MustCompile(`<script[^>]*>[^<]`).MatchString(page.body) {
		t.Error("the page has inline code, which its policy forbids")
	}
}

func TestAnswersOfTheAPIAreNotCachedOrFramed(t *testing.T) {
	f := sqliteFixture(t)
	for _, a := range []*answer{f.do("org-a", "GET", "/api/v1/organization", nil), f.do("", "GET", "/api/v1/organization", nil)} {
		for name, want := range map[string]string{
			"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
		} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
		if strings.Contains(a.body, "$schema") || a.header.Get("Link") != "" {
			t.Errorf("schema links are in %s %q", a.body, a.header.Get("Link"))
		}
	}
}
