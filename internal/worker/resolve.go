package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wa"
)

const (
	resolveLimit = 10 * time.Second
	resolveRetry = 10 * time.Second
)

// resolve asks WhatsApp, on this session's number, who the recipients are that its next messages wait for: WhatsApp
// decides where a number's messages go. It happens before the first frame to somebody and costs nothing later. It
// reports whether the lane may go on.
func (l *lane) resolve(ctx context.Context, turn fleet.MessageID) bool {
	rctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	people, err := l.st.Unresolved(rctx, l.term.SessionID, turn, wa.MostResolved)
	if err != nil {
		l.failed(ctx, "could not read the lane", err)
		return false
	}
	accounts, err := l.g.sock.Resolve(rctx, people)
	if err != nil {
		l.g.log.WarnContext(ctx, "recipients not resolved; trying again later", slog.Int("recipients", len(people)), slog.Any("err", err))
	}
	met, err := l.g.v.w.resolved(ctx, l.term, l.g.org, accounts)
	if err != nil {
		l.failed(ctx, "could not write down recipients", err)
		return false
	}
	for _, m := range met {
		if m.Absent {
			l.g.v.w.nudge(ctx, bus.TopicWebhooks, "")
		}
	}
	open := slices.DeleteFunc(people, func(p fleet.Person) bool {
		return slices.ContainsFunc(accounts, func(a wa.Account) bool { return a.Asked == p })
	})
	if len(open) == 0 {
		return true
	}
	pctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	if err := l.st.Postpone(pctx, l.term, open, jitter(resolveRetry)); err != nil {
		l.failed(ctx, "could not postpone messages", err)
		return false
	}
	return true
}

// resolved writes down what WhatsApp said of people, and lets who keeps pins know of contacts that became one.
func (w *Worker) resolved(ctx context.Context, term fleet.Term, org fleet.OrgID, accounts []wa.Account) ([]store.Met, error) {
	if len(accounts) == 0 {
		return nil, nil
	}
	told := make([]store.Sighting, len(accounts))
	for i, a := range accounts {
		told[i] = store.Sighting{Person: a.Person, Asked: a.Asked.Phone, Present: !a.Absent, Absent: a.Absent}
	}
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	met, err := w.o.Store.Resolved(ctx, term, org, told)
	if err != nil {
		return nil, err
	}
	w.merged(ctx, met)
	return met, nil
}

// merged lets who keeps pins, and who delivers events, know of contacts that became one.
func (w *Worker) merged(ctx context.Context, met []store.Met) {
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	told := false
	for _, m := range met {
		for _, from := range m.Merged {
			told = true
			if err := w.o.Ledger.Merge(ctx, m.OrgID, from, m.Key); err != nil {
				w.log.WarnContext(ctx, "a person of two names may change numbers once", slog.Any("err", err))
			}
		}
	}
	if told {
		w.nudge(ctx, bus.TopicWebhooks, "")
	}
}

// check asks WhatsApp who people are because somebody wants to know before they write to them.
func (g *generation) check(ctx context.Context, c *fleet.Command) error {
	var p fleet.CheckPayload
	if err := json.Unmarshal([]byte(c.Payload), &p); err != nil {
		return fmt.Errorf("read command: %w", err)
	}
	accounts, err := g.sock.Resolve(ctx, p.People)
	if err == nil {
		_, err = g.v.w.resolved(ctx, g.v.term.Fleet(), g.org, accounts)
	}
	if err == nil && len(accounts) < len(p.People) {
		err = fmt.Errorf("WhatsApp answered for %d of %d people", len(accounts), len(p.People))
	}
	return err
}
