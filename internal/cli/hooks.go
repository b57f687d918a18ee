package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/wafleet/wafleet/internal/webhook"
)

// hooks is the demo's webhook receiver: it keeps only what its signature proves.
type hooks struct {
	url    string
	secret atomic.Pointer[string] // of the endpoint; until it is known nothing is proved
	heard  chan heard
	server *http.Server
	done   chan struct{}
}

// heard is one verified webhook.
type heard struct {
	Body    []byte `json:"-"`
	Event   string `json:"event"`
	Payload struct {
		MessageID string `json:"messageId"`
		Status    string `json:"status"`
		Text      string `json:"text"`
	} `json:"payload"`
}

// receiveHooks starts a receiver on a free loopback port.
func receiveHooks(ctx context.Context) (*hooks, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("webhook receiver: %w", err)
	}
	h := &hooks{
		url:   (&url.URL{Scheme: "http", Host: ln.Addr().String(), Path: "/webhooks"}).String(),
		heard: make(chan heard, 1000), done: make(chan struct{}),
	}
	h.server = &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go func() { defer close(h.done); _ = h.server.Serve(ln) }()
	return h, nil
}

func (h *hooks) close() {
	_ = h.server.Close()
	<-h.done
}

// ServeHTTP takes one delivery.
func (h *hooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, webhook.MaxBody))
	secret := h.secret.Load()
	if err != nil || secret == nil {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	if err := webhook.Verify(r.Header, *secret, body, time.Now()); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	var got heard
	if err := json.Unmarshal(body, &got); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	got.Body = body
	select {
	case h.heard <- got:
	case <-r.Context().Done():
	}
}

// hear waits for a verified webhook. Those that come before it and are not asked for are passed over.
func (h *hooks) hear(ctx context.Context, ok func(heard) bool) (heard, error) {
	for {
		select {
		case got := <-h.heard:
			if ok(got) {
				return got, nil
			}
		case <-ctx.Done():
			return heard{}, ctx.Err()
		}
	}
}
