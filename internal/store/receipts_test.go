package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

var (
	noon = time.UnixMilli(1_700_000_000_000).UTC()
	one  = noon.Add(time.Hour)
)

func TestReceiptsOnlyMoveForward(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		for _, tc := range []struct {
			name                    string
			receipts                []fleet.Status // at noon, one, two o'clock
			want                    fleet.Status
			delivered, read, played time.Time
			events                  []string
		}{
			{"in order", []fleet.Status{fleet.StatusDelivered, fleet.StatusRead}, fleet.StatusRead, noon, one, time.Time{}, []string{"sent/sent", "delivered/sent", "read/sent"}},
			{"a late delivery does not undo the read", []fleet.Status{fleet.StatusRead, fleet.StatusDelivered}, fleet.StatusRead, noon, noon, time.Time{}, []string{"sent/sent", "read/sent"}},
			{"read implies delivered", []fleet.Status{fleet.StatusRead}, fleet.StatusRead, noon, noon, time.Time{}, []string{"sent/sent", "read/sent"}},
			{"played comes after read", []fleet.Status{fleet.StatusDelivered, fleet.StatusPlayed, fleet.StatusRead}, fleet.StatusPlayed, noon, time.Time{}, one, []string{"sent/sent", "delivered/sent", "played/sent"}},
			{"a repeated receipt changes nothing", []fleet.Status{fleet.StatusDelivered, fleet.StatusDelivered}, fleet.StatusDelivered, noon, time.Time{}, time.Time{}, []string{"sent/sent", "delivered/sent"}},
		} {
			t.Run(tc.name, func(t *testing.T) {
				l.t = t
				m := l.accept("5511900000001", tc.name)
				l.send(m, fleet.OutcomeSent)
				for i, status := range tc.receipts {
					l.receipt(status, noon.Add(time.Duration(i)*time.Hour), m.WAID)
				}
				got := l.wantState(m.ID, tc.want, fleet.OutcomeSent)
				if !got.DeliveredAt.Equal(tc.delivered) || !got.ReadAt.Equal(tc.read) || !got.PlayedAt.Equal(tc.played) {
					t.Errorf("delivered %v, read %v, played %v, want %v, %v, %v", got.DeliveredAt, got.ReadAt, got.PlayedAt, tc.delivered, tc.read, tc.played)
				}
				l.wantEvents(m.ID, tc.events...)
			})
		}
	})
}

func TestReceiptBeforeTheAckIsKept(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		for _, outcome := range []fleet.Outcome{fleet.OutcomeSent, fleet.OutcomeUnknown, fleet.OutcomeNothing, fleet.OutcomeRefused} {
			m := l.accept("5511900000001", string(outcome))
			l.claim(m.ID, fleet.AttemptSend)
			if changed := l.receipt(fleet.StatusDelivered, noon, m.WAID); !slices.Equal(changed, []fleet.MessageID{m.ID}) {
				t.Errorf("ApplyReceipt changed %v, want the message in flight", changed)
			}
			l.record(store.Result{ID: m.ID, Outcome: outcome, At: noon, RetryIn: time.Millisecond})
			got := l.wantState(m.ID, fleet.StatusDelivered, fleet.OutcomeSent)
			if !got.SentAt.Equal(noon) {
				t.Errorf("sent at %v, want the receipt's time: it proves that the frame arrived", got.SentAt)
			}
			l.wantAttempts(m.ID, "send/"+string(outcome)+"/0")
			l.wantEvents(m.ID, "sent/sent", "delivered/sent")
			l.wantNext(nil)
		}
	})
}

func TestAckAndReceiptAtOnceEndAsDelivered(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		for i := range 20 {
			m := l.accept("5511900000001", fmt.Sprint(i))
			l.claim(m.ID, fleet.AttemptSend)
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := s.ApplyReceipt(t.Context(), l.term, fleet.Receipt{WAIDs: []string{m.WAID}, Status: fleet.StatusDelivered}); err != nil {
					t.Errorf("ApplyReceipt = %v", err)
				}
			})
			l.record(store.Result{ID: m.ID, Outcome: fleet.OutcomeSent})
			wg.Wait()
			if got := l.wantState(m.ID, fleet.StatusDelivered, fleet.OutcomeSent); got.SentAt.IsZero() || got.DeliveredAt.IsZero() {
				t.Errorf("sent at %v, delivered at %v, want both", got.SentAt, got.DeliveredAt)
			}
		}
	})
}

func TestReceiptSettlesAnUnknownOutcome(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		m, next := l.accept("5511900000001", "a"), l.accept("5511900000001", "b")
		l.send(m, fleet.OutcomeUnknown)
		l.wantNext(nil)
		l.receipt(fleet.StatusDelivered, time.Time{}, m.WAID)
		l.wantState(m.ID, fleet.StatusDelivered, fleet.OutcomeSent)
		l.wantNext(&next)
		l.send(next, fleet.OutcomeSent)
		time.Sleep(time.Hour)
		l.wantNext(nil) // no repeat is left over
		if n, err := s.TellUnknown(t.Context(), l.term); n != 0 || err != nil {
			t.Errorf("TellUnknown = %d, %v, want 0", n, err)
		}
		if open, err := s.HasUnknown(t.Context(), l.sess.ID); open || err != nil {
			t.Errorf("HasUnknown = %v, %v, want false", open, err)
		}
	})
}

func TestOneReceiptRaisesManyAndIgnoresStrangers(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l, other := newLane(t, s, "org-a"), newLane(t, s, "org-b")
		a, b, foreign := l.accept("5511900000001", "a"), l.accept("5511900000001", "b"), other.accept("5511900000001", "foreign")
		for _, m := range []fleet.Message{a, b} {
			l.send(m, fleet.OutcomeSent)
		}
		other.send(foreign, fleet.OutcomeSent)
		changed := l.receipt(fleet.StatusRead, noon, a.WAID, "3EB0UNKNOWN", b.WAID, foreign.WAID)
		if !slices.Equal(changed, []fleet.MessageID{a.ID, b.ID}) {
			t.Errorf("ApplyReceipt changed %v, want both of the session's messages in order", changed)
		}
		other.wantState(foreign.ID, fleet.StatusSent, fleet.OutcomeSent)
		if _, err := s.ApplyReceipt(t.Context(), l.term, fleet.Receipt{WAIDs: []string{a.WAID}, Status: fleet.StatusSent}); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("ApplyReceipt(sent) = %v, want ErrInvalid: that is no receipt", err)
		}
	})
}

func TestRetryReceiptIsAnsweredByAnyLaterOwnerForThreeDays(t *testing.T) {
	url := storetest.SQLiteURL(t)
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, url)
		l := newLane(t, s, "org-a")
		m, queued := l.accept("5511900000001", "a"), l.accept("5511900000002", "b")
		l.send(m, fleet.OutcomeSent)
		l.takeOver("worker-2/boot")
		payload, err := s.PayloadForRetry(t.Context(), l.sess.ID, m.WAID)
		if want := []byte("frame of " + m.ID); err != nil || !bytes.Equal(payload, want) {
			t.Errorf("PayloadForRetry = %q, %v, want %q", payload, err, want)
		}
		for _, waID := range []string{queued.WAID, "3EB0UNKNOWN"} {
			if payload, err := s.PayloadForRetry(t.Context(), l.sess.ID, waID); !errors.Is(err, fleet.ErrNotFound) {
				t.Errorf("PayloadForRetry(%s) = %q, %v, want ErrNotFound", waID, payload, err)
			}
		}
		time.Sleep(fleet.PayloadRetention)
		if payload, err := s.PayloadForRetry(t.Context(), l.sess.ID, m.WAID); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("PayloadForRetry after 72 h = %q, %v, want ErrNotFound", payload, err)
		}
	})
}

func TestRetryFramesAreCountedAndRefusedAboveFive(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		m := l.accept("5511900000001", "a")
		l.send(m, fleet.OutcomeSent)
		var wg sync.WaitGroup
		var mu sync.Mutex
		allowed := 0
		for range 8 {
			wg.Go(func() {
				ok, err := s.CountRetryFrame(t.Context(), l.term, m.WAID)
				if err != nil {
					t.Errorf("CountRetryFrame = %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				if ok {
					allowed++
				}
			})
		}
		wg.Wait()
		if allowed != fleet.MaxRetryFrames {
			t.Errorf("%d retry frames allowed, want %d", allowed, fleet.MaxRetryFrames)
		}
		l.wantAttempts(m.ID, "send/sent/7", "retry//0", "retry//0", "retry//0", "retry//0", "retry//0")
		if got := l.get(m.ID); got.Attempts != 6 {
			t.Errorf("attempts = %d, want every frame: 6", got.Attempts)
		}
		if ok, err := s.CountRetryFrame(t.Context(), l.term, "3EB0UNKNOWN"); ok || err != nil {
			t.Errorf("CountRetryFrame of an unknown id = %v, %v, want false", ok, err)
		}
	})
}

// Whatever happens to a message, in whatever order and however often: it moves only as
// Status.CanBecome says, and each move that consumers see is told once.
func TestStatusMachineOnlyMovesForward(t *testing.T) {
	s := storetest.SQLite(t)
	l := newLane(t, s, "org-a")
	rapid.Check(t, func(rt *rapid.T) {
		m := l.accept("5511900000001", "a")
		was := m
		step := func(name string, do func() error) {
			if err := do(); err != nil && !errors.Is(err, fleet.ErrConflict) {
				rt.Fatalf("%s: %v", name, err)
			}
			is := l.get(m.ID)
			if is.Status != was.Status && !was.Status.CanBecome(is.Status) {
				rt.Fatalf("%s moved the message from %s to %s", name, was.Status, is.Status)
			}
			if is.WAID != m.WAID || is.SessionID != m.SessionID {
				rt.Fatalf("%s changed the WhatsApp id or the session", name)
			}
			if is.Repeats > len(fleet.RepeatAfter) {
				rt.Fatalf("%s: repeated %d times", name, is.Repeats)
			}
			if was.Status == fleet.StatusSending && is.Status == fleet.StatusFailed && was.Outcome == fleet.OutcomeUnknown {
				rt.Fatalf("%s folded an unknown outcome into failed", name)
			}
			if was.Outcome == fleet.OutcomeUnknown && is.Status == fleet.StatusQueued {
				rt.Fatalf("%s queued a message again that may have left", name)
			}
			was = is
		}
		receipt := func(status fleet.Status) func(*rapid.T) {
			return func(*rapid.T) {
				step("receipt "+string(status), func() error {
					_, err := s.ApplyReceipt(t.Context(), l.term, fleet.Receipt{WAIDs: []string{m.WAID}, Status: status})
					return err
				})
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"claim": func(*rapid.T) {
				step("claim", func() error { _, err := l.tryClaim(l.term, m.ID, fleet.AttemptSend); return err })
			},
			"repeat": func(*rapid.T) {
				step("repeat", func() error { _, err := l.tryClaim(l.term, m.ID, fleet.AttemptRepeat); return err })
			},
			"record": func(rt *rapid.T) {
				outcome := rapid.SampledFrom([]fleet.Outcome{fleet.OutcomeSent, fleet.OutcomeRefused, fleet.OutcomeNothing, fleet.OutcomeUnknown}).Draw(rt, "outcome")
				step("record "+string(outcome), func() error {
					return s.RecordOutcome(t.Context(), l.term, store.Result{ID: m.ID, Outcome: outcome})
				})
			},
			"delivered": receipt(fleet.StatusDelivered),
			"read":      receipt(fleet.StatusRead),
			"played":    receipt(fleet.StatusPlayed),
			"cancel": func(*rapid.T) {
				step("cancel", func() error { _, err := s.CancelMessage(t.Context(), "org-a", m.ID); return err })
			},
			"expire":   func(*rapid.T) { step("expire", func() error { _, err := s.ExpireQueued(t.Context(), 10); return err }) },
			"takeover": func(*rapid.T) { l.takeOver("worker/" + string(fleet.NewKeyID())) },
			"adopt": func(*rapid.T) {
				step("adopt", func() error { _, err := s.AdoptUnknown(t.Context(), l.term); return err })
			},
			"tell": func(*rapid.T) {
				step("tell", func() error { _, err := s.TellUnknown(t.Context(), l.term); return err })
			},
			"close": func(*rapid.T) {
				step("close", func() error { _, err := s.CloseOwnUnconfirmed(t.Context(), l.term); return err })
			},
			"time": func(rt *rapid.T) {
				age(t, s, time.Duration(rapid.SampledFrom([]int{15, 60, 300, 90_000}).Draw(rt, "seconds"))*time.Second, m.ID)
			},
		})
		seen := map[string]bool{}
		for _, e := range l.events(m.ID) {
			if seen[e] {
				rt.Fatalf("event %s written twice: %v", e, l.events(m.ID))
			}
			seen[e] = true
		}
	})
}
