package wasim

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/types/events"

	"github.com/wafleet/wafleet/internal/wasim/memnet"
)

// inBubble runs a test on simulated time: a server over an in-memory network, a client that is paired with it.
// Nothing may be left behind when it returns, or synctest fails: this also proves that Close joins everything.
func inBubble(t *testing.T, pn string, f func(t *testing.T, w *world, n *memnet.Net, c *client)) {
	t.Helper()
	defer forgiveUpstreamLeak(t)
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New()
		w := serve(t, n)
		w.patience = time.Hour
		c := w.newClientOver(t, pn, n.Dialer("client"))
		defer func() {
			c.Disconnect() // also ends its reconnecting
			n.Each("client", (*memnet.Link).Reset)
			c.http.CloseIdleConnections()
			w.stop(t)
			time.Sleep(10 * time.Minute) // free: whatsmeow's idle loops and close timers end
		}()
		c.pair()
		f(t, w, n, c)
	})
}

// forgiveUpstreamLeak lets a bubble end although whatsmeow's read pump hangs: unmended, it waits for ever for a
// reader when a frame comes in while the client disconnects. Anything else that was left behind still fails.
func forgiveUpstreamLeak(t *testing.T) {
	t.Helper()
	r := recover()
	if r == nil {
		return
	}
	buf := make([]byte, 1<<20)
	stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	left := slices.DeleteFunc(stacks, func(s string) bool {
		head, _, _ := strings.Cut(s, "\n")
		return !strings.Contains(head, "synctest bubble") || strings.Contains(s, "FrameSocket).readPump")
	})
	if !strings.Contains(fmt.Sprint(r), "blocked goroutines remain") || len(left) > 0 {
		panic(r)
	}
	t.Log("whatsmeow's read pump was left behind, as it does unmended")
}

func TestUnansweredPingsMakeTheClientReconnectWhileMessagesStillFlow(t *testing.T) {
	const pn, contact = "5511900000701", "5511900000702"
	inBubble(t, pn, func(t *testing.T, w *world, _ *memnet.Net, c *client) {
		phone := w.srv.Phone(contact)
		w.srv.SetFault(Scope{Session: pn}, Fault{MutePings: true})
		c.mustText("FF01", pnJID(contact), "still works")
		phone.awaitID(t, "FF01")
		start := time.Now()
		awaitFor[*events.KeepAliveTimeout](c, 5*time.Minute)
		relogin := w.awaitLog(t, 2, Query{Session: pn, Kind: KindLogin})[1] // whatsmeow tells nobody that it reconnects
		if took := relogin.At.Sub(start); took < 3*time.Minute {
			t.Errorf("reconnected after %v without an answer to a ping, want more than 3 minutes", took)
		}
	})
}

func TestALostAckCostsTheClientItsWholeTimeout(t *testing.T) {
	const pn, contact = "5511900000703", "5511900000704"
	inBubble(t, pn, func(t *testing.T, w *world, _ *memnet.Net, c *client) {
		w.srv.Phone(contact)
		c.mustText("FF02", pnJID(contact), "has keys now")
		w.srv.SetFault(Scope{Session: pn}, Fault{DropNextAcks: 1})
		start := time.Now()
		if err := c.textWithin(75*time.Second, "FF03", contact); !errors.Is(err, whatsmeow.ErrMessageTimedOut) && err == nil {
			t.Errorf("SendMessage = %v, want a timeout", err)
		}
		if took := time.Since(start); took < 20*time.Second || took > 75*time.Second {
			t.Errorf("SendMessage gave up after %v", took)
		}
	})
}

func TestTheServerClosesAfterALastStanzaIfTheClientDoesNot(t *testing.T) {
	const pn = "5511900000705"
	inBubble(t, pn, func(t *testing.T, w *world, _ *memnet.Net, c *client) {
		start := time.Now()
		w.srv.Replace(pn, 1)
		await[*events.StreamReplaced](c, nil)
		w.awaitLog(t, 1, Query{Session: pn, Kind: KindClose})
		if took := time.Since(start); took != lastWait {
			t.Errorf("closed after %v, want %v", took, lastWait)
		}
		if es := w.srv.Log(Query{Session: pn, Kind: KindClose}); es[0].Type != "replaced" {
			t.Errorf("close in the log = %+v, want replaced", es[0])
		}
	})
}

func TestRefusedDialsAreMatchedByTheNameOfAnInMemoryDialer(t *testing.T) {
	const pn = "5511900000706"
	inBubble(t, pn, func(t *testing.T, w *world, n *memnet.Net, c *client) {
		w.srv.SetFault(Scope{Session: pn}, Fault{RefuseDials: true})
		start := time.Now()
		n.Each("client", (*memnet.Link).Reset)
		w.awaitEntry(t, Query{Kind: KindDial}, func(e Entry) bool { return e.Error == 1 && e.Session == "" })
		time.Sleep(15 * time.Second)
		w.srv.SetFault(Scope{Session: pn}, Fault{})
		awaitFor[*events.Disconnected](c, time.Minute)
		before := len(w.srv.Log(Query{Kind: KindLogin}))
		w.awaitEntry(t, Query{Session: pn, Kind: KindLogin}, func(e Entry) bool { return e.At.Sub(start) >= 15*time.Second })
		if before > 3 {
			t.Errorf("%d logins while dials were refused", before)
		}
	})
}

func TestCloseEndsEverythingWhileClientsAreConnectedAndPhonesWork(t *testing.T) {
	const pn, contact = "5511900000707", "5511900000708"
	inBubble(t, pn, func(t *testing.T, w *world, _ *memnet.Net, c *client) {
		w.srv.Phone(contact).AutoReply(func(r Received) string { return "re " + r.Text })
		c.mustText("FF04", pnJID(contact), "goodbye")
		w.srv.Close()
		w.srv.Close()
		if st := w.srv.Stats(); st.Connections != 0 || st.Online != 0 {
			t.Errorf("after Close: %+v, want nobody connected", st)
		}
		if es := w.srv.Log(Query{Session: pn, Kind: KindClose}); len(es) != 1 {
			t.Errorf("closes in the log after Close returned = %+v, want one", es)
		}
	})
}

// awaitFor is await with an own limit, for simulated time.
func awaitFor[T any](c *client, limit time.Duration) T {
	c.t.Helper()
	end := time.Now().Add(limit)
	for {
		for i, e := range c.kept {
			if v, is := e.(T); is {
				c.kept = append(c.kept[:i], c.kept[i+1:]...)
				return v
			}
		}
		select {
		case e := <-c.events:
			c.kept = append(c.kept, e)
		case <-time.After(time.Until(end)):
			var none T
			c.t.Fatalf("no %T within %v", none, limit)
			return none
		}
	}
}
