package wastore

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/types"
)

// The event buffer holds messages in clear between their decryption and our commit, so what is kept
// here is sealed, under the row's key.

func (s *deviceStore) eventID(hash [32]byte) string { return s.jid + "/" + hex.EncodeToString(hash[:]) }

// DoDecryptionTxn keeps the ratchet and the plaintext together. Errors of fn are libsignal's opinion
// of a stanza, unless a statement failed: that has cancelled the context already.
func (s *deviceStore) DoDecryptionTxn(ctx context.Context, fn func(context.Context) error) error {
	if err := s.f.check(ctx); err != nil {
		return err
	}
	if t := s.f.txOf(ctx); t != nil {
		return fn(ctx)
	}
	release, err := s.takeTurn(ctx) // it reads a session and stores what it made of it
	if err != nil {
		return err
	}
	defer release()
	var refused error
	err = s.f.begin(ctx, func(ctx context.Context, t *tx) error {
		// A stanza that makes libsignal panic is undecryptable, and the socket lives on.
		if refused = s.f.guarded(ctx, fn); refused != nil {
			return refused
		}
		if t.failed != nil {
			return t.failed
		}
		return s.f.take(ctx, t) // the first write has taken it, unless there was none
	})
	if err != nil && refused == nil {
		return s.f.fail(ctx, err)
	}
	return err
}

func (s *deviceStore) GetBufferedEvent(ctx context.Context, hash [32]byte) (*store.BufferedEvent, error) {
	return read(ctx, s.f, func(ctx context.Context) (*store.BufferedEvent, error) {
		e, err := s.raw.GetBufferedEvent(ctx, hash)
		if err != nil || e == nil || e.Plaintext == nil {
			return e, err
		}
		if e.Plaintext, err = s.f.c.ring.Open(s.eventID(hash), e.Plaintext); err != nil {
			return nil, fmt.Errorf("open buffered event: %w", err)
		}
		return e, nil
	})
}

var putBufferedEvent = fencedQuery(`INSERT INTO whatsmeow_event_buffer (our_jid, ciphertext_hash, plaintext, server_timestamp, insert_timestamp)
	SELECT $4::text, $5::bytea, $6::bytea, $7::bigint, $8::bigint FROM f WHERE TRUE`)

func (s *deviceStore) PutBufferedEvent(ctx context.Context, hash [32]byte, plaintext []byte, serverTimestamp time.Time) error {
	return s.f.write(ctx, putBufferedEvent, s.jid, hash[:], s.f.c.ring.Seal(s.eventID(hash), plaintext),
		serverTimestamp.Unix(), time.Now().UnixMilli())
}

var clearBufferedEvent = fencedQuery(`UPDATE whatsmeow_event_buffer SET plaintext=NULL FROM f WHERE our_jid=$4::text AND ciphertext_hash=$5::bytea`)

func (s *deviceStore) ClearBufferedEventPlaintext(ctx context.Context, hash [32]byte) error {
	n, err := s.f.run(ctx, s.f.c.text(clearBufferedEvent), []any{s.jid, hash[:]})
	if err == nil && n == 0 { // no such row, or no such term
		return s.f.do(ctx, func(context.Context) error { return nil })
	}
	return err
}

// DeleteOldBufferedHashes does nothing: whatsmeow's scans the table of all sessions from each of
// them. See PurgeBufferedHashes.
func (s *deviceStore) DeleteOldBufferedHashes(ctx context.Context) error { return s.f.check(ctx) }

// ---- outgoing events. The clients here keep theirs in the messages table and never call these.

func (s *deviceStore) outgoingID(id types.MessageID) string { return s.jid + "/out/" + id }

func (s *deviceStore) AddOutgoingEvent(ctx context.Context, chat types.JID, id types.MessageID, format string, plaintext []byte) error {
	return s.f.do(ctx, func(ctx context.Context) error {
		return s.raw.AddOutgoingEvent(ctx, chat, id, format, s.f.c.ring.Seal(s.outgoingID(id), plaintext))
	})
}

func (s *deviceStore) GetOutgoingEvent(ctx context.Context, chat, altChat types.JID, id types.MessageID) (format string, plaintext []byte, err error) {
	plaintext, err = read(ctx, s.f, func(ctx context.Context) (b []byte, err error) {
		if format, b, err = s.raw.GetOutgoingEvent(ctx, chat, altChat, id); err != nil {
			return nil, err
		}
		if b, err = s.f.c.ring.Open(s.outgoingID(id), b); err != nil {
			return nil, fmt.Errorf("open outgoing event: %w", err)
		}
		return b, nil
	})
	return format, plaintext, err
}

func (s *deviceStore) DeleteOldOutgoingEvents(ctx context.Context) error {
	return s.f.do(ctx, s.raw.DeleteOldOutgoingEvents)
}
