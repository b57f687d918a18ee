package store

import (
	"context"
	"fmt"

	"github.com/wafleet/wafleet/internal/fleet"
)

// TellUndecryptable marks a message that its recipient asked for fleet.MaxRetryFrames times, because they
// could not decrypt it, and writes its event, once: the status stays what it is, the error says what is
// wrong with it. A message that somebody read is left alone, and a receipt that raises the message later
// takes the mark off again. It reports whether the message was marked now.
func (s *Store) TellUndecryptable(ctx context.Context, term fleet.Term, waID string) (bool, error) {
	var marked []fleet.Message
	err := s.Fenced(ctx, term, func(ctx context.Context) (err error) {
		marked, err = s.changeMessages(ctx, `UPDATE messages SET error_code='`+fleet.CodeUndecryptable+`',
				error_detail='The recipient could not decrypt the message, however often it was sent again.'
			WHERE session_id=$1 AND wa_id=$2 AND status IN ('sending', 'sent', 'delivered') AND error_code<>'`+fleet.CodeUndecryptable+`'
				AND (SELECT count(*) FROM attempts a WHERE a.message_id=messages.id AND a.kind='retry')>=CAST($3 AS BIGINT)
			RETURNING `+changedColumns, term.SessionID, waID, fleet.MaxRetryFrames)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("tell that a message of session %s can't be decrypted: %w", term.SessionID, err)
	}
	return len(marked) > 0, nil
}
