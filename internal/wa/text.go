package wa

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.mau.fi/whatsmeow/proto/waE2E"
	"google.golang.org/protobuf/proto"
)

// BuildText returns the marshalled message for a text. It fails for text that is empty or not valid UTF-8, and for NUL,
// which no database keeps.
func BuildText(text string) ([]byte, error) {
	switch {
	case text == "":
		return nil, errors.New("text is empty")
	case !utf8.ValidString(text):
		return nil, errors.New("text is not valid UTF-8")
	case strings.ContainsRune(text, 0):
		return nil, errors.New("text has a NUL character")
	}
	raw, err := proto.Marshal(&waE2E.Message{Conversation: proto.String(text)})
	if err != nil {
		return nil, fmt.Errorf("marshal text: %w", err)
	}
	return raw, nil
}
