package wastore

import wmstore "go.mau.fi/whatsmeow/store"

// WaitingForTheTurn counts who waits to change the Signal sessions of a device.
func WaitingForTheTurn(d *wmstore.Device) int {
	s, _ := d.Sessions.(*deviceStore)
	return int(s.ratchet.waiting.Load())
}
