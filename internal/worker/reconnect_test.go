package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/httpapi"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wasim"
)

// operator returns how an operator asks the API.
func (w *world) operator() (get func(path string) (status int, body string)) {
	w.t.Helper()
	keys := auth.New(auth.Options{Store: w.st, Bus: w.bus, Lookup: seal.NewLookup(seal.NewKey()), Log: testkit.Logger(w.t)})
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- keys.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("keys ended with %v", err)
		}
	})
	secret, _, err := keys.Create(w.t.Context(), auth.NewKey{Admin: true})
	if err != nil {
		w.t.Fatal(err)
	}
	api := httpapi.New(httpapi.Options{Store: w.st, Auth: keys, Bus: w.bus, Log: testkit.Logger(w.t)})
	return func(path string) (int, string) {
		r := httptest.NewRequestWithContext(w.t.Context(), http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer "+secret.Reveal())
		a := httptest.NewRecorder()
		api.ServeHTTP(a, r)
		return a.Code, a.Body.String()
	}
}

func (w *world) dials(s fleet.Session) int {
	return len(w.sim.Log(wasim.Query{Kind: wasim.KindDial, SessionID: string(s.ID)}))
}

func (w *world) want(s fleet.Session, d fleet.Desired) {
	w.t.Helper()
	if _, err := w.st.UpdateSession(w.t.Context(), s.Slug, store.SessionChange{Desired: &d}); err != nil {
		w.t.Fatal(err)
	}
}

func TestAStopCancelsTheConnectThatIsDue(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.net.SetDown("w1", true)
		w.sim.Drop(number1, 1)
		w.await("a wait of some seconds", func() bool { return time.Until(w.row(s.ID).RetryAt) > 5*time.Second })
		w.net.SetDown("w1", false)
		w.want(s, fleet.DesiredStopped)
		w.await("the stop", func() bool { return w.row(s.ID).LeaseOwner == "" })
		before := w.dials(s)
		w.sleep(3 * time.Minute)
		if n := w.dials(s) - before; n != 0 {
			t.Errorf("%d dials of a stopped session, want none", n)
		}
		w.want(s, fleet.DesiredRunning)
		w.await("a login", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected })
		w.sleep(3 * time.Minute)
		if n := w.dials(s) - before; n != 1 {
			t.Errorf("%d dials after the start, want one", n)
		}
	})
}

// After each last word of WhatsApp on a connection the session is not shown as connected for seconds
// longer, and comes back by itself unless the word was final.
func TestEveryLastWordOnAConnectionHasAStateWithinSeconds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		code := func(c string) func() { return func() { w.sim.StreamError(number1, 1, c) } }
		for _, tc := range []struct {
			name string
			say  func()
			back time.Duration // connected again within; 0 = not by itself
			want fleet.Observed
		}{
			{"a connection that breaks", func() { w.sim.Drop(number1, 1) }, 5 * time.Second, fleet.ObservedReconnecting},
			{"a server that restarts", code("503"), 5 * time.Second, fleet.ObservedReconnecting},
			{"a wish for a new connection", code("515"), 5 * time.Second, fleet.ObservedReconnecting},
			{"a token that can't be refreshed", code("413"), 5 * time.Second, fleet.ObservedReconnecting},
			{"an error nobody knows", code("599"), 5 * time.Second, fleet.ObservedReconnecting},
			{"another connection with the same keys", func() { w.sim.Replace(number1, 1) }, 40 * time.Second, fleet.ObservedConflict},
			{"a removal on the phone", func() { _ = w.sim.Phone(number1).Unlink(1) }, 0, fleet.ObservedLoggedOut},
		} {
			w.sleep(time.Minute) // the open before counts as stable
			was, from := w.row(s.ID).Generation, time.Now()
			seen := map[fleet.Observed]bool{}
			tc.say()
			var left, back time.Duration
			for limit := max(tc.back, 10*time.Second); time.Since(from) < limit && back == 0; w.sleep(100 * time.Millisecond) {
				r := w.row(s.ID)
				gone := r.Observed != fleet.ObservedConnected
				if gone {
					seen[r.Observed] = true
				}
				if (gone || r.Generation > was) && left == 0 {
					left = time.Since(from)
				}
				if left > 0 && !gone {
					back = time.Since(from)
				}
			}
			if tc.want == fleet.ObservedReconnecting { // the first try may follow at once
				seen[tc.want] = true
			}
			if left == 0 || left > 5*time.Second || !seen[tc.want] {
				t.Errorf("%s: shown as connected for %v, then %v, want %s within 5 s", tc.name, left, seen, tc.want)
			}
			if (back > 0) != (tc.back > 0) {
				t.Errorf("%s: connected again after %v, want within %v; %s", tc.name, back, tc.back, w.describe())
			}
		}
		if n := len(w.sim.Log(wasim.Query{Kind: wasim.KindPair})); n != 1 {
			t.Errorf("%d pairings, want the one of the start", n)
		}
	})
}

func TestALoopOfReconnectsIsSeenAndToldEveryFiveTries(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sleep(time.Minute)
		for range 10 {
			n := len(w.logins(number1))
			w.sim.Drop(number1, 1)
			w.await("the next login", func() bool { return len(w.logins(number1)) > n && w.row(s.ID).Observed == fleet.ObservedConnected })
		}
		if r := w.row(s.ID); r.Attempts != 10 || r.Reason != "disconnected" {
			t.Errorf("the row says %d attempts because of %q, want 10 because of disconnected", r.Attempts, r.Reason)
		}
		told := w.events(fleet.EventReconnectLoop)
		if len(told) != 2 || told[0].Data.Attempts != 5 || told[1].Data.Attempts != 10 || told[0].SessionID != s.ID || told[0].Data.Reason != "disconnected" {
			t.Errorf("session.reconnect_loop told %+v, want after 5 and 10 attempts", told)
		}
		w.sleep(2 * time.Minute)
		if r := w.row(s.ID); r.Attempts != 0 || r.Reason != "" || r.LastError != "" {
			t.Errorf("after a stable open the row says %d attempts, %q, %q, want a clean one", r.Attempts, r.Reason, r.LastError)
		}

		w.sim.SetFault(wasim.Scope{}, wasim.Fault{RefuseDials: true})
		w.sim.Drop(number1, 1)
		w.await("some attempts", func() bool { return w.row(s.ID).Attempts >= 5 })
		if _, body := w.operator()("/api/admin/sessions/" + string(s.Slug)); !strings.Contains(body, `"state":"reconnecting"`) ||
			!strings.Contains(body, `"attempts":`) || !strings.Contains(body, `"lastError":`) || !strings.Contains(body, `"retryAt":`) {
			t.Errorf("the API shows a looping session as %s, want its attempts, last error and next try", body)
		}
	})
}

func TestAKilledWorkersSessionsAreShownUnownedAndSkippedWithinSeconds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		s := w.paired(number1)
		if got := w.route(""); got != s.Slug {
			t.Errorf("Route = %q, want %q", got, s.Slug)
		}
		get := w.operator()
		p.crash()
		w.sleep(36 * time.Second)
		if _, body := get("/api/admin/sessions/" + string(s.Slug)); !strings.Contains(body, `"state":"unowned"`) || !strings.Contains(body, `"connected":false`) {
			t.Errorf("36 s after its worker was killed the session is shown as %s, want unowned", body)
		}
		if _, body := get("/api/admin/workers"); !strings.Contains(body, `"alive":false`) {
			t.Errorf("36 s after it was killed the worker is shown as %s, want not alive", body)
		}
		w.route("NONE_ELIGIBLE")
	})
}

func TestAskingForStatusDuringAStartChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		get := w.operator()
		p := w.start("w1")
		s := w.session()
		quit, done := make(chan struct{}), make(chan int)
		go func() {
			asked := 0
			defer func() { done <- asked }()
			for {
				select {
				case <-quit:
					return
				case <-time.After(20 * time.Millisecond):
				}
				for _, path := range []string{"", "/qr"} {
					if status, body := get("/api/admin/sessions/" + string(s.Slug) + path); status >= 500 {
						t.Errorf("GET …%s = %d %s", path, status, body)
					}
				}
				asked++
			}
		}()
		w.command(s.ID, fleet.CommandPair, `{"method":"qr"}`)
		w.await("a QR code", func() bool { return w.row(s.ID).Pairing.QR != "" })
		w.sleep(2 * time.Second)
		if err := w.sim.Phone(number1).ScanQR(t.Context(), w.row(s.ID).Pairing.QR); err != nil {
			t.Fatal(err)
		}
		connected := func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected && w.row(s.ID).Ever() }
		w.await("a login", connected)
		w.sleep(5 * time.Second) // the phone's first sync
		p.stop()
		w.start("w2")
		w.await("a login after a restart", func() bool { return connected() && w.row(s.ID).LeaseOwner == "w2/1" })
		w.sleep(2 * time.Second)
		close(quit)
		if asked := <-done; asked < 400 {
			t.Errorf("asked %d times, want 50 times a second", asked)
		}
		if n := len(w.logins(number1)); n != 2 {
			t.Errorf("%d logins, want one for each start", n)
		}
		if n := len(w.sim.Log(wasim.Query{Kind: wasim.KindPair})); n != 1 {
			t.Errorf("%d pairings, want one", n)
		}
	})
}

func TestAStoreThatIsUnreadableAtBootNeverPairs(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		a, b := w.paired(number1), w.paired(number2)
		p.stop()
		dials := w.dials(a) + w.dials(b)
		w2 := w.start("w2", func(o *Options) { o.Batch = 2 })
		w2.gate.failOnly("whatsmeow_device", errors.New("disk is being checked"))
		w.await("both unavailable", func() bool {
			return w.row(a.ID).Observed == fleet.ObservedUnavailable && w.row(b.ID).Observed == fleet.ObservedUnavailable
		})
		w.sleep(30 * time.Second)
		if n := w.dials(a) + w.dials(b) - dials; n != 0 {
			t.Errorf("%d dials without a login that can be read, want none", n)
		}
		w2.gate.fail(nil)
		for _, s := range []fleet.Session{a, b} {
			w.await("a login", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected })
			if r := w.row(s.ID); r.DeviceJID != s.DeviceJID {
				t.Errorf("the login of %s changed from %s to %s", s.Slug, s.DeviceJID, r.DeviceJID)
			}
		}
		if n := len(w.sim.Log(wasim.Query{Kind: wasim.KindPair})); n != 2 {
			t.Errorf("%d pairings, want the two of the start", n)
		}
	})
}

func TestABurstOfLogoutsIsOneAlertAndLeavesOtherSessionsAlone(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		var all []fleet.Session
		for i := range 5 {
			all = append(all, w.paired(fmt.Sprint(5511900000001+i)))
		}
		for i, s := range all[:3] {
			if err := w.sim.Phone(s.Phone).Unlink(1); err != nil {
				t.Fatal(err)
			}
			w.sleep(time.Duration(i) * time.Minute)
		}
		dials := make([]int, len(all))
		for i, s := range all {
			dials[i] = w.dials(s)
		}
		for range 6 { // as the scheduler looks
			if _, err := w.st.TellLogouts(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.sleep(15 * time.Second)
		}
		if got := w.events(fleet.EventFleetAlert); len(got) != 1 || got[0].Data.Sessions != 3 || got[0].Data.Of != 5 {
			t.Errorf("fleet.alert was told as %+v, want once, of 3 sessions in 5", got)
		}
		for i, s := range all {
			want := fleet.ObservedConnected
			if i < 3 {
				want = fleet.ObservedLoggedOut
			}
			if r := w.row(s.ID); r.Observed != want || w.dials(s) != dials[i] {
				t.Errorf("%s is %s after %d more dials, want %s and none", s.Slug, r.Observed, w.dials(s)-dials[i], want)
			}
		}
	})
}

// A logout in answer to a send moves nothing to another number: the frame may have arrived. The second
// one in answer to a send says that the number itself is the trouble.
func TestALogoutUponASendMovesNothingAndIsToldApart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s, other := w.paired(number1), w.paired(number2)
		w.sim.Phone(person1)
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{DropAcks: true})
		var sent []fleet.MessageID
		for i, want := range []string{fleet.ReasonAfterSend, fleet.ReasonUnhealthy} {
			id := w.send(s, person1, fmt.Sprint("hello ", i))
			sent = append(sent, id)
			w.await("a frame", func() bool { return len(w.frames(w.message(id).WAID)) > 0 })
			device := w.sim.Phone(number1).Devices()[0]
			if err := w.sim.Phone(number1).Unlink(device); err != nil {
				t.Fatal(err)
			}
			w.await("the logout", func() bool { return w.row(s.ID).Observed == fleet.ObservedLoggedOut })
			if got := w.row(s.ID).Reason; got != want {
				t.Errorf("logout %d upon a send is called %q, want %q", i+1, got, want)
			}
			if got := w.route(""); got != other.Slug {
				t.Errorf("Route = %q, want the other number %q", got, other.Slug)
			}
			w.sleep(2 * time.Minute)
			if r := w.row(s.ID); r.Observed != fleet.ObservedLoggedOut {
				t.Errorf("two minutes after the logout the session is %s, want logged_out", r.Observed)
			}
			if i == 0 {
				w.command(s.ID, fleet.CommandPair, `{"method":"qr"}`)
				w.await("a QR code", func() bool { return w.row(s.ID).Pairing.QR != "" })
				if err := w.sim.Phone(number1).ScanQR(t.Context(), w.row(s.ID).Pairing.QR); err != nil {
					t.Fatal(err)
				}
				w.await("a login", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected })
				w.sleep(20 * time.Second)
			}
		}
		for _, id := range sent {
			m := w.message(id)
			if m.SessionID != s.ID || m.Status == fleet.StatusFailed {
				t.Errorf("message %s is %s on %s, want unknown or settled on its own session", id, m.Status, m.SessionID)
			}
			for _, e := range w.frames(m.WAID) {
				if e.Session != number1 {
					t.Errorf("a frame of the message left from another number: %+v", e)
				}
			}
		}
		if got := w.texts(person1); len(got) != 2 {
			t.Errorf("the person sees %q, want both messages once", got)
		}
	})
}
