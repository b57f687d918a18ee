package wasim

import (
	"embed"
	"net/http"
)

//go:embed page
var pageFiles embed.FS

// page serves one file of the web page. It needs nothing from elsewhere and is allowed nothing from elsewhere.
func page(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		w.Header().Set("Cache-Control", "no-cache")
		http.ServeFileFS(w, r, pageFiles, "page/"+name) //nolint:gosec // embedded files only
	})
}

func pageFile(w http.ResponseWriter, r *http.Request) {
	switch name := r.PathValue("file"); name {
	case "page.js", "page.css":
		page(name).ServeHTTP(w, r)
	default:
		writeJSON(w, http.StatusNotFound, &problem{Code: "not_found", Message: "no such path"})
	}
}
