package store

import (
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// frame is the part of a message's row that claims, acks and receipts change, read and locked. Times are
// unix milliseconds as in the row. Its JSON is a row of writeFrames.
type frame struct {
	Seq          int64           `json:"frame"`
	ID           fleet.MessageID `json:"-"`
	Session      fleet.SessionID `json:"-"`
	org          fleet.OrgID
	conversation fleet.ConversationID
	contact      string
	waID         string
	claimable    bool // a step may claim it, once what it looked past is settled
	changed      bool

	Status       fleet.Status  `json:"status"`
	Outcome      fleet.Outcome `json:"outcome"`
	ErrorCode    string        `json:"error_code"`
	ErrorDetail  string        `json:"error_detail"`
	Repeats      int64         `json:"repeats"`
	LockedUntil  int64         `json:"locked_until"`
	DueAt        int64         `json:"due_at"`
	UnknownSince int64         `json:"unknown_since"`
	NextRepeatAt int64         `json:"next_repeat_at"`
	SentAt       int64         `json:"sent_at"`
	DeliveredAt  int64         `json:"delivered_at"`
	ReadAt       int64         `json:"read_at"`
	PlayedAt     int64         `json:"played_at"`
	Epoch        int64         `json:"claim_epoch"`
	Attempts     int64         `json:"attempts"`
	Reservation  string        `json:"reservation"`
	Parked       bool          `json:"parked"`
	Hops         int64         `json:"hops"`
}

// frameColumns are what fields scans.
const frameColumns = `m.seq, m.id, m.org_id, m.conversation_id, m.contact_key, m.wa_id, m.claim_epoch, m.status, m.outcome, m.error_code, m.error_detail,
	m.repeats, m.locked_until, m.due_at, m.unknown_since, m.next_repeat_at, m.sent_at, m.delivered_at, m.read_at, m.played_at, m.attempts,
	m.reservation, m.parked, m.hops`

func (f *frame) fields() []any {
	return []any{
		orZero[int64]{&f.Seq},
		orZero[fleet.MessageID]{&f.ID},
		orZero[fleet.OrgID]{&f.org},
		orZero[fleet.ConversationID]{&f.conversation},
		orZero[string]{&f.contact},
		orZero[string]{&f.waID},
		orZero[int64]{&f.Epoch},
		orZero[fleet.Status]{&f.Status},
		orZero[fleet.Outcome]{&f.Outcome},
		orZero[string]{&f.ErrorCode},
		orZero[string]{&f.ErrorDetail},
		orZero[int64]{&f.Repeats},
		orZero[int64]{&f.LockedUntil},
		orZero[int64]{&f.DueAt},
		orZero[int64]{&f.UnknownSince},
		orZero[int64]{&f.NextRepeatAt},
		orZero[int64]{&f.SentAt},
		orZero[int64]{&f.DeliveredAt},
		orZero[int64]{&f.ReadAt},
		orZero[int64]{&f.PlayedAt},
		orZero[int64]{&f.Attempts},
		orZero[string]{&f.Reservation},
		orZero[bool]{&f.Parked},
		orZero[int64]{&f.Hops},
	}
}

// claim marks the message as sending under a term: its next frame may leave.
func (f *frame) claim(epoch int64, c *Claim, now int64) {
	f.Attempts++
	f.LockedUntil, f.changed = now+c.LockFor.Milliseconds(), true
	if c.Kind == fleet.AttemptSend {
		f.Status, f.Outcome, f.Epoch = fleet.StatusSending, fleet.OutcomeNone, epoch
		return
	}
	// The second repeat comes 5 minutes after T0, and never on the heels of a first that was late.
	if f.NextRepeatAt = 0; f.Repeats == 0 {
		f.NextRepeatAt = max(f.UnknownSince+fleet.RepeatAfter[1].Milliseconds(), now+fleet.RepeatAfter[0].Milliseconds())
	}
	f.Repeats++
}

// settle applies what became of the frame that a term claimed, and reports whether to tell of it:
//
//	sent     the message is sent
//	refused  it failed; but if an earlier frame's outcome is unknown it stays unknown and is not
//	         repeated again, because that frame may have arrived. One that was refused because its
//	         recipient is a stranger here waits to be routed to another session, once
//	nothing  surely no frame left: queued again under the same WhatsApp id (a repeat: unknown as before)
//	unknown  it stays sending; T0 is now unless an earlier frame set it
//
// A receipt may have raised the message already, or another term may own its frame: then nothing
// changes.
func (f *frame) settle(epoch int64, r *Result, now int64) (tell bool) {
	if f.Status != fleet.StatusSending || f.Epoch != epoch {
		return false
	}
	first := f.UnknownSince == 0
	switch r.Outcome {
	case fleet.OutcomeSent:
		f.arrived(fleet.StatusSent, r.At, now)
		return true
	case fleet.OutcomeRefused:
		f.ErrorCode, f.ErrorDetail = clean(r.ErrorCode), clean(r.Detail)
		switch {
		case !first:
			f.NextRepeatAt = 0
		case r.Hop && f.Hops == 0:
			f.Status, f.Outcome, f.DueAt = fleet.StatusQueued, fleet.OutcomeNone, now
			f.Parked, f.Hops, f.Reservation = true, 1, "" // the frame took it
		default:
			f.Status, f.Outcome = fleet.StatusFailed, fleet.OutcomeRefused
		}
	case fleet.OutcomeNothing:
		switch {
		case first:
			f.Status, f.Outcome, f.DueAt = fleet.StatusQueued, fleet.OutcomeNone, now+r.RetryIn.Milliseconds()
		case f.Repeats > 0 && f.LockedUntil > 0: // this is not told a second time
			f.Repeats--
			f.NextRepeatAt = now + r.RetryIn.Milliseconds()
		}
	case fleet.OutcomeUnknown:
		f.Outcome, f.ErrorDetail = fleet.OutcomeUnknown, clean(r.Detail)
		if first {
			f.UnknownSince, f.NextRepeatAt = now, now+fleet.RepeatAfter[0].Milliseconds()
		}
	case fleet.OutcomeNone: // no result at all
		return false
	}
	f.LockedUntil, f.changed = 0, true
	return f.Status == fleet.StatusFailed
}

// arrived raises the message to what WhatsApp told, which settles an unknown outcome. when zero means now.
func (f *frame) arrived(status fleet.Status, when time.Time, now int64) {
	stamp := now
	if !when.IsZero() {
		stamp = ms(when)
	}
	f.Status, f.Outcome, f.ErrorCode, f.ErrorDetail = status, fleet.OutcomeSent, "", ""
	f.UnknownSince, f.NextRepeatAt, f.LockedUntil = 0, 0, 0
	f.changed = true
	keep := func(at *int64) {
		if *at == 0 {
			*at = stamp
		}
	}
	switch status {
	case fleet.StatusSent:
		f.SentAt = stamp
		return
	case fleet.StatusRead:
		keep(&f.ReadAt)
	case fleet.StatusPlayed:
		keep(&f.PlayedAt)
	default: // delivered, which the others imply
	}
	keep(&f.DeliveredAt)
}
