package httpapi

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// The page is three files of ours and needs nothing from elsewhere: it works in a network without a
// way out, and no other party sees who reads it.
//
//go:embed page
var pageFiles embed.FS

const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// registerDocs serves the OpenAPI document and the page that shows it. Both are public, as the
// source is, and hold nothing of this installation but the version.
func registerDocs(mux *http.ServeMux, api huma.API) error {
	doc, err := openAPIDocument(api)
	if err != nil {
		return err
	}
	serve := func(pattern, contentType string, body []byte) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Content-Type", contentType)
			h.Set("Content-Security-Policy", pagePolicy)
			_, _ = w.Write(body)
		})
	}
	serve("GET /openapi.json", "application/json", doc)
	for _, f := range []struct{ path, file, contentType string }{
		{"/docs", "page/index.html", "text/html; charset=utf-8"},
		{"/docs/page.js", "page/page.js", "text/javascript; charset=utf-8"},
		{"/docs/page.css", "page/page.css", "text/css; charset=utf-8"},
	} {
		body, err := pageFiles.ReadFile(f.file)
		if err != nil {
			return fmt.Errorf("documentation page: %w", err)
		}
		serve("GET "+f.path, f.contentType, body)
	}
	mux.Handle("GET /{$}", http.RedirectHandler("/docs", http.StatusFound))
	return nil
}

// openAPIDocument writes the document the way it is kept in docs/openapi.json.
func openAPIDocument(api huma.API) ([]byte, error) {
	raw, err := json.Marshal(api.OpenAPI())
	if err != nil {
		return nil, fmt.Errorf("openapi document: %w", err)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("openapi document: %w", err)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}
