package wa

import (
	"errors"
	"fmt"

	"go.mau.fi/whatsmeow/store"
)

// WebVersion is the version of WhatsApp Web that sockets claim to be.
func WebVersion() string { return store.GetWAVersion().String() }

// SetWebVersion overrides the version that sockets claim to be ("2.3000.1234567890"), for the time between WhatsApp
// refusing the built-in one (ReasonClientOutdated) and an upgrade. It is for the whole process: call it before the
// first socket runs.
func SetWebVersion(version string) error {
	v, err := store.ParseVersion(version)
	if err != nil {
		return fmt.Errorf("WhatsApp web version: %w", err)
	}
	if v.IsZero() {
		return errors.New("WhatsApp web version: is zero")
	}
	store.SetWAVersion(v)
	return nil
}
