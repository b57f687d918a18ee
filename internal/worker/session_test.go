package worker

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/internal/wasim/memnet"
)

func TestPairingByPhoneCode(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.session()
		w.command(s.ID, fleet.CommandPair, `{"method":"code","phone":"`+number1+`"}`)
		w.await("a code", func() bool { return w.row(s.ID).Pairing.Code != "" })
		if err := w.sim.Phone(number1).EnterCode(t.Context(), w.row(s.ID).Pairing.Code); err != nil {
			t.Fatal(err)
		}
		w.await("a login", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected && w.row(s.ID).Ever() })
		if got := w.row(s.ID).Phone; got != number1 {
			t.Errorf("phone = %q, want %q", got, number1)
		}
	})
}

func TestTheQRIsRefreshedThenExpires(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.session()
		w.command(s.ID, fleet.CommandPair, `{"method":"qr"}`)
		seen := map[string]bool{}
		w.awaitFor(5*time.Minute, "expiry", func() bool {
			r := w.row(s.ID)
			if r.Pairing.QR != "" {
				seen[r.Pairing.QR] = true
				if r.Pairing.ExpiresAt.Before(time.Now().Add(-2 * time.Second)) {
					t.Fatalf("an expired code is still shown")
				}
			}
			return r.Observed == fleet.ObservedPairingExpired
		})
		if len(seen) < 5 {
			t.Errorf("%d codes were shown, want each of the six", len(seen))
		}
		for qr := range seen {
			if err := w.sim.Phone(number1).ScanQR(t.Context(), qr); err == nil {
				t.Errorf("an expired code could be scanned")
			}
		}
		if r := w.row(s.ID); r.Pairing.QR != "" || r.Phone != "" {
			t.Errorf("after expiry the row holds %+v", r.Pairing)
		}
		// A second press works.
		w.command(s.ID, fleet.CommandPair, `{"method":"qr"}`)
		w.await("a new code", func() bool { return w.row(s.ID).Pairing.QR != "" && !seen[w.row(s.ID).Pairing.QR] })
	})
}

func TestANumberInUseIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		w.paired(number1)
		s := w.session()
		w.command(s.ID, fleet.CommandPair, `{"method":"qr"}`)
		w.await("a code", func() bool { return w.row(s.ID).Pairing.QR != "" })
		_ = w.sim.Phone(number1).ScanQR(t.Context(), w.row(s.ID).Pairing.QR)
		w.await("the refusal", func() bool { return w.row(s.ID).Reason == "number_in_use" })
		if r := w.row(s.ID); r.CanLogin() || r.Phone != "" || r.Observed != fleet.ObservedNeedsPairing {
			t.Errorf("the refused session is %s with phone %q", r.Observed, r.Phone)
		}
	})
}

func TestAPairedSessionKeepsItsNumber(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		paired := s.PairedAt
		if err := w.sim.Phone(number1).Unlink(1); err != nil {
			t.Fatal(err)
		}
		w.await("logged out", func() bool { return w.row(s.ID).Observed == fleet.ObservedLoggedOut })
		w.command(s.ID, fleet.CommandPair, `{"method":"qr"}`)
		w.await("a code", func() bool { return w.row(s.ID).Pairing.QR != "" })
		_ = w.sim.Phone(number2).ScanQR(t.Context(), w.row(s.ID).Pairing.QR)
		w.await("the refusal", func() bool { return w.row(s.ID).Reason == "number_in_use" })
		w.sleep(10 * time.Minute)
		w.command(s.ID, fleet.CommandPair, `{"method":"qr"}`)
		w.await("a code", func() bool { return w.row(s.ID).Pairing.QR != "" })
		if err := w.sim.Phone(number1).ScanQR(t.Context(), w.row(s.ID).Pairing.QR); err != nil {
			t.Fatal(err)
		}
		w.await("a login", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected })
		if r := w.row(s.ID); !r.PairedAt.Equal(paired) {
			t.Errorf("a re-pair moved the first pairing from %v to %v", paired, r.PairedAt)
		}
	})
}

func TestEachRefusedLoginHasItsState(t *testing.T) {
	for code, want := range map[int]fleet.Observed{
		401: fleet.ObservedLoggedOut, 403: fleet.ObservedLocked, 406: fleet.ObservedBanned,
		402: fleet.ObservedTempBanned, 405: fleet.ObservedClientOutdated,
	} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				p := w.start("w1")
				s := w.paired(number1)
				w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{ConnectFailure: code, BanCode: 101, BanExpire: 4 * time.Minute})
				w.sim.Drop(number1, 1)
				w.await(string(want), func() bool { return w.row(s.ID).Observed == want })
				r := w.row(s.ID)
				if r.ReasonCode != code {
					t.Errorf("code = %d, want %d", r.ReasonCode, code)
				}
				told := w.events(fleet.EventSessionStatus)
				if last := told[len(told)-1].Data; last.Observed != want || last.WACode != code || last.Reason == "" {
					t.Errorf("the last event tells %+v, want %s with code %d and a reason", last, want, code)
				}
				if code == 405 {
					w.route("CLIENT_OUTDATED")
				} else {
					w.route("NONE_ELIGIBLE")
				}
				dials := len(w.sim.Log(wasim.Query{Kind: wasim.KindDial, SessionID: string(s.ID)}))
				wait := 2 * time.Minute
				if code == 405 {
					wait = 7 * time.Minute // a slow probe falls into it
				}
				w.sleep(wait)
				more := len(w.sim.Log(wasim.Query{Kind: wasim.KindDial, SessionID: string(s.ID)})) - dials
				limit := 0
				if code == 405 {
					limit = 2 // a slow probe
				}
				if more > limit {
					t.Errorf("%d dials in %v, want at most %d", more, wait, limit)
				}
				if code == 401 || code == 403 || code == 406 {
					if r := w.row(s.ID); r.RevokedAt.IsZero() || r.DeviceJID == "" {
						t.Errorf("the login is %q revoked %v, want kept and marked revoked", r.DeviceJID, r.RevokedAt)
					}
				}
				if code == 402 { // the ban's end is known to the next owner, too
					p.stop()
					w.start("w2")
					w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{})
					w.awaitFor(5*time.Minute, "a login after the ban", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected })
					if logins := w.logins(number1); logins[len(logins)-1].At.Before(r.Until) || time.Since(r.Until) > time.Minute {
						t.Errorf("the login came at %v, want soon after the ban's end %v", logins[len(logins)-1].At, r.Until)
					}
				}
			})
		})
	}
}

func TestReplacedBacksOffThenParksAsConflict(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sleep(2 * time.Minute)
		before := len(w.logins(number1))
		begun := time.Now()
		until := begun.Add(6 * time.Minute)
		kicked := before
		w.sim.Replace(number1, 1)
		for time.Now().Before(until) {
			w.sleep(200 * time.Millisecond)
			if n := len(w.logins(number1)); n > kicked {
				kicked = n
				w.sleep(200 * time.Millisecond)
				w.sim.Replace(number1, 1)
			}
		}
		again := w.logins(number1)[before:]
		if len(again) > 5 {
			t.Errorf("%d logins against an outside copy, want at most 5", len(again))
		}
		if gap := again[0].At.Sub(begun); gap < 20*time.Second {
			t.Errorf("the first login came %v after the first kick, want about half a minute", gap)
		}
		if r := w.row(s.ID); r.Observed != fleet.ObservedConflict || !r.RetryAt.IsZero() {
			t.Errorf("session is %s, next try %v, want conflict and none", r.Observed, r.RetryAt)
		}
		conflicts := 0
		for _, o := range w.statuses() {
			if o == fleet.ObservedConflict {
				conflicts++
			}
		}
		if conflicts != 1 {
			t.Errorf("conflict was told %d times, want once", conflicts)
		}
		if got := w.events(fleet.EventSessionConflict); len(got) != 1 || got[0].Data.Observed != fleet.ObservedConflict || got[0].Data.Reason != "replaced" {
			t.Errorf("session.conflict was told as %+v, want once, when it was given up", got)
		}
		w.command(s.ID, fleet.CommandConnect, `{}`)
		w.await("a login on request", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected })
	})
}

func TestAShortDropIsToldToNobodyALongOneOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1)
		w.sleep(2 * time.Minute)
		before := len(w.statuses())

		w.net.SetDown("w1", true)
		w.sim.Drop(number1, 1)
		id := w.send(s, person1, "during the drop")
		w.sleep(3 * time.Second)
		w.net.SetDown("w1", false)
		w.awaitStatus(id, fleet.StatusDelivered)
		w.sleep(time.Minute)
		if got := w.statuses()[before:]; len(got) != 0 {
			t.Errorf("a short drop was told: %v", got)
		}

		w.net.SetDown("w1", true)
		w.sim.Drop(number1, 1)
		w.sleep(time.Minute)
		w.net.SetDown("w1", false)
		w.await("a login", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected })
		w.sleep(2 * time.Minute)
		if got := w.statuses()[before:]; fmt.Sprint(got) != "[reconnecting connected]" {
			t.Errorf("a long drop was told as %v, want one down and one up", got)
		}
	})
}

func TestNetworkErrorsAreRetriedForEverWithACap(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.SetFault(wasim.Scope{}, wasim.Fault{RefuseDials: true})
		w.sim.Drop(number1, 1)
		from := len(w.sim.Log(wasim.Query{Kind: wasim.KindDial}))
		w.sleep(10 * time.Minute)
		dials := len(w.sim.Log(wasim.Query{Kind: wasim.KindDial})) - from
		if dials < 8 || dials > 30 {
			t.Errorf("%d dials in ten minutes, want a backoff with a cap of a minute", dials)
		}
		if r := w.row(s.ID); r.Attempts < 5 || r.LastError == "" {
			t.Errorf("the row says attempts %d, last error %q", r.Attempts, r.LastError)
		}
		w.sim.SetFault(wasim.Scope{}, wasim.Fault{})
		w.awaitFor(62*time.Second, "a login within one cap", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected })
	})
}

func TestLoginsSurviveARestart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		a, b := w.paired(number1), w.paired(number2)
		p.stop()
		w.start("w2")
		for _, s := range []fleet.Session{a, b} {
			w.await("a login", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected })
		}
		if n := len(w.sim.Log(wasim.Query{Kind: wasim.KindPair})); n != 2 {
			t.Errorf("%d pairings, want the two of the start", n)
		}
	})
}

// A store that can't be read is never taken for a lost login.
func TestAnUnreadableStoreNeverPairs(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		s := w.paired(number1)
		p.gate.fail(errors.New("database is away"))
		w.sim.Drop(number1, 1)
		w.sleep(5 * time.Minute)
		p.gate.fail(nil)
		w.awaitFor(3*time.Minute, "a login", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected })
		if n := len(w.sim.Log(wasim.Query{Kind: wasim.KindPair})); n != 1 {
			t.Errorf("%d pairings, want one", n)
		}
		if r := w.row(s.ID); r.DeviceJID != s.DeviceJID {
			t.Errorf("the login changed from %s to %s", s.DeviceJID, r.DeviceJID)
		}
	})
}

func TestAWorkerThatStartsWhileTheDatabaseIsAwayRegistersLater(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		away := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
		p := w.start("w1", func(*Options) { w.procs[0].gate.fail(away) })
		w.sleep(15 * time.Second)
		p.gate.fail(nil)
		w.paired(number1)
		workers, err := w.st.Workers(t.Context())
		if err != nil || len(workers) != 1 || workers[0].Owner != "w1/1" {
			t.Errorf("Workers = %+v, %v, want w1/1", workers, err)
		}
	})
}

func TestAStoppedSessionStaysStopped(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		s := w.paired(number1)
		stopped, running := fleet.DesiredStopped, fleet.DesiredRunning
		if _, err := w.st.UpdateSession(t.Context(), s.Slug, store.SessionChange{Desired: &stopped}); err != nil {
			t.Fatal(err)
		}
		w.await("the socket to close", func() bool { return w.row(s.ID).LeaseOwner == "" })
		logins := len(w.logins(number1))
		p.stop()
		w2 := w.start("w2")
		w.sleep(2 * time.Minute)
		w2.crash()
		w.start("w3")
		w.sleep(2 * time.Minute)
		if n := len(w.logins(number1)); n != logins {
			t.Errorf("a stopped session logged in %d times after a restart and a takeover", n-logins)
		}
		if _, err := w.st.UpdateSession(t.Context(), s.Slug, store.SessionChange{Desired: &running}); err != nil {
			t.Fatal(err)
		}
		w.await("a login", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected })
	})
}

func TestAGracefulStopHandsOverWithoutWaitingForTheTTL(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		s := w.paired(number1)
		w.start("w2")
		w.sleep(time.Minute)
		before := len(w.statuses())
		from := time.Now()
		p.stop()
		w.await("the new owner", func() bool {
			r := w.row(s.ID)
			return r.LeaseOwner == "w2/1" && r.Observed == fleet.ObservedConnected
		})
		if d := time.Since(from); d > 5*time.Second {
			t.Errorf("the hand-over took %v, want no wait for the TTL", d)
		}
		if got := w.statuses()[before:]; len(got) != 0 {
			t.Errorf("a hand-over was told as %v", got)
		}
		if r := w.row(s.ID); r.LeaseEpoch != 2 {
			t.Errorf("epoch = %d, want exactly one more", r.LeaseEpoch)
		}
	})
}

func TestAKilledWorkersSessionsAreTakenAfterTheTTL(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		a, b := w.paired(number1), w.paired(number2)
		w.start("w2")
		w.sleep(2 * time.Minute)
		for _, s := range []fleet.Session{a, b} {
			if r := w.row(s.ID); r.LeaseOwner != "w1/1" || r.LeaseEpoch != 1 {
				t.Fatalf("a second worker changed a living lease: owner %s epoch %d", r.LeaseOwner, r.LeaseEpoch)
			}
		}
		from := time.Now()
		p.crash()
		for _, s := range []fleet.Session{a, b} {
			w.await("the new owner", func() bool {
				r := w.row(s.ID)
				return r.LeaseOwner == "w2/1" && r.Observed == fleet.ObservedConnected && r.LeaseEpoch == 2
			})
		}
		if d := time.Since(from); d < 15*time.Second || d > 40*time.Second {
			t.Errorf("the takeover took %v, want about the TTL", d)
		}
	})
}

// An idle owner that lost its lease must not log in again: a login writes nothing that a fence could stop.
func TestAnIdleStaleOwnerNeverLogsInAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p1 := w.start("w1")
		s := w.paired(number1)
		p1.gate.freeze()
		w.net.Each("w1", func(l *memnet.Link) { l.Hold(true) })
		w.start("w2")
		w.await("a takeover", func() bool {
			return w.row(s.ID).LeaseOwner == "w2/1" && w.row(s.ID).Observed == fleet.ObservedConnected
		})
		logins := len(w.logins(number1))
		w.net.Each("w1", func(l *memnet.Link) { l.Reset() })
		p1.gate.open()
		w.sleep(4 * time.Minute)
		if got := w.logins(number1)[logins:]; len(got) != 0 {
			t.Errorf("logins after the takeover: %+v", got)
		}
		if r := w.row(s.ID); r.Observed != fleet.ObservedConnected || r.LeaseOwner != "w2/1" {
			t.Errorf("the new owner is %s under %s", r.Observed, r.LeaseOwner)
		}
	})
}

func TestFiftyConnectsAreOneLogin(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		s := w.paired(number1)
		p.stop()
		before := len(w.logins(number1))
		for range 50 {
			w.command(s.ID, fleet.CommandConnect, `{}`)
		}
		w.start("w2")
		w.await("a login", func() bool { return w.row(s.ID).Observed == fleet.ObservedConnected })
		w.sleep(10 * time.Second)
		if n := len(w.logins(number1)) - before; n != 1 {
			t.Errorf("%d logins, want one", n)
		}
	})
}

func TestACommandWhoseSocketEndsFailsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1) // exists
		w.sim.SetFault(wasim.Scope{Session: number1}, wasim.Fault{DropAcks: true})
		id := w.send(s, person1, "hello")
		w.await("a frame that holds the socket", func() bool { return len(w.frames(w.message(id).WAID)) == 1 })
		read := w.command(s.ID, fleet.CommandRead, `{"inboundId":"in_1"}`)
		status := func() fleet.CommandStatus {
			c, err := w.st.GetCommand(t.Context(), read)
			if err != nil {
				t.Fatal(err)
			}
			return c.Status
		}
		w.await("the command to be claimed", func() bool { return status() == fleet.CommandRunning })
		w.net.Each("w1", func(l *memnet.Link) { l.Reset() })
		w.await("the command's end", func() bool { return status() == fleet.CommandFailed })
	})
}

func TestLogoutUnlinksAndNeverPairsByItself(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := w.start("w1")
		s := w.paired(number1)
		id := w.command(s.ID, fleet.CommandLogout, `{}`)
		w.await("logged out", func() bool { return w.row(s.ID).Observed == fleet.ObservedLoggedOut })
		w.await("the command's end", func() bool {
			c, err := w.st.GetCommand(t.Context(), id)
			return err == nil && c.Status == fleet.CommandDone
		})
		if n := len(w.sim.Phone(number1).Devices()); n != 0 {
			t.Errorf("the phone still lists %d linked devices", n)
		}
		p.stop()
		w.start("w2")
		w.sleep(3 * time.Minute)
		if r := w.row(s.ID); r.Observed != fleet.ObservedLoggedOut || r.Pairing.QR != "" {
			t.Errorf("after a restart the session is %s", r.Observed)
		}
	})
}

func TestADeletedSessionIsUnlinkedAndFreesItsNumber(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		if _, err := w.st.DeleteSession(t.Context(), s.Slug); err != nil {
			t.Fatal(err)
		}
		w.await("the link to end", func() bool { return len(w.sim.Phone(number1).Devices()) == 0 })
		again := w.paired(number1)
		if again.Slug == s.Slug {
			t.Errorf("the deleted session's slug %s was used again", s.Slug)
		}
	})
}
