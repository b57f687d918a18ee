package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"rsc.io/qr"

	"github.com/wafleet/wafleet/internal/fleet"
)

// quiet is the white border that scanners need, in modules.
const quiet = 4

func registerQR(api huma.API, d *deps) {
	str := &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	huma.Register(api, huma.Operation{
		OperationID: "get-session-qr", Method: http.MethodGet, Path: "/api/admin/sessions/{sessionId}/qr", Tags: []string{"Sessions"},
		Summary: "Get the QR or the code to link the phone with", Security: adminSecurity,
		Description: "409 when no pairing is under way. A QR is replaced when it expires: read again then.",
		Responses: map[string]*huma.Response{"200": {Description: "OK", Content: map[string]*huma.MediaType{
			"application/json": {Schema: api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Pairing](), true, "Pairing")},
			"text/plain":       str, "image/svg+xml": str,
			"image/png": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
		}}},
	}, func(ctx context.Context, in *struct {
		SessionPath
		Format string `query:"format" enum:"json,text,terminal,png,svg" default:"json" doc:"text is what the QR says, or the code to type; terminal draws it with block characters."`
	},
	) (*fileReply, error) {
		s, err := d.store.SessionBySlug(ctx, in.SessionID)
		if err != nil {
			return nil, err
		}
		p, err := currentPairing(&s, time.Now())
		if err != nil {
			return nil, err
		}
		return renderPairing(p, in.Format)
	})
}

// currentPairing is what can be scanned or typed now, or why there is nothing.
func currentPairing(s *fleet.Session, now time.Time) (fleet.Pairing, error) {
	p := s.Pairing
	switch {
	case s.Observed == fleet.ObservedPairingExpired:
		return p, conflict("PAIRING_EXPIRED", "the pairing attempt ended before a phone was linked: begin again with …/pair")
	case s.Observed != fleet.ObservedPairing || p.Method == "" || !s.LeaseLive || s.Epoch != s.LeaseEpoch:
		return p, conflict("NO_PAIRING", "no pairing is under way: begin one with …/pair; a code shows up a moment later")
	case !p.EndsAt.IsZero() && !now.Before(p.EndsAt):
		return p, conflict("PAIRING_EXPIRED", "the pairing attempt ended before a phone was linked: begin again with …/pair")
	case !p.ExpiresAt.IsZero() && !now.Before(p.ExpiresAt):
		return p, &fleet.CodedError{Code: "QR_EXPIRED", Detail: "the code has expired and the next one is not here yet: read again", RetryAfter: time.Second, Err: fleet.ErrConflict}
	default:
		return p, nil
	}
}

func renderPairing(p fleet.Pairing, format string) (*fileReply, error) {
	if format == "json" {
		var b bytes.Buffer
		writeJSON(&b, Pairing{Method: p.Method, QR: p.QR, Code: p.Code, ExpiresAt: when(p.ExpiresAt), EndsAt: when(p.EndsAt)})
		return &fileReply{"application/json", b.Bytes()}, nil
	}
	if format == "text" {
		text := p.QR
		if p.Method == fleet.PairCode {
			text = p.Code
		}
		return &fileReply{"text/plain; charset=utf-8", []byte(text + "\n")}, nil
	}
	if p.Method != fleet.PairQR {
		return nil, conflict("NO_QR", "this pairing has a code to type and no QR: use format json or text")
	}
	code, err := qr.Encode(p.QR, qr.L)
	if err != nil {
		return nil, fmt.Errorf("draw qr: %w", err)
	}
	switch format {
	case "png":
		code.Scale = 8
		return &fileReply{"image/png", code.PNG()}, nil
	case "svg":
		return &fileReply{"image/svg+xml", drawSVG(code)}, nil
	default:
		return &fileReply{"text/plain; charset=utf-8", drawBlocks(code)}, nil
	}
}

// drawSVG draws one path of horizontal runs, black on white whatever the page's colours.
func drawSVG(code *qr.Code) []byte {
	var b bytes.Buffer
	side := code.Size + 2*quiet
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" shape-rendering="crispEdges"><path fill="#fff" d="M0 0h%dv%dH0z"/><path d="`, side, side, side, side)
	for y := range code.Size {
		for x := 0; x < code.Size; x++ {
			if !code.Black(x, y) {
				continue
			}
			run := 1
			for x+run < code.Size && code.Black(x+run, y) {
				run++
			}
			fmt.Fprintf(&b, "M%d %dh%dv1h-%dz", x+quiet, y+quiet, run, run)
			x += run
		}
	}
	b.WriteString(`"/></svg>`)
	return b.Bytes()
}

// drawBlocks draws two rows of modules per line. Light modules are the drawn ones, which suits a
// dark terminal; phones read both.
func drawBlocks(code *qr.Code) []byte {
	light := func(x, y int) bool { return !code.Black(x, y) } // Black is false outside
	var b strings.Builder
	for y := -quiet; y < code.Size+quiet; y += 2 {
		for x := -quiet; x < code.Size+quiet; x++ {
			top, bottom := light(x, y), light(x, y+1)
			switch {
			case top && bottom:
				b.WriteRune('█')
			case top:
				b.WriteRune('▀')
			case bottom:
				b.WriteRune('▄')
			default:
				b.WriteByte(' ')
			}
		}
		b.WriteByte('\n')
	}
	return []byte(b.String())
}
