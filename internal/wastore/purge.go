package wastore

import (
	"context"
	"fmt"
	"time"

	"github.com/wafleet/wafleet/internal/store"
)

// BufferRetention is how long WhatsApp may deliver a stanza again, and so how long whatsmeow's hashes
// of decrypted events are of use.
const BufferRetention = 14 * 24 * time.Hour

// PurgeBufferedHashes deletes up to limit of whatsmeow's decrypted-event rows of all devices that were
// made before the given time and returns how many. whatsmeow would do this at every connect of every
// device, for all devices at once, which no fence could tell apart from an owner's write.
func PurgeBufferedHashes(ctx context.Context, s *store.Store, before time.Time, limit int) (int, error) {
	n, err := store.Exec(ctx, s.DB(), `DELETE FROM whatsmeow_event_buffer WHERE (our_jid, ciphertext_hash) IN (
		SELECT our_jid, ciphertext_hash FROM whatsmeow_event_buffer WHERE insert_timestamp < $1 LIMIT $2)`, before.UnixMilli(), limit)
	if err != nil {
		return 0, fmt.Errorf("purge event buffer: %w", err)
	}
	return int(n), nil
}

// deviceTables are whatsmeow's tables that belong to a device, with the column that names it. The device itself is last.
var deviceTables = []struct{ table, column string }{
	{"whatsmeow_sessions", "our_jid"},
	{"whatsmeow_identity_keys", "our_jid"},
	{"whatsmeow_pre_keys", "jid"},
	{"whatsmeow_sender_keys", "our_jid"},
	{"whatsmeow_app_state_mutation_macs", "jid"},
	{"whatsmeow_app_state_version", "jid"},
	{"whatsmeow_app_state_sync_keys", "jid"},
	{"whatsmeow_contacts", "our_jid"},
	{"whatsmeow_chat_settings", "our_jid"},
	{"whatsmeow_message_secrets", "our_jid"},
	{"whatsmeow_privacy_tokens", "our_jid"},
	{"whatsmeow_nct_salt", "our_jid"},
	{"whatsmeow_event_buffer", "our_jid"},
	{"whatsmeow_retry_buffer", "our_jid"},
	{"whatsmeow_device", "jid"},
}

// PurgeDevices deletes the keys of one device that no session logs in with any more, up to limit rows in one short
// transaction, and returns how many. A device is forgotten when nothing of it is left.
func PurgeDevices(ctx context.Context, s *store.Store, limit int) (int, error) {
	n := 0
	err := s.InTx(ctx, func(ctx context.Context) error {
		n = 0
		jid, err := s.FormerDevice(ctx)
		if err != nil || jid == "" {
			return err
		}
		for _, t := range deviceTables {
			where := ` WHERE ` + t.column + `=$1 LIMIT $2`
			q := `DELETE FROM ` + t.table + ` WHERE rowid IN (SELECT rowid FROM ` + t.table + where + `)`
			if s.Postgres() {
				q = `DELETE FROM ` + t.table + ` WHERE ctid=ANY(ARRAY(SELECT ctid FROM ` + t.table + where + `))`
			}
			gone, err := store.Exec(ctx, s.DB(), q, jid, limit-n)
			if err != nil {
				return err
			}
			if n += int(gone); n >= limit {
				return nil
			}
		}
		return s.ForgetFormerDevice(ctx, jid)
	})
	if err != nil {
		return 0, fmt.Errorf("purge keys of a former device: %w", store.TxError(ctx, err))
	}
	return n, nil
}
