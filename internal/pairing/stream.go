package pairing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/fleet"
)

const (
	streamPoll  = time.Second      // a look without a nudge
	streamLife  = 80 * time.Second // then the browser connects anew; shorter than a request may last
	streamQuiet = 15 * time.Second // a word in between, so that proxies keep the line open
	streamWrite = 10 * time.Second // for a write to a visitor who reads slowly
)

// slots bounds how many of something there are at a time, by key.
type slots struct {
	max  int
	mu   sync.Mutex
	used map[string]int
}

func newSlots(limit int) *slots { return &slots{max: limit, used: map[string]int{}} }

func (s *slots) take(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used[key] >= s.max {
		return false
	}
	s.used[key]++
	return true
}

func (s *slots) give(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used[key]--; s.used[key] <= 0 {
		delete(s.used, key)
	}
}

// live is one look at what a live page shows.
type live struct {
	view
	state string            // what it says, without what only time changes: the same state is not sent again
	ids   []fleet.SessionID // whose changes matter
	final bool
}

func (p *Page) linkEvents(w http.ResponseWriter, r *http.Request, i fleet.Invite) {
	p.stream(w, r, i, func(i fleet.Invite) (live, error) {
		v, ids, err := p.linkOf(r, i)
		if err != nil {
			return live{}, err
		}
		return live{v, fmt.Sprint(v.Title, v.Rows, v.Used, v.Max), ids, false}, nil
	})
}

func (p *Page) numberEvents(w http.ResponseWriter, r *http.Request, i fleet.Invite) {
	p.stream(w, r, i, func(i fleet.Invite) (live, error) {
		v, id, err := p.numberOf(r, i)
		if err != nil {
			return live{}, err
		}
		// Not Left: it changes with what others do, and the buttons of a final page ask again anyway.
		state := fmt.Sprint(v.Title, v.Phase, v.Last4, v.QR, v.Code, v.Expires.UnixMilli(), v.Why)
		return live{v, state, []fleet.SessionID{id}, v.Phase.final()}, nil
	})
}

// stream sends what look sees whenever it is something else: on a nudge at once, else within a second.
// An error of the database only skips a look. The end of the link, or a final state, ends the stream,
// and "done" tells the browser not to come again.
func (p *Page) stream(w http.ResponseWriter, r *http.Request, i fleet.Invite, look func(fleet.Invite) (live, error)) {
	if !p.streams.take(string(i.ID)) {
		p.failed(w, r, http.StatusTooManyRequests, "limited", streamLife)
		return
	}
	defer p.streams.give(string(i.ID))
	ctx, cancel := context.WithTimeout(r.Context(), streamLife)
	defer cancel()
	out := events{w: w, rc: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	if !out.send("retry: 1000\n\n") {
		return
	}
	me := p.watchers.add()
	defer p.watchers.remove(me)
	tick := time.NewTicker(streamPoll)
	defer tick.Stop()
	var sent string
	for {
		now, err := p.lookAgain(ctx, r, look)
		switch {
		case errors.Is(err, errLinkOver), errors.Is(err, fleet.ErrNotFound):
			f := p.frame(r)
			out.event("live", &failView{f, "over"})
			out.send("event: done\ndata: over\n\n")
			return
		case err == nil && now.state != sent:
			p.watchers.follow(me, now.ids)
			if !out.event("live", now.view) {
				return
			}
			sent = now.state
			if now.final {
				out.send("event: done\ndata: final\n\n")
				return
			}
		case time.Since(out.last) >= streamQuiet:
			if !out.send(": still here\n\n") {
				return
			}
		}
		select {
		case <-me.wake:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

var errLinkOver = errors.New("the link is over")

// lookAgain reads the link itself too: one that was revoked shows nothing more.
func (p *Page) lookAgain(ctx context.Context, r *http.Request, look func(fleet.Invite) (live, error)) (live, error) {
	i, err := p.auth.Invite(ctx, r.PathValue("token"))
	switch {
	case errors.Is(err, auth.ErrUnauthorized):
		return live{}, errLinkOver
	case err != nil:
		return live{}, err
	case i.State() != fleet.InviteLive:
		return live{}, errLinkOver
	}
	return look(i)
}

// events writes server-sent events.
type events struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	last time.Time
}

// event sends the live part of a view as one event. False: the visitor is gone.
func (e *events) event(name string, v view) bool {
	return e.send("event: " + name + "\ndata: " + strings.ReplaceAll(string(v.live()), "\n", "\ndata: ") + "\n\n")
}

func (e *events) send(text string) bool {
	e.last = time.Now()
	_ = e.rc.SetWriteDeadline(e.last.Add(streamWrite)) // where there is none, none passes
	if _, err := e.w.Write([]byte(text)); err != nil {
		return false
	}
	return e.rc.Flush() == nil
}
