package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wafleet/wafleet/internal/webhook"
)

// Event is one webhook as it came. The same event may come more than once.
type Event struct {
	At             time.Time `json:"-"` // when it came
	ID             string    `json:"id"`
	Event          string    `json:"event"`
	SessionID      string    `json:"sessionId"`
	ConversationID string    `json:"conversationId"`
	Seq            int64     `json:"seq"`
	Timestamp      time.Time `json:"timestamp"` // when it was stored
	Payload        struct {
		MessageID string `json:"messageId"`
		Status    string `json:"status"`
		WAID      string `json:"waId"`
		Text      string `json:"text"`
		OrgID     string `json:"orgId"`
	} `json:"payload"`
}

// sink is the receiver of an operator's endpoint, which hears everything. It keeps what its signature proves.
type sink struct {
	url    string
	server *http.Server
	done   chan struct{}
	secret atomic.Pointer[string]
	down   atomic.Bool

	mu       sync.Mutex
	events   []Event
	inbound  map[string]bool // WhatsApp ids of messages that were told
	refused  int             // while down
	unproved []string
}

func listen(ctx context.Context) (*sink, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("webhook receiver: %w", err)
	}
	s := &sink{url: "http://" + ln.Addr().String() + "/webhooks", done: make(chan struct{}), inbound: map[string]bool{}}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: 5 * time.Second}
	go func() { defer close(s.done); _ = s.server.Serve(ln) }()
	return s, nil
}

func (s *sink) close() {
	_ = s.server.Close()
	<-s.done
}

// ServeHTTP takes one delivery.
func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body, err := io.ReadAll(io.LimitReader(r.Body, webhook.MaxBody))
	secret := s.secret.Load()
	if err != nil || secret == nil || s.down.Load() {
		s.mu.Lock()
		s.refused++
		s.mu.Unlock()
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	e := Event{At: at}
	err = webhook.Verify(r.Header, *secret, body, at)
	if err == nil {
		err = json.Unmarshal(body, &e)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.unproved = append(s.unproved, fmt.Sprintf("%v: %s", err, body))
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.events = append(s.events, e)
	if e.Event == "message" {
		s.inbound[e.Payload.WAID] = true
	}
}

// hear makes the endpoint, before anything happens that it could tell of.
func (c *Cluster) hear(ctx context.Context) error {
	var endpoint struct {
		Secret string `json:"secret"`
	}
	in := map[string]any{"url": c.sink.url, "maxConcurrency": 16}
	if err := c.api(ctx, "POST", "/api/admin/endpoints", c.Admin, in, &endpoint); err != nil {
		return err
	}
	c.sink.secret.Store(&endpoint.Secret)
	return nil
}

func (s *sink) unprovedBodies() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.unproved)
}

// told reports whether a webhook told of a person's message.
func (s *sink) told(waID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inbound[waID]
}

// Events returns the webhooks that came so far, in the order they came.
func (c *Cluster) Events() []Event {
	c.sink.mu.Lock()
	defer c.sink.mu.Unlock()
	return slices.Clone(c.sink.events)
}

// RefuseHooks lets the receiver answer 503 to everything, or take it again. It returns how many it refused so far.
func (c *Cluster) RefuseHooks(refuse bool) int {
	c.sink.down.Store(refuse)
	c.sink.mu.Lock()
	defer c.sink.mu.Unlock()
	return c.sink.refused
}
