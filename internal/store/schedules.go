package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"go.mau.fi/util/dbutil"
)

// Slot is one turn of a periodic job, held by one scheduler for a while.
type Slot struct {
	Name   string
	Holder string
	At     time.Time // when it was due: what makes this slot this one
}

// EnsureSchedule makes sure that a job has its row and runs every so often; a new one is due at once.
func (s *Store) EnsureSchedule(ctx context.Context, name string, every time.Duration) error {
	_, err := s.exec(ctx, `INSERT INTO schedules (name, every_ms, next_at) VALUES ($1, $2, @now@)
		ON CONFLICT (name) DO UPDATE SET every_ms = excluded.every_ms,
			next_at = CASE WHEN schedules.next_at > @now@ + excluded.every_ms THEN @now@ + excluded.every_ms ELSE schedules.next_at END
		WHERE schedules.every_ms <> excluded.every_ms`, name, every.Milliseconds())
	if err != nil {
		return fmt.Errorf("ensure schedule %s: %w", name, err)
	}
	return nil
}

// SlotWaits says, without a lock, how long it is until each schedule's next slot may be taken; zero or
// less is now. A slot that somebody holds may be taken when the hold ends.
func (s *Store) SlotWaits(ctx context.Context) (map[string]time.Duration, error) {
	waits := map[string]time.Duration{}
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var name string
		var wait int64
		if err := row.Scan(&name, &wait); err != nil {
			return err
		}
		waits[name] = time.Duration(wait) * time.Millisecond
		return nil
	}, `SELECT name, CASE WHEN next_at > locked_until THEN next_at ELSE locked_until END - @now@ FROM schedules`)
	if err != nil {
		return nil, fmt.Errorf("read schedules: %w", err)
	}
	return waits, nil
}

// DueSlot takes the due slot of a schedule, if there is one and nobody holds it, for lockFor. The
// caller does the work within that time and calls FinishSlot. One that dies holds nothing up for
// longer than lockFor, and the slot is not lost: it stays due until somebody finishes it.
func (s *Store) DueSlot(ctx context.Context, name, holder string, lockFor time.Duration) (slot Slot, ok bool, err error) {
	slot = Slot{Name: name, Holder: holder}
	err = s.row(ctx, `UPDATE schedules SET holder=$2, locked_until=@now@ + $3
		WHERE name=$1 AND next_at <= @now@ AND locked_until <= @now@ RETURNING next_at`, name, holder, lockFor.Milliseconds()).Scan(at{&slot.At})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Slot{}, false, nil
	case err != nil:
		return Slot{}, false, fmt.Errorf("take slot of %s: %w", name, unavailable(err))
	}
	return slot, true, nil
}

// HastenSlot makes a schedule's next slot due now. It does nothing where it is due already, or is being worked on.
func (s *Store) HastenSlot(ctx context.Context, name string) error {
	_, err := s.exec(ctx, `UPDATE schedules SET next_at=@now@ WHERE name=$1 AND next_at>@now@ AND locked_until<=@now@`, name)
	if err != nil {
		return fmt.Errorf("hasten %s: %w", name, err)
	}
	return nil
}

// FinishSlot ends a slot: the next one lies in the future, on the same beat, however many were missed.
// false when the hold had ended and somebody else has it or finished it.
func (s *Store) FinishSlot(ctx context.Context, slot Slot) (bool, error) {
	n, err := s.exec(ctx, `UPDATE schedules SET last_at=@now@, locked_until=0, holder='',
			next_at = next_at + every_ms * ((@now@ - next_at) / every_ms + 1)
		WHERE name=$1 AND holder=$2 AND next_at=$3`, slot.Name, slot.Holder, ms(slot.At))
	if err != nil {
		return false, fmt.Errorf("finish slot of %s: %w", slot.Name, err)
	}
	return n == 1, nil
}

// ReleaseSlot gives a slot back undone: it may be taken again after a pause.
func (s *Store) ReleaseSlot(ctx context.Context, slot Slot, pause time.Duration) error {
	_, err := s.exec(ctx, `UPDATE schedules SET locked_until=@now@ + $4, holder='' WHERE name=$1 AND holder=$2 AND next_at=$3`,
		slot.Name, slot.Holder, ms(slot.At), pause.Milliseconds())
	if err != nil {
		return fmt.Errorf("release slot of %s: %w", slot.Name, err)
	}
	return nil
}
