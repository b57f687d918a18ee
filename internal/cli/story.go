package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/wasim"
)

// The people of the story.
const (
	storyOrg     = "acme"
	storyPerson  = "5511900000099"
	storyGreets  = "Hello from Acme!"
	storyAnswers = "Thanks, got it!"
)

var storyNumbers = [...]string{"5511900000001", "5511900000002"}

// story plays a client of the public API against a simulated WhatsApp and says what it sees. Every
// step waits until the thing itself was seen; nothing is assumed.
type story struct {
	out              io.Writer
	sim              *wasim.Server
	simURL, api, ops string
	admin, log       string

	hooks *hooks
	key   string // of the organization
	sent  string // id of the message
}

// tell runs the story. It returns the first step that was not seen.
func (s *story) tell(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		s.organization, s.pairAll, s.send, s.answer,
	} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("demo: %w (log: %s)", err, s.log)
		}
	}
	_, _ = fmt.Fprintln(s.out, "\nEvery step was seen.")
	return nil
}

func (s *story) seen(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, "  ✓ "+format+"\n", args...)
}
func (s *story) part(title string) { _, _ = fmt.Fprintf(s.out, "\n%s\n", title) }

func (s *story) organization(ctx context.Context) error {
	s.part("An organization with a key and a webhook endpoint")
	if err := s.call(ctx, http.MethodPost, "/api/admin/organizations", s.admin, map[string]any{"orgId": storyOrg, "label": "Acme"}, nil); err != nil {
		return err
	}
	s.seen("organization %s", storyOrg)
	var key struct {
		Key string `json:"key"`
	}
	if err := s.call(ctx, http.MethodPost, "/api/admin/keys", s.admin, map[string]any{"orgId": storyOrg, "label": "demo"}, &key); err != nil {
		return err
	}
	s.key = key.Key
	s.seen("API key %s… for it", s.key[:10])
	var ep struct {
		Secret string `json:"secret"`
	}
	if err := s.call(ctx, http.MethodPost, "/api/v1/endpoints", s.key, map[string]any{"url": s.hooks.url}, &ep); err != nil {
		return err
	}
	s.hooks.secret.Store(&ep.Secret)
	s.seen("webhook endpoint %s", s.hooks.url)
	return nil
}

// pairAll makes two sessions and links each by scanning the QR code that the API shows.
func (s *story) pairAll(ctx context.Context) error {
	s.part("Two WhatsApp numbers, linked by QR code")
	for _, number := range storyNumbers {
		if err := s.pair(ctx, number); err != nil {
			return fmt.Errorf("link +%s: %w", number, err)
		}
	}
	return nil
}

func (s *story) pair(ctx context.Context, number string) error {
	var session struct {
		SessionID string `json:"sessionId"`
	}
	if err := s.call(ctx, http.MethodPost, "/api/admin/sessions", s.admin, map[string]any{"orgId": storyOrg}, &session); err != nil {
		return err
	}
	path := "/api/admin/sessions/" + session.SessionID
	if err := s.call(ctx, http.MethodPost, path+"/pair", s.admin, map[string]any{"method": "qr"}, nil); err != nil {
		return err
	}
	var shown struct {
		QR string `json:"qr"`
	}
	err := until(ctx, "its QR code", func() (bool, error) {
		err := s.call(ctx, http.MethodGet, path+"/qr", s.admin, nil, &shown)
		if refused, ok := errors.AsType[*apiError](err); ok && refused.status == http.StatusConflict {
			return false, nil // not yet
		}
		return shown.QR != "", err
	})
	if err != nil {
		return err
	}
	s.seen("%s shows a QR code", session.SessionID)
	phone := s.sim.Phone(number)
	if err := phone.SetPushName("Acme"); err != nil { //nolint:contextcheck // the phone lives in the simulator, not in this step
		return err
	}
	if err := phone.ScanQR(ctx, shown.QR); err != nil {
		return err
	}
	s.seen("the phone of +%s scanned it", number)
	var state struct {
		Connected bool   `json:"connected"`
		PairedAt  string `json:"pairedAt"`
	}
	err = until(ctx, "its connection", func() (bool, error) {
		err := s.call(ctx, http.MethodGet, path, s.admin, nil, &state)
		return state.Connected && state.PairedAt != "", err
	})
	if err != nil {
		return err
	}
	s.seen("%s is paired and connected", session.SessionID)
	return nil
}

// send sends to a person and follows the message by webhook.
func (s *story) send(ctx context.Context) error {
	s.part("A message to +" + storyPerson)
	phone := s.sim.Phone(storyPerson)
	if err := phone.SetPushName("Ana"); err != nil { //nolint:contextcheck // the phone lives in the simulator, not in this step
		return err
	}
	phone.AutoRead(true)
	var msg struct {
		MessageID string `json:"messageId"`
		Status    string `json:"status"`
	}
	if err := s.call(ctx, http.MethodPost, "/api/v1/messages", s.key, map[string]any{"to": "+" + storyPerson, "text": storyGreets}, &msg); err != nil {
		return err
	}
	s.sent = msg.MessageID
	s.seen("accepted: %s, %s", msg.MessageID, msg.Status)
	got, err := phone.Wait(ctx, func(r wasim.Received) bool { return r.Text == storyGreets })
	if err != nil {
		return fmt.Errorf("the phone did not get it: %w", err)
	}
	s.seen("the phone of +%s decrypted it: %q from +%s", storyPerson, got.Text, got.Sender)
	for _, status := range []string{"sent", "delivered", "read"} {
		if _, err := s.hooks.hear(ctx, func(h heard) bool {
			return h.Event == "message.status" && h.Payload.MessageID == s.sent && h.Payload.Status == status
		}); err != nil {
			return fmt.Errorf("webhook %s: %w", status, err)
		}
		s.seen("%s (webhook verified)", status)
	}
	return nil
}

// answer writes back from the person's phone and waits for the webhook that tells of it.
func (s *story) answer(ctx context.Context) error {
	s.part("Their answer")
	phone := s.sim.Phone(storyPerson)
	var to string
	for _, r := range phone.Received() {
		if r.Text == storyGreets {
			to = r.Sender
		}
	}
	if _, err := phone.SendText(ctx, to, storyAnswers); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	h, err := s.hooks.hear(ctx, func(h heard) bool { return h.Event == "message" && h.Payload.Text == storyAnswers })
	if err != nil {
		return fmt.Errorf("webhook of the reply: %w", err)
	}
	s.seen("reply received: %q", h.Payload.Text)
	s.seen("webhook verified, as Standard Webhooks signs it:")
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, h.Body, "      ", "  "); err != nil {
		return fmt.Errorf("webhook body: %w", err)
	}
	_, _ = fmt.Fprintf(s.out, "      %s\n", pretty.String())
	return nil
}

// invite says what to do with what runs now.
func (s *story) invite() {
	_, _ = fmt.Fprintf(s.out, `
It stays up; end it with Ctrl-C.
  API            %[1]s/api/v1     documentation %[1]s/docs
  phones         %[2]s/sim/       see what they got, let them write
  health         %[3]s/readyz
  organization key  %[4]s
  admin key         %[5]s
  log            %[6]s

Send a message, and wait until it left:
  curl -sS %[1]s/api/v1/messages -H 'Authorization: Bearer %[4]s' \
    -H 'Content-Type: application/json' -H 'Prefer: wait=10' \
    -d '{"to":"+%[7]s","text":"Hello again"}'

Where is it now?
  curl -sS %[1]s/api/v1/messages/%[8]s -H 'Authorization: Bearer %[4]s'

Your numbers:
  curl -sS %[1]s/api/admin/sessions -H 'Authorization: Bearer %[5]s'

Let the person write back:
  curl -sS %[2]s/sim/phones/%[7]s/send -H 'Content-Type: application/json' -d '{"to":"%[9]s","text":"Me again"}'
`, s.api, s.simURL, s.ops, s.key, s.admin, s.log, storyPerson, s.sent, storyNumbers[0])
}

// tellOn says what webhooks come after the story.
func (s *story) tellOn(ctx context.Context) {
	_, _ = fmt.Fprintln(s.out, "\nWebhooks that come in:")
	for {
		h, err := s.hooks.hear(ctx, func(heard) bool { return true })
		if err != nil {
			return
		}
		_, _ = fmt.Fprintf(s.out, "  %s %s\n", time.Now().Format(time.TimeOnly), h.Body)
	}
}

// apiError is a refusal of the API.
type apiError struct {
	status int
	text   string
}

func (e *apiError) Error() string { return e.text }

// call calls the public API.
func (s *story) call(ctx context.Context, method, path, key string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.api+path, body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return &apiError{resp.StatusCode, fmt.Sprintf("%s %s: %s %s", method, path, resp.Status, strings.TrimSpace(string(raw)))}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// until looks five times a second.
func until(ctx context.Context, what string, ok func() (bool, error)) error {
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for {
		done, err := ok()
		if err != nil || done {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s: %w", what, ctx.Err())
		}
	}
}
