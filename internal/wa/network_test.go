package wa

import (
	"context"
	"net/http"
	"testing"

	"go.mau.fi/whatsmeow/store"

	"github.com/wafleet/wafleet/internal/fleet"
)

func TestOnlyASimulatorIsToldWhoDials(t *testing.T) {
	term := fleet.Term{SessionID: "s", Owner: "w", Epoch: 3}
	for _, tt := range []struct {
		net  *Network
		want int
	}{{RealNetwork(), 0}, {&Network{simulated: true}, 4}} {
		s := NewSocket(Options{Device: &store.Device{}, Network: tt.net, Term: term, Generation: 9})
		sink := &waSink{log: s.log, ctx: t.Context()}
		c := s.newClient(context.Background(), &waLogger{waSink: sink}, http.DefaultTransport, http.DefaultTransport)
		if got := len(c.WebSocketHeaders); got != tt.want {
			t.Errorf("headers on a network with Simulated() = %v: %v, want %d", tt.net.Simulated(), c.WebSocketHeaders, tt.want)
		}
		if c.EnableAutoReconnect || !c.DisableLoginAutoReconnect || !c.SynchronousAck || !c.EnableDecryptedEventBuffer ||
			!c.AutoTrustIdentity || c.UseRetryMessageStore || c.ManualHistorySyncDownload {
			t.Error("the client is not set up as a generation needs it")
		}
	}
}
