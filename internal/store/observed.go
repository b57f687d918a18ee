package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Observation is what a session's owner saw of it.
type Observation struct {
	State      fleet.Observed
	Generation int64
	Reason     string
	Code       int
	Error      string
	Attempts   int
	RetryAt    time.Time
	Until      time.Time // end of a temporary ban
	// Announce writes a session.status event if the state is not the one last told. An owner holds
	// it back while a drop may still heal by itself.
	Announce bool
	// Tell writes an event of this kind beside the state, such as fleet.EventSessionConflict; "" = none.
	Tell fleet.EventKind
}

func (o *Observation) event(org fleet.OrgID, session fleet.SessionID, kind fleet.EventKind) fleet.Event {
	return fleet.Event{
		OrgID: org, Kind: kind, SessionID: session,
		Data: fleet.EventData{
			Observed: o.State, Reason: o.Reason, WACode: o.Code, Detail: o.Error, Until: ms(o.Until), Attempts: o.Attempts,
		},
	}
}

// RecordObserved writes the observed part of a session, fenced by the term. Any state but pairing
// takes down what a pairing showed. It reports whether an event was written.
func (s *Store) RecordObserved(ctx context.Context, term fleet.Term, o Observation) (told bool, err error) {
	err = s.Fenced(ctx, term, func(ctx context.Context) error {
		var org fleet.OrgID
		var announced string
		err := s.row(ctx, `UPDATE sessions SET
				observed_since = CASE WHEN observed = $2 THEN observed_since ELSE @now@ END,
				observed = $2, observed_epoch = $3, generation = $4, reason = $5, reason_code = $6, last_error = $7,
				attempts = $8, retry_at = $9, until_at = $10,
				pairing_method = CASE WHEN $2 = 'pairing' THEN pairing_method ELSE '' END,
				pairing_qr = CASE WHEN $2 = 'pairing' THEN pairing_qr ELSE '' END,
				pairing_code = CASE WHEN $2 = 'pairing' THEN pairing_code ELSE '' END,
				pairing_expires_at = CASE WHEN $2 = 'pairing' THEN pairing_expires_at ELSE 0 END,
				pairing_ends_at = CASE WHEN $2 = 'pairing' THEN pairing_ends_at ELSE 0 END
			WHERE id = $1 RETURNING org_id, announced`,
			term.SessionID, string(o.State), term.Epoch, o.Generation, o.Reason, o.Code, o.Error,
			o.Attempts, ms(o.RetryAt), ms(o.Until)).Scan(&org, &announced)
		if err != nil {
			return fmt.Errorf("record state of session %s: %w", term.SessionID, notFound(err))
		}
		var kinds []fleet.EventKind
		if o.Announce && announced != string(o.State) {
			kinds = append(kinds, fleet.EventSessionStatus)
			if _, err := s.exec(ctx, `UPDATE sessions SET announced = $2 WHERE id = $1`, term.SessionID, string(o.State)); err != nil {
				return fmt.Errorf("record state of session %s: %w", term.SessionID, err)
			}
		}
		if o.Tell != "" {
			kinds = append(kinds, o.Tell)
		}
		for _, kind := range kinds {
			if _, err := s.AppendEvent(ctx, o.event(org, term.SessionID, kind)); err != nil {
				return err
			}
		}
		told = len(kinds) > 0
		return nil
	})
	return told && err == nil, err
}

// RecordPairing shows a new QR or code, fenced by the term, and puts the session into pairing.
func (s *Store) RecordPairing(ctx context.Context, term fleet.Term, generation int64, p fleet.Pairing) error {
	return s.Fenced(ctx, term, func(ctx context.Context) error {
		_, err := s.exec(ctx, `UPDATE sessions SET
				observed_since = CASE WHEN observed = 'pairing' THEN observed_since ELSE @now@ END,
				observed = 'pairing', observed_epoch = $2, generation = $3, reason = '', reason_code = 0, last_error = '',
				pairing_method = $4, pairing_qr = $5, pairing_code = $6, pairing_expires_at = $7, pairing_ends_at = $8
			WHERE id = $1`,
			term.SessionID, term.Epoch, generation, p.Method, p.QR, p.Code, ms(p.ExpiresAt), ms(p.EndsAt))
		if err != nil {
			return fmt.Errorf("record pairing of session %s: %w", term.SessionID, err)
		}
		return nil
	})
}

// Login is what pairing gave a session.
type Login struct {
	DeviceJID string
	Phone     string
	LID       string
	PushName  string
	Platform  string
}

var errStopped = errors.New("the session was stopped meanwhile")

// numberFixed says of a session that it keeps its number: it was paired with it, or came with it and
// its age from elsewhere.
const numberFixed = `(paired_at <> 0 OR warmup_at <> 0 AND phone <> '')`

// RecordLogin stores a fresh login, fenced by the term. It is not yet "paired": that is
// RecordPaired, after the login worked. fleet.ErrNumberInUse: another live session has the number,
// or this session was paired with another number before.
func (s *Store) RecordLogin(ctx context.Context, term fleet.Term, l Login) error {
	err := s.Fenced(ctx, term, func(ctx context.Context) error {
		_, err := s.exec(ctx, `INSERT INTO former_devices (jid, session_id) SELECT device_jid, id FROM sessions
			WHERE id = $1 AND desired = 'running' AND device_jid <> '' AND device_jid <> $2 ON CONFLICT DO NOTHING`, term.SessionID, l.DeviceJID)
		if err != nil {
			return err
		}
		n, err := s.exec(ctx, `UPDATE sessions SET device_jid = $2, phone = $3, lid = $4, push_name = $5, platform = $6, revoked_at = 0
			WHERE id = $1 AND desired = 'running' AND (NOT `+numberFixed+` OR phone = $3)`,
			term.SessionID, l.DeviceJID, l.Phone, l.LID, l.PushName, l.Platform)
		if err != nil || n > 0 {
			return err
		}
		var desired fleet.Desired
		if err := s.row(ctx, `SELECT desired FROM sessions WHERE id = $1`, term.SessionID).Scan(&desired); err != nil {
			return notFound(err)
		}
		if desired != fleet.DesiredRunning {
			return errStopped
		}
		return fleet.ErrNumberInUse
	})
	switch {
	case errors.Is(err, fleet.ErrConflict):
		return fmt.Errorf("record login of session %s: %w", term.SessionID, fleet.ErrNumberInUse)
	case err != nil:
		return fmt.Errorf("record login of session %s: %w", term.SessionID, err)
	}
	return nil
}

// CheckNumber reports whether the session may take the number: fleet.ErrNumberInUse if another live
// session has it, or if this session was paired with another one. RecordLogin decides it for good.
func (s *Store) CheckNumber(ctx context.Context, session fleet.SessionID, phone string) error {
	var n int
	err := s.row(ctx, `SELECT count(*) FROM sessions WHERE (id <> $1 AND phone = $2 AND desired <> 'deleted')
		OR (id = $1 AND `+numberFixed+` AND phone <> $2)`, session, phone).Scan(&n)
	if err != nil {
		return fmt.Errorf("check number of session %s: %w", session, unavailable(err))
	}
	if n > 0 {
		return fleet.ErrNumberInUse
	}
	return nil
}

// RecordPaired marks the pairing as complete after its first stable login. The time is kept over
// every later pairing. The ramp begins with the first pairing of the number, whichever session had it.
func (s *Store) RecordPaired(ctx context.Context, term fleet.Term) error {
	return s.Fenced(ctx, term, func(ctx context.Context) error {
		_, err := s.exec(ctx, `UPDATE sessions SET paired_at = @now@,
				warmup_at = CASE WHEN warmup_at > 0 THEN warmup_at
					ELSE coalesce((SELECT min(o.paired_at) FROM sessions o WHERE o.phone = sessions.phone AND o.paired_at > 0), @now@) END
			WHERE id = $1 AND paired_at = 0`, term.SessionID)
		if err != nil {
			return fmt.Errorf("record pairing of session %s: %w", term.SessionID, err)
		}
		return nil
	})
}

// RecordPushName keeps the account's own name.
func (s *Store) RecordPushName(ctx context.Context, term fleet.Term, name string) error {
	return s.Fenced(ctx, term, func(ctx context.Context) error {
		_, err := s.exec(ctx, `UPDATE sessions SET push_name = $2 WHERE id = $1 AND push_name <> $2`, term.SessionID, name)
		if err != nil {
			return fmt.Errorf("record push name of session %s: %w", term.SessionID, err)
		}
		return nil
	})
}

// Unwanted returns those of the given sessions that should not run any more. It takes no lock.
func (s *Store) Unwanted(ctx context.Context, held Held) ([]fleet.SessionID, error) {
	if held.n == 0 {
		return nil, nil
	}
	out, err := column[fleet.SessionID](ctx, s, `SELECT s.id FROM sessions s JOIN @rows:$1(id text, epoch bigint)@ o ON o.id = s.id WHERE s.desired <> 'running'`, held.rows)
	if err != nil {
		return nil, fmt.Errorf("look for sessions to stop: %w", err)
	}
	return out, nil
}

// RecordStopped writes that a session is down because it should be, after its lease is gone or as
// the owner's last word. It changes nothing for a session that should run.
func (s *Store) RecordStopped(ctx context.Context, term fleet.Term) error {
	return s.Fenced(ctx, term, func(ctx context.Context) error {
		_, err := s.exec(ctx, `UPDATE sessions SET reason = 'stopped', reason_code = 0, last_error = '', retry_at = 0, attempts = 0,
				observed = CASE WHEN observed IN ('connected', 'connecting', 'reconnecting', 'unavailable') THEN 'unavailable'
					WHEN observed = 'pairing' THEN 'needs_pairing' ELSE observed END,
				observed_since = @now@, pairing_method = '', pairing_qr = '', pairing_code = '', pairing_expires_at = 0, pairing_ends_at = 0
			WHERE id = $1 AND desired <> 'running'`, term.SessionID)
		if err != nil {
			return fmt.Errorf("record stop of session %s: %w", term.SessionID, err)
		}
		return nil
	})
}
