package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/trials/cluster"
)

// gateway is a cluster with two api processes, and what clients were told.
type gateway struct {
	*cluster.Cluster
	*trial
	v     *verdict
	apis  []string
	texts atomic.Int64

	mu       sync.Mutex
	accepted map[string]sent // by id
}

// sent is a message that was accepted.
type sent struct {
	org          *org
	person, text string
}

// org is an organization with several numbers.
type org struct {
	id, key string
	numbers []string // own numbers of its sessions, in list order
	slugs   []string
	people  []string
	cap     int // frames in any 60 seconds of each number; 0 = none
}

// answer is what one request to send was told.
type answer struct {
	status          int // 0 = nothing
	code            string
	after           time.Duration
	id, text        string
	asked, answered time.Time
	err             error
}

// addOrg adds an organization with so many linked numbers and so many people. first keeps phone numbers apart.
func (g *gateway) addOrg(ctx context.Context, id string, first, sessions, people, perMinute int) (*org, error) {
	o := &org{id: id, cap: perMinute}
	admin := func(method, path string, in, out any) error {
		return cluster.Call(ctx, method, g.API+path, g.Admin, nil, in, out)
	}
	if err := admin(http.MethodPost, "/api/admin/organizations", map[string]string{"orgId": id, "label": "Organization"}, nil); err != nil {
		return nil, err
	}
	var key struct {
		Key string `json:"key"`
	}
	if err := admin(http.MethodPost, "/api/admin/keys", map[string]string{"orgId": id, "label": "trial"}, &key); err != nil {
		return nil, err
	}
	o.key = key.Key
	for i := range people {
		o.people = append(o.people, fmt.Sprintf("55119%08d", first+1000+i))
	}
	for i := range sessions {
		o.numbers = append(o.numbers, fmt.Sprintf("55119%08d", first+i))
		o.slugs = append(o.slugs, fmt.Sprintf("%s-%02d", id, i+1))
	}
	for _, pn := range append(append([]string{}, o.numbers...), o.people...) {
		if err := cluster.Call(ctx, http.MethodPost, g.Sim+"/sim/phones", "", nil, map[string]string{"pn": pn}, nil); err != nil {
			return nil, err
		}
	}
	budget := cluster.Unbounded
	if perMinute > 0 {
		budget = map[string]any{"budget": map[string]int{"perMinute": 10 * perMinute, "perHour": 100_000, "perDay": 100_000}, "newChatsPerDay": 100_000}
	}
	for i, slug := range o.slugs {
		if err := admin(http.MethodPost, "/api/admin/sessions", map[string]string{"orgId": id, "sessionId": slug}, nil); err != nil {
			return nil, err
		}
		// A number of its first day has a tenth of its budget.
		if err := admin(http.MethodPatch, "/api/admin/sessions/"+slug, budget, nil); err != nil {
			return nil, err
		}
		if err := g.Link(ctx, slug, o.numbers[i]); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// text makes one that nobody else sends.
func (g *gateway) text(o *org) string { return fmt.Sprintf("%s %d", o.id, g.texts.Add(1)) }

// send asks once, at one of the two processes.
func (g *gateway) send(ctx context.Context, o *org, person, text string, api int) answer {
	a := answer{text: text, asked: time.Now()}
	var msg struct {
		MessageID string `json:"messageId"`
	}
	header := http.Header{"Idempotency-Key": {text}}
	header["Idempotency-Key"][0] = fmt.Sprintf("%x", text)
	a.err = cluster.Call(ctx, http.MethodPost, g.apis[api%len(g.apis)]+"/api/v1/messages", o.key, header, map[string]string{"to": "+" + person, "text": text}, &msg)
	a.answered, a.id = time.Now(), msg.MessageID
	g.mu.Lock()
	defer g.mu.Unlock()
	if a.err == nil {
		a.status = http.StatusAccepted
		if _, again := g.accepted[a.id]; !again {
			g.accepted[a.id] = sent{o, person, text}
			g.v.Sent++
		}
		return a
	}
	if refused, ok := errors.AsType[*cluster.RefusedError](a.err); ok {
		a.status, a.code, a.after = refused.Status, refused.Code, refused.RetryAfter
	}
	if ctx.Err() != nil {
		return a
	}
	g.v.Refused++
	switch {
	case a.status == http.StatusTooManyRequests && a.after > 0, a.status == http.StatusServiceUnavailable && a.after > 0:
	case a.status == http.StatusForbidden && a.code == "RECIPIENT_OPTED_OUT":
	default:
		g.v.Wrong++
		g.say("wrong answer: %v", a.err)
	}
	return a
}

// frames are the messages that came to WhatsApp from a number, in their order.
func (g *gateway) frames(ctx context.Context, number string) ([]wasim.Entry, error) {
	all, err := g.Log(ctx, 0, "&kind="+wasim.KindMessage+"&dir="+wasim.DirIn+"&session="+number)
	var frames []wasim.Entry
	for _, e := range all {
		if e.Type != "peer" {
			frames = append(frames, e)
		}
	}
	return frames, err
}

// auditCaps counts the frames that had a budget's number of others in the 60 seconds before them.
func (g *gateway) auditCaps(ctx context.Context, o *org) error {
	for i, number := range o.numbers {
		frames, err := g.frames(ctx, number)
		if err != nil {
			return err
		}
		over, most, from := 0, 0, 0
		for at := range frames {
			for frames[at].At.Sub(frames[from].At) >= time.Minute {
				from++
			}
			if n := at - from + 1; n > o.cap {
				over++
			}
			most = max(most, at-from+1)
		}
		g.v.Over += over
		g.say("%s: %d frames, %d in the fullest minute of at most %d", o.slugs[i], len(frames), most, o.cap)
	}
	return nil
}

// auditArrivals counts accepted messages that did not arrive, or not once. ended are messages that may end unsent.
func (g *gateway) auditArrivals(ctx context.Context, ended map[string]bool) error {
	seen, err := g.seen(ctx)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, m := range g.accepted {
		switch n := seen[m.person+" "+m.text]; {
		case n == 0 && !ended[id]:
			g.v.Lost++
			g.say("lost: %s, %q to %s", id, m.text, m.person)
		case n > 1:
			g.v.Doubled++
			g.say("seen %d times: %s, %q by %s", n, id, m.text, m.person)
		}
	}
	return nil
}

// seen counts what people's phones decrypted, by phone and text.
func (g *gateway) seen(ctx context.Context) (map[string]int, error) {
	all, err := g.Log(ctx, 0, "&kind="+wasim.KindDecrypted)
	n := map[string]int{}
	for _, e := range all {
		if !e.Duplicate {
			n[e.Session+" "+e.Text]++
		}
	}
	return n, err
}

// arrived waits until everything that was accepted was seen.
func (g *gateway) arrived(ctx context.Context, within time.Duration, ended func(id string) bool) error {
	return cluster.Until(ctx, within, func() error {
		seen, err := g.seen(ctx)
		if err != nil {
			return err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for id, m := range g.accepted {
			if seen[m.person+" "+m.text] == 0 && !ended(id) {
				return fmt.Errorf("%s, %q to %s, has not arrived", id, m.text, m.person)
			}
		}
		return nil
	})
}

func never(string) bool { return false }
