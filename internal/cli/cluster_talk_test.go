package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/testkit"
)

// number is an organization with one session, and a person who writes with it.
type number struct {
	org, slug, key string
	own, person    string            // phone numbers
	sent           map[string]string // text by message id of the API: to the person
	said           map[string]string // text by WhatsApp id: what the person wrote
}

// event is one webhook, as it came.
type event struct {
	ID             string `json:"id"`
	Event          string `json:"event"`
	ConversationID string `json:"conversationId"`
	Seq            int64  `json:"seq"`
	Payload        struct {
		WAID string `json:"waId"`
		Text string `json:"text"`
	} `json:"payload"`
}

// each does something for every number at the same time.
func (c *cluster) each(fn func(n *number) error) error {
	errs := make([]error, len(c.numbers))
	var all sync.WaitGroup
	for i, n := range c.numbers {
		all.Go(func() {
			if err := fn(n); err != nil {
				errs[i] = fmt.Errorf("%s: %w", n.slug, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// pairAll makes organizations with a session each, and pairs them by QR through the simulator's API.
func (c *cluster) pairAll(count int) {
	c.Helper()
	for i := range count {
		org := fmt.Sprintf("org-%02d", i)
		c.numbers = append(c.numbers, &number{
			org: org, slug: org + "-01", own: fmt.Sprintf("55119%08d", i+1), person: fmt.Sprintf("55119%08d", i+101),
			sent: map[string]string{}, said: map[string]string{},
		})
	}
	if err := c.each(c.pair); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) pair(n *number) error {
	var key struct {
		Key string `json:"key"`
	}
	path := c.api + "/api/admin/sessions/" + n.slug
	err := errors.Join(
		c.do("POST", c.api+"/api/admin/organizations", c.admin, nil, map[string]string{"orgId": n.org, "label": "Organization"}, nil),
		c.do("POST", c.api+"/api/admin/keys", c.admin, nil, map[string]string{"orgId": n.org, "label": "test"}, &key),
		c.do("POST", c.api+"/api/admin/sessions", c.admin, nil, map[string]string{"orgId": n.org, "sessionId": n.slug}, nil),
		c.do("POST", path+"/pair", c.admin, nil, map[string]string{"method": "qr"}, nil),
	)
	if err != nil {
		return err
	}
	n.key = key.Key
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Minute) // ten at once, with the race detector, are slow
	defer cancel()
	var shown struct {
		QR string `json:"qr"`
	}
	err = until(ctx, "QR", func() (bool, error) {
		err := c.do("GET", path+"/qr", c.admin, nil, nil, &shown)
		if refused, ok := errors.AsType[*apiError](err); ok && refused.status == http.StatusConflict {
			return false, nil // not yet
		}
		return shown.QR != "", err
	})
	if err != nil {
		return err
	}
	for _, phone := range []string{n.own, n.person} {
		if err := c.do("POST", c.sim+"/sim/phones", "", nil, map[string]string{"pn": phone}, nil); err != nil {
			return err
		}
	}
	if err := c.do("POST", c.sim+"/sim/phones/"+n.own+"/scan", "", nil, map[string]string{"qr": shown.QR}, nil); err != nil {
		return err
	}
	return until(ctx, "connected session", func() (bool, error) {
		var s session
		err := c.do("GET", path, c.admin, nil, nil, &s)
		return s.Connected && s.PairedAt != "", err
	})
}

// talk lets every number and its person write texts to each other, all at the same time. The function
// waits until the last was accepted.
func (c *cluster) talk(topic string, texts int) (join func()) {
	done := make(chan error, 1)
	go func() {
		done <- c.each(func(n *number) error {
			for i := range texts {
				err := errors.Join(c.send(n, fmt.Sprintf("%s, %d to %s", topic, i, n.person)), c.say(n, fmt.Sprintf("%s, %d from %s", topic, i, n.person)))
				if err != nil {
					return err
				}
			}
			return nil
		})
	}()
	return func() {
		c.Helper()
		if err := <-done; err != nil {
			c.Fatal(err)
		}
	}
}

// send sends by the public API, as a careful client does: with a key, and again after "not now".
func (c *cluster) send(n *number, text string) error {
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	var msg struct {
		MessageID string `json:"messageId"`
	}
	header := http.Header{"Idempotency-Key": {url.QueryEscape(text)}}
	err := until(ctx, "acceptance", func() (bool, error) {
		err := c.do("POST", c.api+"/api/v1/messages", n.key, header, map[string]string{"to": "+" + n.person, "text": text}, &msg)
		if refused, ok := errors.AsType[*apiError](err); ok && refused.status == http.StatusServiceUnavailable {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n.sent[msg.MessageID] = text
	return nil
}

// say lets the person write to the number.
func (c *cluster) say(n *number, text string) error {
	var msg struct {
		ID string `json:"id"`
	}
	if err := c.do("POST", c.sim+"/sim/phones/"+n.person+"/send", "", nil, map[string]string{"to": n.own, "text": text}, &msg); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n.said[msg.ID] = text
	return nil
}

// listen starts the receiver of all webhooks.
func (c *cluster) listen() {
	c.Helper()
	var err error
	if c.hooks, err = receiveHooks(c.Context()); err != nil {
		c.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			h, err := c.hooks.hear(c.Context(), func(heard) bool { return true })
			if err != nil {
				return // the test is over
			}
			var e event
			if err := json.Unmarshal(h.Body, &e); err != nil {
				c.Errorf("webhook %s: %v", h.Body, err)
			}
			c.mu.Lock()
			c.told = append(c.told, e)
			c.mu.Unlock()
		}
	}()
	c.Cleanup(func() { // the test's context has ended, and the processes have
		c.hooks.close()
		<-ended
	})
}

// hear makes an operator's endpoint, before anything happens that it could tell of.
func (c *cluster) hear() {
	c.Helper()
	var ep struct {
		Secret string `json:"secret"`
	}
	if err := c.do("POST", c.api+"/api/admin/endpoints", c.admin, nil, map[string]any{"url": c.hooks.url, "maxConcurrency": 16}, &ep); err != nil {
		c.Fatal(err)
	}
	c.hooks.secret.Store(&ep.Secret)
}

// awaitSettled waits until everything that was said so far has arrived: messages are delivered, and
// webhooks have told of every message and every status.
func (c *cluster) awaitSettled() {
	c.Helper()
	type open struct {
		ID, Status string
		Attempts   int64
	}
	testkit.Eventually(c.T, time.Minute, func() error { // an outcome that stays unknown is repeated after 15 s
		for _, m := range rows[open](c, `SELECT id, status, attempts FROM messages WHERE status NOT IN ('delivered', 'read') ORDER BY seq LIMIT 1`) {
			return fmt.Errorf("message %+v is not delivered", m)
		}
		for _, e := range rows[open](c, `SELECT event_id, status, attempts FROM deliveries WHERE status <> 'done' ORDER BY n LIMIT 1`) {
			return fmt.Errorf("webhook %+v is not delivered", e)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		heard := map[string]bool{}
		for _, e := range c.told {
			if e.Event == "message" {
				heard[e.Payload.WAID] = true
			}
		}
		for _, n := range c.numbers {
			for id, text := range n.said {
				if !heard[id] {
					return fmt.Errorf("no webhook of %q, %s", text, id)
				}
			}
		}
		return nil
	})
}
