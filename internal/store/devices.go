package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/wafleet/wafleet/internal/fleet"
)

// RevokeDevice marks the session's login as ended by WhatsApp, if this device is its login. It
// reports whether any session refers to the device: one that none does belongs to a pairing that
// failed half-way. It writes no fence of its own: call it under one.
func (s *Store) RevokeDevice(ctx context.Context, session fleet.SessionID, deviceJID string) (known bool, err error) {
	if session == "" || deviceJID == "" {
		return false, fmt.Errorf("revoke device: %w: blank id", fleet.ErrInvalid)
	}
	_, err = s.exec(ctx, `UPDATE sessions SET revoked_at = @now@ WHERE id = $1 AND device_jid = $2 AND revoked_at = 0`, session, deviceJID)
	if err != nil {
		return false, fmt.Errorf("revoke device of session %s: %w", session, err)
	}
	if err := s.row(ctx, `SELECT EXISTS (SELECT 1 FROM sessions WHERE device_jid = $1)`, deviceJID).Scan(&known); err != nil {
		return false, fmt.Errorf("revoke device of session %s: %w", session, unavailable(err))
	}
	return known, nil
}

// DeviceInUse reports whether a live session other than this one logs in as the device.
func (s *Store) DeviceInUse(ctx context.Context, deviceJID string, except fleet.SessionID) (bool, error) {
	var used bool
	err := s.row(ctx, `SELECT EXISTS (SELECT 1 FROM sessions
		WHERE device_jid = $1 AND id <> $2 AND revoked_at = 0 AND desired <> 'deleted')`, deviceJID, except).Scan(&used)
	if err != nil {
		return false, fmt.Errorf("look for the user of a device: %w", unavailable(err))
	}
	return used, nil
}

// FormerDevice locks a device that no session logs in with any more and returns its JID; "" = there is none that
// nobody else is at. Call it in the transaction that deletes of its keys.
func (s *Store) FormerDevice(ctx context.Context) (string, error) {
	var jid string
	err := s.row(ctx, `SELECT f.jid FROM former_devices f WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.device_jid=f.jid)
		ORDER BY f.jid LIMIT 1 @skip@`).Scan(&jid)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("look for a former device: %w", unavailable(err))
	}
	return jid, nil
}

// ForgetFormerDevice says that a device's keys are gone, or that it is a new one of the same name.
func (s *Store) ForgetFormerDevice(ctx context.Context, jid string) error {
	if _, err := s.exec(ctx, `DELETE FROM former_devices WHERE jid=$1`, jid); err != nil {
		return fmt.Errorf("forget a former device: %w", err)
	}
	return nil
}
