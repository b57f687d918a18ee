package pairing

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"

	"github.com/wafleet/wafleet/internal/qrdraw"
)

//go:embed static
var staticFiles embed.FS

// assets are the files that pages name, by the last part of their path.
var assets, assetHash = loadAssets()

type asset struct {
	contentType string
	body        []byte
}

func loadAssets() (map[string]asset, string) {
	out := map[string]asset{}
	sum := sha256.New()
	err := fs.WalkDir(staticFiles, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := staticFiles.ReadFile(name)
		if err != nil {
			return err
		}
		var contentType string
		switch path.Ext(name) { // mime would read the machine's tables, and believe them
		case ".js":
			contentType = "text/javascript; charset=utf-8"
		case ".css":
			contentType = "text/css; charset=utf-8"
		case ".svg":
			contentType = "image/svg+xml"
		case ".LICENSE":
			contentType = "text/plain; charset=utf-8"
		default:
			panic("no content type for " + name)
		}
		out[path.Base(name)] = asset{contentType, body}
		sum.Write([]byte(name))
		sum.Write(body)
		return nil
	})
	if err != nil {
		panic(err) // embedded: it fails in every test or never
	}
	return out, hex.EncodeToString(sum.Sum(nil))[:12]
}

// serveAsset serves a file under the hash of all of them, so that it may be kept for ever.
func serveAsset(w http.ResponseWriter, r *http.Request) {
	a, ok := assets[r.PathValue("file")]
	if !ok || r.PathValue("hash") != assetHash {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", a.contentType)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(a.body)
}

// picture draws a QR for the page.
func picture(text string) (markup, error) {
	code, err := qrdraw.Encode(text)
	if err != nil {
		return "", err
	}
	return markup(code.SVG()), nil // drawn by us from modules; no text of anybody is in it
}
