package router

import (
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/store"
)

// Reason says why a session was passed over.
type Reason string

// Reasons, from a closed set: they are told to callers and may become metric labels.
const (
	ReasonStopped      Reason = "stopped"             // the operator wants it stopped
	ReasonPaused       Reason = "paused"              // the operator holds it back; inbound goes on
	ReasonUnpaired     Reason = "unpaired"            // it has no WhatsApp number yet, or no login any more
	ReasonUnowned      Reason = "unowned"             // no worker holds it: none runs, or the last one's heartbeat stopped
	ReasonDisconnected Reason = "not_connected"       // its owner is not logged in at WhatsApp now
	ReasonOutdated     Reason = "client_outdated"     // WhatsApp refuses this version of the client
	ReasonCold         Reason = "reachout_restricted" // WhatsApp lets it not write to people who never wrote to it
	ReasonCapped       Reason = "new_chats_capped"    // WhatsApp lets it open no new chats
	ReasonRefused      Reason = "refused"             // WhatsApp refused this message there
	ReasonUnwell       Reason = "unhealthy"           // too many of its messages were refused because of the number
	ReasonMinute       Reason = "minute_budget"       // its budget of 60 seconds is used up
	ReasonHour         Reason = "hour_budget"
	ReasonDay          Reason = "day_budget"
	ReasonNewChats     Reason = "new_chat_budget" // its budget of first messages to people is used up
	ReasonRate         Reason = "rate"            // its token bucket is empty
)

var whys = map[ledger.Why]Reason{
	ledger.Unwell: ReasonUnwell, ledger.Minute: ReasonMinute, ledger.Hour: ReasonHour, ledger.Day: ReasonDay,
	ledger.NewChats: ReasonNewChats, ledger.Tokens: ReasonRate,
}

// Skip is a session that was passed over.
type Skip struct {
	Session fleet.SessionID
	Slug    fleet.SessionSlug
	Reason  Reason
}

// candidate is a session that may send as far as its rows say.
type candidate struct {
	session   *fleet.Session
	ask       ledger.Candidate
	newChat   bool
	chatStale bool
}

// field is who could send a message, and who could not and why.
type field struct {
	candidates []candidate
	out        []Skip    // those that the rows speak against, in list order
	reopens    time.Time // when the first of them may send to a stranger again; zero: not by waiting
	order      []fleet.SessionID
}

// field judges an organization's sessions by their rows.
func (s *snapshot) field(now time.Time, send Send, chats []fleet.Chat, warmFor time.Duration) *field {
	f := &field{}
	bySession := make(map[fleet.SessionID]*fleet.Chat, len(chats))
	for i := range chats {
		bySession[chats[i].SessionID] = &chats[i]
	}
	for i := range s.Sessions {
		v := &s.Sessions[i]
		if v.Desired == fleet.DesiredDeleted || v.Detached || send.Only != "" && v.ID != send.Only {
			continue // as good as not there
		}
		f.order = append(f.order, v.ID)
		chat := bySession[v.ID]
		if chat == nil {
			chat = new(fleet.Chat)
		}
		reason := eligible(v)
		if reason == "" && v.ID == send.Avoid {
			reason = ReasonRefused
		}
		warm := chat.Warm(now, warmFor)
		if reason == "" && !warm {
			reason = f.open(v, now)
		}
		if reason != "" {
			f.out = append(f.out, Skip{v.ID, v.Slug, reason})
			continue
		}
		b := v.EffectiveBudget(now)
		c := candidate{
			session: v, newChat: !warm && chat.FirstOutAt.IsZero(), chatStale: store.ChatStale(chat, now),
			ask: ledger.Candidate{
				Slug: v.Slug, Rate: rate(v.Rate),
				Budget: ledger.Budget{PerMinute: b.PerMinute, PerHour: b.PerHour, PerDay: b.PerDay, NewChatsPerDay: b.NewChatsPerDay},
			},
		}
		c.ask.NewChat = c.newChat
		f.candidates = append(f.candidates, c)
	}
	return f
}

// open says what WhatsApp has against this number's writing to somebody who never wrote to it.
func (f *field) open(v *fleet.Session, now time.Time) Reason {
	reason, until := Reason(""), time.Time{}
	if now.Before(v.CappedUntil) {
		reason, until = ReasonCapped, v.CappedUntil
	}
	if now.Before(v.ColdUntil) {
		reason = ReasonCold
		if until.Before(v.ColdUntil) {
			until = v.ColdUntil
		}
	}
	if reason != "" && (f.reopens.IsZero() || until.Before(f.reopens)) {
		f.reopens = until
	}
	return reason
}

// eligible says why a session may not send to anybody now, "" if it may: the first reason that holds.
//
// Whether the socket is alive is in the row already, and needs no clock here: its owner ends a socket
// that stays silent and writes so, and an owner that can't write loses its lease (LeaseLive, by the
// database's clock). So an idle fleet need not write down every pong.
func eligible(s *fleet.Session) Reason {
	switch {
	case s.Desired != fleet.DesiredRunning:
		return ReasonStopped
	case s.Paused:
		return ReasonPaused
	case s.Phone == "" || !s.CanLogin():
		return ReasonUnpaired
	case !s.LeaseLive:
		return ReasonUnowned
	// This is about our version and not about the socket, so it may be an earlier owner's word.
	case s.Observed == fleet.ObservedClientOutdated:
		return ReasonOutdated
	// What an earlier owner saw says nothing about this one's socket.
	case s.Observed != fleet.ObservedConnected || s.Epoch != s.LeaseEpoch:
		return ReasonDisconnected
	default:
		return ""
	}
}

func (f *field) choice(snap *snapshot) Choice { return Choice{Head: snap.Head, Skipped: f.out} }

// skipped adds to those that the rows speak against those that the ledger passed over, in list order.
func (f *field) skipped(why []ledger.Why) []Skip {
	if len(why) != len(f.candidates) {
		return f.out
	}
	by := map[fleet.SessionID]Skip{}
	for _, s := range f.out {
		by[s.Session] = s
	}
	for i, c := range f.candidates {
		if reason := whys[why[i]]; reason != "" {
			by[c.session.ID] = Skip{c.session.ID, c.session.Slug, reason}
		}
	}
	var all []Skip
	for _, id := range f.order {
		if s, ok := by[id]; ok {
			all = append(all, s)
		}
	}
	return all
}
