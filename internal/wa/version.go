package wa

import "go.mau.fi/whatsmeow/store"

// WebVersion is the version of WhatsApp Web that sockets claim to be.
func WebVersion() string { return store.GetWAVersion().String() }
