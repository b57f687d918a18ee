package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/wasim"
)

// Number is an organization with one session, and a person who writes with it.
type Number struct {
	Org, Slug, Key string
	Own, Person    string // phone numbers, in digits

	sent map[string]string // text by message id of the API: accepted for the person
	said map[string]string // text by WhatsApp id: what the person wrote
}

// Session is what the API says of one.
type Session struct {
	SessionID string `json:"sessionId"`
	State     string `json:"state"`
	Connected bool   `json:"connected"`
	PairedAt  string `json:"pairedAt"`
	Worker    string `json:"worker"`
	Epoch     int64  `json:"epoch"`
}

// WorkerID is the WORKER_ID of the session's owner.
func (s Session) WorkerID() string {
	id, _, _ := strings.Cut(s.Worker, "/")
	return id
}

// pairing is how many sessions are paired at a time.
const pairing = 10

// Each does something for every number at the same time and joins the errors.
func (c *Cluster) Each(do func(n *Number) error) error { return each(c.Numbers, len(c.Numbers), do) }

func each(numbers []*Number, at int, do func(n *Number) error) error {
	errs := make([]error, len(numbers))
	places := make(chan struct{}, max(1, at))
	var all sync.WaitGroup
	for i, n := range numbers {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if err := do(n); err != nil {
				errs[i] = fmt.Errorf("%s: %w", n.Slug, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Pair adds so many organizations with a session each, and pairs them by QR through the simulator.
func (c *Cluster) Pair(ctx context.Context, count int) error {
	first := len(c.Numbers)
	for i := first; i < first+count; i++ {
		org := fmt.Sprintf("org-%03d", i)
		c.Numbers = append(c.Numbers, &Number{
			Org: org, Slug: org + "-01", Own: fmt.Sprintf("55119%08d", i+1), Person: fmt.Sprintf("55119%08d", i+50_000_001),
			sent: map[string]string{}, said: map[string]string{},
		})
	}
	return each(c.Numbers[first:], pairing, func(n *Number) error { return c.pair(ctx, n) })
}

// Unbounded is the change of a session after which no budget holds it back, though its number is new.
var Unbounded = map[string]any{
	"budget": map[string]int{"perMinute": 10_000_000, "perHour": 10_000_000, "perDay": 10_000_000}, "newChatsPerDay": 10_000_000,
}

func (c *Cluster) pair(ctx context.Context, n *Number) error {
	var key struct {
		Key string `json:"key"`
	}
	for _, step := range []struct {
		path string
		in   map[string]string
		out  any
	}{
		{"/api/admin/organizations", map[string]string{"orgId": n.Org, "label": "Organization"}, nil},
		{"/api/admin/keys", map[string]string{"orgId": n.Org, "label": "trial"}, &key},
		{"/api/admin/sessions", map[string]string{"orgId": n.Org, "sessionId": n.Slug}, nil},
	} {
		if err := c.api(ctx, "POST", step.path, c.Admin, step.in, step.out); err != nil {
			return err
		}
	}
	n.Key = key.Key
	if err := c.api(ctx, "PATCH", "/api/admin/sessions/"+n.Slug, c.Admin, Unbounded, nil); err != nil {
		return err
	}
	for _, phone := range []string{n.Own, n.Person} {
		if err := c.simulator(ctx, "POST", "/sim/phones", map[string]string{"pn": phone}, nil); err != nil {
			return err
		}
	}
	// A pairing goes down with its owner's term, which a short TTL on a busy machine may cost; a person would try again.
	var err error
	for range 4 {
		if err = c.Link(ctx, n.Slug, n.Own); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// Link pairs a session with a phone by QR once, and waits until it is connected.
func (c *Cluster) Link(ctx context.Context, slug, own string) error {
	path := "/api/admin/sessions/" + slug
	err := c.scan(ctx, path, own)
	if refused, ok := errors.AsType[*RefusedError](err); err != nil && (!ok || refused.Code != "ALREADY_PAIRED") {
		return err
	}
	var lost error
	err = Until(ctx, 2*time.Minute, func() error {
		var s Session
		if err := c.api(ctx, "GET", path, c.Admin, nil, &s); err != nil {
			return err
		}
		switch {
		case s.Connected && s.PairedAt != "":
		case s.State == "needs_pairing" || s.State == "logged_out":
			lost = fmt.Errorf("the pairing was lost, %s", s.State)
		default:
			return fmt.Errorf("is %s, paired at %q", s.State, s.PairedAt)
		}
		return nil
	})
	return errors.Join(lost, err)
}

// scan asks for a QR code and lets the number's phone scan it. ALREADY_PAIRED: a scan before, whose end went unseen, did
// what it should.
func (c *Cluster) scan(ctx context.Context, path, phone string) error {
	if err := c.api(ctx, "POST", path+"/pair", c.Admin, map[string]string{"method": "qr"}, nil); err != nil {
		return err
	}
	var shown struct {
		QR string `json:"qr"`
	}
	err := Until(ctx, time.Minute, func() error {
		err := c.api(ctx, "GET", path+"/qr", c.Admin, nil, &shown)
		if err == nil && shown.QR == "" {
			err = errors.New("no QR code")
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.simulator(ctx, "POST", "/sim/phones/"+phone+"/scan", map[string]string{"qr": shown.QR}, nil)
}

// Sessions asks the API for every session, by slug.
func (c *Cluster) Sessions(ctx context.Context) (map[string]Session, error) {
	all := map[string]Session{}
	for cursor := ""; ; {
		var page struct {
			Items      []Session `json:"items"`
			NextCursor string    `json:"nextCursor"`
		}
		if err := c.api(ctx, "GET", "/api/admin/sessions?limit=100"+cursor, c.Admin, nil, &page); err != nil {
			return nil, err
		}
		for _, s := range page.Items {
			all[s.SessionID] = s
		}
		if page.NextCursor == "" {
			return all, nil
		}
		cursor = "&cursor=" + page.NextCursor
	}
}

// AwaitConnected waits until every session is connected, on one of these workers if any are named, and returns them.
func (c *Cluster) AwaitConnected(ctx context.Context, within time.Duration, workers ...string) (found map[string]Session, err error) {
	err = Until(ctx, within, func() error {
		if found, err = c.Sessions(ctx); err != nil {
			return err
		}
		if len(found) != len(c.Numbers) {
			return fmt.Errorf("%d sessions, want %d", len(found), len(c.Numbers))
		}
		for _, s := range found {
			ok := s.Connected && len(workers) == 0
			for _, w := range workers {
				ok = ok || s.Connected && s.WorkerID() == w
			}
			if !ok {
				return fmt.Errorf("%s is %s on %q at epoch %d, want connected on %v", s.SessionID, s.State, s.Worker, s.Epoch, workers)
			}
		}
		return nil
	})
	return found, err
}

// Fault makes something go wrong between WhatsApp and a number, or mends it: the zero fault. The fields are those of
// the simulator's faults in JSON, for example {"latencyMs": 30000}. An empty number means everyone.
func (c *Cluster) Fault(ctx context.Context, number string, fault map[string]any) error {
	if fault == nil {
		fault = map[string]any{}
	}
	return c.simulator(ctx, http.MethodPut, "/sim/faults", map[string]any{"session": number, "fault": fault}, nil)
}

// Drop cuts the present connection of a number's session.
func (c *Cluster) Drop(ctx context.Context, n *Number) error {
	return c.simulator(ctx, http.MethodPost, "/sim/sessions/"+n.Own+"/1/drop", map[string]any{}, nil)
}

// Power switches a phone off or on: what comes for one that is off is neither read nor answered until it is on.
func (c *Cluster) Power(ctx context.Context, phone string, on bool) error {
	return c.simulator(ctx, http.MethodPost, "/sim/phones/"+phone+"/power", map[string]bool{"on": on}, nil)
}

// InFlight returns nil if a message of the number was relayed by WhatsApp and its sender does not know it yet: the row
// says "sending", and the frame is in the log.
func (c *Cluster) InFlight(ctx context.Context, n *Number) error {
	waiting, err := rows(ctx, c, `SELECT s.slug, m.wa_id FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.status = 'sending' AND m.outcome = ''`,
		func(scan func(...any) error) (row struct{ slug, waID string }, err error) {
			return row, scan(&row.slug, &row.waID)
		})
	if err != nil {
		return err
	}
	for _, m := range waiting {
		if m.slug != n.Slug {
			continue
		}
		frames, err := c.Log(ctx, 0, "&dir="+wasim.DirIn+"&kind="+wasim.KindMessage+"&id="+m.waID)
		if err != nil {
			return err
		}
		if len(frames) > 0 {
			return nil
		}
	}
	return fmt.Errorf("no message of %s is in flight", n.Slug)
}

// Log reads the simulator's log from an entry on; query narrows it, for example "&kind=decrypted".
func (c *Cluster) Log(ctx context.Context, after int64, query string) ([]wasim.Entry, error) {
	var all []wasim.Entry
	for {
		var page struct {
			Entries []wasim.Entry `json:"entries"`
			Next    int64         `json:"next"`
		}
		err := Until(ctx, 3*time.Minute, func() error { // a machine that is busy with something else may take its time
			return c.simulator(ctx, "GET", fmt.Sprintf("/sim/log?limit=2000&after=%d%s", after, query), nil, &page)
		})
		if err != nil {
			return nil, err
		}
		if len(page.Entries) == 0 {
			return all, nil
		}
		all, after = append(all, page.Entries...), page.Next
	}
}
