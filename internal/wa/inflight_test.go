package wa_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim"
)

// However much comes while the handler is busy, it waits in the socket and not in our memory, and comes in order.
func TestASocketReadsNoFurtherWhileTooMuchIsUnhandled(t *testing.T) {
	const limit, sent = 5, 40
	n := shared.paired(t, fresh())
	first := n.online()
	first.stop()
	busy := make(chan struct{})
	g := n.online(func(o *wa.Options) {
		o.LimitInflight(limit)
		keep := o.Handler.Message
		o.Handler.Message = func(ctx context.Context, m fleet.Inbound) error {
			select {
			case <-busy:
				return keep(ctx, m)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	take(t, g.offline)
	phone := shared.sim.Phone(fresh())
	for i := range sent {
		if _, err := phone.SendText(t.Context(), n.pn, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	shared.log(t, sent, wasim.Query{Recipient: n.pn, Kind: wasim.KindMessage, Dir: wasim.DirOut, Type: "text"})
	testkit.Eventually(t, patience, func() error {
		if got := g.sock.Inflight(); got != limit+1 {
			return fmt.Errorf("%d stanzas are read and not handled, want %d", got, limit+1)
		}
		return nil
	})
	close(busy)
	for i := range sent {
		if m := take(t, g.messages); m.Text != fmt.Sprint(i) {
			t.Fatalf("message %d is %q", i, m.Text)
		}
	}
	n.settled()
	if got := g.sock.Inflight(); got != 0 {
		t.Errorf("%d stanzas are left unhandled in the end, want none", got)
	}
}
