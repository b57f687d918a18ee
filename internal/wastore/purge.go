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
