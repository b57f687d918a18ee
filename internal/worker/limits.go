package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wa"
)

// strangersRefused is how many people in an hour, the present one included, must be refused as strangers before the
// number counts as locked though WhatsApp didn't say so: one alone may be about that person.
const strangersRefused = 2

// limited notes what WhatsApp told of a limit on this number.
func (g *generation) limited(ctx context.Context, limit fleet.NumberLimit) {
	until := time.Time{}
	if limit.Active {
		if until = limit.Until; until.IsZero() {
			until = time.Now().Add(limitFor(limit.Kind))
		}
	}
	g.limit(ctx, limit.Kind, until)
}

func limitFor(kind fleet.LimitKind) time.Duration {
	if kind == fleet.LimitNewChats {
		return fleet.CappedFor
	}
	return fleet.ColdFor
}

// limit writes that the number is limited until a time, zero: not any more, and lets routers know.
func (g *generation) limit(ctx context.Context, kind fleet.LimitKind, until time.Time) {
	lctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	told, err := g.v.w.o.Store.LimitNumber(lctx, g.v.term.Fleet(), kind, until)
	if err != nil {
		g.lose(err)
		g.log.WarnContext(ctx, "limit of the number not written", slog.String("limit", string(kind)), slog.Any("err", err))
		return
	}
	if _, err := g.v.w.o.Ledger.Bump(lctx, g.org); err != nil {
		g.log.DebugContext(ctx, "routers see a limit two seconds late", slog.Any("err", err))
	}
	if told {
		g.log.WarnContext(ctx, "WhatsApp limits the number", slog.String("limit", string(kind)), slog.Time("until", until))
		g.v.w.nudge(lctx, bus.TopicWebhooks, "")
	}
}

// stranger handles a refusal because the recipient is a stranger to this number. Another number may try it once; this
// one never again. A cap holds for the number; a lock only if WhatsApp says so, or others are refused as well.
func (l *lane) stranger(ctx context.Context, item *store.LaneItem, res *store.Result) {
	if res.Outcome != fleet.OutcomeRefused || res.ErrorCode != wa.SendReachoutRestricted && res.ErrorCode != wa.SendNewChatCap {
		return
	}
	lctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	if res.ErrorCode == wa.SendNewChatCap {
		res.Hop = true
		l.g.limit(ctx, fleet.LimitNewChats, time.Now().Add(fleet.CappedFor))
		return
	}
	chats, err := l.st.Chats(lctx, item.ContactKey)
	if err != nil {
		l.failed(ctx, "could not read what a person wrote", err)
		return
	}
	for i := range chats {
		if chats[i].SessionID == l.term.SessionID && chats[i].Warm(time.Now(), l.g.v.w.o.WarmFor) {
			return // no stranger: WhatsApp's own mistake, or a token that was lost
		}
	}
	res.Hop = true
	others, err := l.st.StrangersRefused(lctx, l.term.SessionID, res.Code, item.ContactKey)
	if err != nil {
		l.failed(ctx, "could not count refusals", err)
		return
	}
	if others+1 >= strangersRefused {
		l.g.limit(ctx, fleet.LimitStrangers, time.Now().Add(fleet.ColdFor))
	}
}

// Wrote makes the session the one that a person hears from, unless they hear from another one already. It never waits.
func (w *Worker) Wrote(org fleet.OrgID, contactKey string, session fleet.SessionID) {
	v := w.supervisor(session)
	if v == nil {
		return
	}
	if slug := v.slug.Load(); slug != nil {
		w.settler.pin(pinned{org, contactKey, *slug})
	}
}
