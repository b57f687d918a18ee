package httpapi

import (
	"bytes"
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/qrdraw"
)

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
	code, err := qrdraw.Encode(p.QR)
	if err != nil {
		return nil, err
	}
	switch format {
	case "png":
		return &fileReply{"image/png", code.PNG()}, nil
	case "svg":
		return &fileReply{"image/svg+xml", code.SVG()}, nil
	default:
		return &fileReply{"text/plain; charset=utf-8", code.Blocks()}, nil
	}
}
