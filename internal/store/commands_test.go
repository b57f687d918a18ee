package store_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// commandSession makes a session with a lease and returns the term that holds it.
func commandSession(t *testing.T, s *store.Store, slug string) fleet.Term {
	t.Helper()
	term := fleet.Term{SessionID: fleet.NewSessionID(), Owner: "w/1", Epoch: 1}
	mustSQL(t, s, `INSERT INTO organizations (id, label, strategy, created_at) VALUES ('org-cmd', 'x', 'weighted', 1) ON CONFLICT (id) DO NOTHING`)
	mustSQL(t, s, `INSERT INTO sessions (id, shard_key, slug, org_id, position, desired, observed, observed_since, created_at)
		VALUES ($1, 0, $2, 'org-cmd', 1, 'running', 'connected', 1, 1)`, term.SessionID, slug)
	mustSQL(t, s, `INSERT INTO leases (session_id, owner, epoch, expires_at) VALUES ($1, $2, 1, $3)`,
		term.SessionID, term.Owner, time.Now().Add(time.Minute).UnixMilli())
	return term
}

func mustSQL(t *testing.T, s *store.Store, q string, args ...any) {
	t.Helper()
	if _, err := s.DB().Exec(t.Context(), q, args...); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
}

// takeOver hands the session to the next owner.
func nextCommandTerm(t *testing.T, s *store.Store, term fleet.Term) fleet.Term {
	t.Helper()
	next := fleet.Term{SessionID: term.SessionID, Owner: "w/2", Epoch: term.Epoch + 1}
	mustSQL(t, s, `UPDATE leases SET owner=$2, epoch=$3 WHERE session_id=$1`, next.SessionID, next.Owner, next.Epoch)
	return next
}

func insertCmd(t *testing.T, s *store.Store, c fleet.Command) fleet.Command {
	t.Helper()
	out, err := s.InsertCommand(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func claimCommands(t *testing.T, s *store.Store, term fleet.Term, limit int) []fleet.Command {
	t.Helper()
	got, err := s.ClaimCommands(t.Context(), term, fleet.ClassControl, limit)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func commandIDs(cs []fleet.Command) []fleet.CommandID {
	var out []fleet.CommandID
	for _, c := range cs {
		out = append(out, c.ID)
	}
	return out
}

func TestACommandIsReadBackAsItWasStored(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := commandSession(t, s, "a-01")
		got := insertCmd(t, s, fleet.Command{SessionID: term.SessionID, Kind: fleet.CommandPair, Payload: `{"method":"qr"}`})
		want := fleet.Command{SessionID: term.SessionID, Class: fleet.ClassControl, Kind: fleet.CommandPair, Payload: `{"method":"qr"}`, Status: fleet.CommandPending}
		if d := cmp.Diff(want, got, cmpopts.IgnoreFields(fleet.Command{}, "ID", "N", "CreatedAt", "ExpiresAt")); d != "" {
			t.Errorf("InsertCommand (-want +got):\n%s", d)
		}
		if ttl := got.ExpiresAt.Sub(got.CreatedAt); ttl != store.DefaultCommandTTL {
			t.Errorf("the command lives %v, want %v", ttl, store.DefaultCommandTTL)
		}
		read, err := s.GetCommand(t.Context(), got.ID)
		if d := cmp.Diff(got, read); err != nil || d != "" {
			t.Errorf("GetCommand = %v (-want +got):\n%s", err, d)
		}
		if _, err := s.GetCommand(t.Context(), ""); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("GetCommand of a blank id = %v, want ErrNotFound", err)
		}
	})
}

func TestACommandForAStoppedSessionFailsAtOnceExceptConnect(t *testing.T) {
	for _, tc := range []struct {
		name, desired, kind string
		wantCode            string
		wantDesired         string
	}{
		{"a running session takes any", "running", fleet.CommandLogout, "", "running"},
		{"a stopped one refuses", "stopped", fleet.CommandLogout, "SESSION_STOPPED", "stopped"},
		{"a stopped one refuses to pair", "stopped", fleet.CommandPair, "SESSION_STOPPED", "stopped"},
		{"connect makes a stopped one wanted again", "stopped", fleet.CommandConnect, "", "running"},
		{"a deleted one stays deleted", "deleted", fleet.CommandConnect, "SESSION_STOPPED", "deleted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			storetest.Each(t, func(t *testing.T, s *store.Store) {
				term := commandSession(t, s, "a-01")
				mustSQL(t, s, `UPDATE sessions SET desired=$2 WHERE id=$1`, term.SessionID, tc.desired)
				_, err := s.EnqueueCommand(t.Context(), fleet.Command{SessionID: term.SessionID, Kind: tc.kind})
				code := ""
				if coded, ok := errors.AsType[*fleet.CodedError](err); ok {
					code = coded.Code
				} else if err != nil {
					t.Fatal(err)
				}
				if code != tc.wantCode {
					t.Errorf("EnqueueCommand(%s) = %v, want code %q", tc.kind, err, tc.wantCode)
				}
				var desired string
				var rows int
				if err := s.DB().QueryRow(t.Context(), `SELECT desired, (SELECT count(*) FROM commands) FROM sessions`).Scan(&desired, &rows); err != nil {
					t.Fatal(err)
				}
				wantRows := 1
				if tc.wantCode != "" {
					wantRows = 0
				}
				if desired != tc.wantDesired || rows != wantRows {
					t.Errorf("desired = %s with %d commands, want %s with %d", desired, rows, tc.wantDesired, wantRows)
				}
			})
		})
	}
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		for _, id := range []fleet.SessionID{"", "%", fleet.NewSessionID()} {
			if _, err := s.EnqueueCommand(t.Context(), fleet.Command{SessionID: id, Kind: fleet.CommandConnect}); !errors.Is(err, fleet.ErrNotFound) {
				t.Errorf("EnqueueCommand for session %q = %v, want ErrNotFound", id, err)
			}
		}
	})
}

func TestCommandsAreClaimedOldestFirstOnceAndByClass(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := commandSession(t, s, "a-01")
		other := commandSession(t, s, "a-02")
		var want []fleet.CommandID
		for range 3 {
			want = append(want, insertCmd(t, s, fleet.Command{SessionID: term.SessionID, Kind: fleet.CommandRead}).ID)
		}
		insertCmd(t, s, fleet.Command{SessionID: term.SessionID, Kind: fleet.CommandRead, Class: fleet.ClassMedia})
		due, err := s.DueCommands(t.Context(), store.Hold([]fleet.Term{term, other}))
		if d := cmp.Diff([]fleet.SessionID{term.SessionID}, due); err != nil || d != "" {
			t.Errorf("DueCommands = %v (-want +got):\n%s", err, d)
		}
		first, rest := claimCommands(t, s, term, 2), claimCommands(t, s, term, 10)
		if d := cmp.Diff(want, append(commandIDs(first), commandIDs(rest)...)); d != "" {
			t.Errorf("claimed (-want +got):\n%s", d)
		}
		for _, c := range first {
			if c.Status != fleet.CommandRunning || c.Attempts != 1 {
				t.Errorf("claimed %+v, want running at the first attempt", c)
			}
		}
		if again := claimCommands(t, s, term, 10); len(again) != 0 {
			t.Errorf("claimed %v twice", commandIDs(again))
		}
	})
}

func TestCommandsClaimedAtOnceAreClaimedOnce(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := commandSession(t, s, "a-01")
		const n = 40
		for range n {
			insertCmd(t, s, fleet.Command{SessionID: term.SessionID, Kind: fleet.CommandRead})
		}
		var mu sync.Mutex
		seen := map[fleet.CommandID]int{}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					got, err := s.ClaimCommands(t.Context(), term, fleet.ClassControl, 3)
					if err != nil {
						t.Errorf("ClaimCommands = %v", err)
						return
					}
					if len(got) == 0 {
						return
					}
					mu.Lock()
					for _, c := range got {
						seen[c.ID]++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		for len(seen) < n { // SKIP LOCKED may have made every claimer see nothing while another held the last ones
			got := claimCommands(t, s, term, 10)
			if len(got) == 0 {
				break
			}
			for _, c := range got {
				seen[c.ID]++
			}
		}
		for id, times := range seen {
			if times != 1 {
				t.Errorf("%s was claimed %d times", id, times)
			}
		}
		if len(seen) != n {
			t.Errorf("claimed %d commands, want %d", len(seen), n)
		}
	})
}

func TestOnlyTheTermClaimsAndFinishes(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := commandSession(t, s, "a-01")
		c := insertCmd(t, s, fleet.Command{SessionID: term.SessionID, Kind: fleet.CommandRead})
		claimCommands(t, s, term, 1)
		next := nextCommandTerm(t, s, term)
		if _, err := s.ClaimCommands(t.Context(), term, fleet.ClassControl, 1); !errors.Is(err, fleet.ErrLeaseLost) {
			t.Errorf("ClaimCommands of a term that is over = %v, want ErrLeaseLost", err)
		}
		if err := s.FinishCommand(t.Context(), term, c.ID, fleet.CommandDone, "", "", ""); !errors.Is(err, fleet.ErrLeaseLost) {
			t.Errorf("FinishCommand of a term that is over = %v, want ErrLeaseLost", err)
		}
		if err := s.FinishCommand(t.Context(), next, c.ID, fleet.CommandDone, "", "", ""); !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("FinishCommand of what another term runs = %v, want ErrConflict", err)
		}
		if got, _ := s.GetCommand(t.Context(), c.ID); got.Status != fleet.CommandRunning {
			t.Errorf("status = %s, want running", got.Status)
		}
	})
}

func TestWhatAnEarlierTermLeftRunningIsDoneAgain(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := commandSession(t, s, "a-01")
		c := insertCmd(t, s, fleet.Command{SessionID: term.SessionID, Kind: fleet.CommandRead})
		late := insertCmd(t, s, fleet.Command{SessionID: term.SessionID, Kind: fleet.CommandRead})
		claimCommands(t, s, term, 2)
		mustSQL(t, s, `UPDATE commands SET expires_at=1 WHERE id=$1`, late.ID)
		if due, _ := s.DueCommands(t.Context(), store.Hold([]fleet.Term{term})); len(due) != 0 {
			t.Errorf("DueCommands = %v while the term itself runs them, want none", due)
		}
		next := nextCommandTerm(t, s, term)
		if due, _ := s.DueCommands(t.Context(), store.Hold([]fleet.Term{next})); len(due) != 1 {
			t.Errorf("DueCommands after the takeover = %v, want the session", due)
		}
		got := claimCommands(t, s, next, 10)
		if len(got) != 1 || got[0].ID != c.ID || got[0].Attempts != 2 {
			t.Fatalf("claimed %+v, want %s at its second attempt and not the expired %s", got, c.ID, late.ID)
		}
		if err := s.FinishCommand(t.Context(), next, c.ID, fleet.CommandDone, `{"ok":true}`, "", ""); err != nil {
			t.Fatal(err)
		}
		read, _ := s.GetCommand(t.Context(), c.ID)
		if read.Status != fleet.CommandDone || read.Result != `{"ok":true}` || read.FinishedAt.IsZero() {
			t.Errorf("finished as %+v", read)
		}
		if err := s.FinishCommand(t.Context(), next, c.ID, fleet.CommandFailed, "", "X", ""); !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("a second FinishCommand = %v, want ErrConflict", err)
		}
		if err := s.FinishCommand(t.Context(), next, c.ID, fleet.CommandPending, "", "", ""); err == nil {
			t.Error("FinishCommand as pending = nil, want an error")
		}
	})
}

func TestUnknownKindsOfCommandsAreLeftAlone(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := commandSession(t, s, "a-01")
		c := insertCmd(t, s, fleet.Command{SessionID: term.SessionID, Kind: "kind-of-tomorrow"})
		if due, err := s.DueCommands(t.Context(), store.Hold([]fleet.Term{term})); err != nil || len(due) != 0 {
			t.Errorf("DueCommands = %v, %v, want none", due, err)
		}
		if got := claimCommands(t, s, term, 10); len(got) != 0 {
			t.Errorf("claimed %v", got)
		}
		if n, err := s.UnknownCommands(t.Context()); n != 1 || err != nil {
			t.Errorf("UnknownCommands = %d, %v, want 1", n, err)
		}
		if got, _ := s.GetCommand(t.Context(), c.ID); got.Status != fleet.CommandPending {
			t.Errorf("status = %s, want pending", got.Status)
		}
	})
}

func TestExpiredCommandsEndButNotUnderALiveOwner(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		live, dead := commandSession(t, s, "a-01"), commandSession(t, s, "a-02")
		running := insertCmd(t, s, fleet.Command{SessionID: live.SessionID, Kind: fleet.CommandRead})
		orphan := insertCmd(t, s, fleet.Command{SessionID: dead.SessionID, Kind: fleet.CommandRead})
		stuck := insertCmd(t, s, fleet.Command{SessionID: live.SessionID, Kind: fleet.CommandRead})
		claimCommands(t, s, live, 10)
		claimCommands(t, s, dead, 10)
		pending := insertCmd(t, s, fleet.Command{SessionID: live.SessionID, Kind: fleet.CommandRead, ExpiresAt: time.Now().Add(-time.Second)})
		fresh := insertCmd(t, s, fleet.Command{SessionID: live.SessionID, Kind: fleet.CommandRead})
		mustSQL(t, s, `UPDATE commands SET expires_at=$2 WHERE id IN ($1, $3)`, running.ID, time.Now().Add(-time.Second).UnixMilli(), orphan.ID)
		mustSQL(t, s, `UPDATE commands SET expires_at=1 WHERE id=$1`, stuck.ID)
		mustSQL(t, s, `UPDATE leases SET expires_at=1 WHERE session_id=$1`, dead.SessionID)
		if n, err := s.ExpireCommands(t.Context(), 2); n != 2 || err != nil {
			t.Errorf("ExpireCommands(2) = %d, %v, want 2", n, err)
		}
		if n, err := s.ExpireCommands(t.Context(), 2); n != 1 || err != nil {
			t.Errorf("ExpireCommands(2) again = %d, %v, want 1", n, err)
		}
		for c, want := range map[fleet.CommandID]fleet.CommandStatus{
			running.ID: fleet.CommandRunning, orphan.ID: fleet.CommandExpired, stuck.ID: fleet.CommandExpired,
			pending.ID: fleet.CommandExpired, fresh.ID: fleet.CommandPending,
		} {
			if got, _ := s.GetCommand(t.Context(), c); got.Status != want {
				t.Errorf("command %s is %s, want %s", c, got.Status, want)
			}
		}
		if err := s.FinishCommand(t.Context(), live, running.ID, fleet.CommandDone, "", "", ""); err != nil {
			t.Errorf("FinishCommand past its time by the live owner = %v, want nil", err)
		}
	})
}

func TestOnlyEndedCommandsArePurged(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		term := commandSession(t, s, "a-01")
		for i := range 5 {
			c := insertCmd(t, s, fleet.Command{SessionID: term.SessionID, Kind: fleet.CommandRead})
			if i < 3 {
				mustSQL(t, s, `UPDATE commands SET status='done', created_at=1 WHERE id=$1`, c.ID)
			} else {
				mustSQL(t, s, `UPDATE commands SET created_at=1 WHERE id=$1`, c.ID)
			}
		}
		for _, want := range []int{2, 1, 0} {
			if n, err := s.PurgeCommands(t.Context(), time.Now().Add(-time.Hour), 2); n != want || err != nil {
				t.Errorf("PurgeCommands = %d, %v, want %d", n, err, want)
			}
		}
	})
}

func TestASlotIsTakenOnceHoweverManySchedulersAsk(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		if err := s.EnsureSchedule(t.Context(), "job", time.Hour); err != nil {
			t.Fatal(err)
		}
		var taken sync.Map
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				slot, ok, err := s.DueSlot(t.Context(), "job", fmt.Sprintf("scheduler-%d", i), time.Minute)
				if err != nil {
					t.Errorf("DueSlot = %v", err)
				}
				if ok {
					taken.Store(i, slot)
				}
			})
		}
		wg.Wait()
		var slots []store.Slot
		taken.Range(func(_, v any) bool {
			slots = append(slots, v.(store.Slot))
			return true
		})
		if len(slots) != 1 {
			t.Fatalf("%d schedulers took the slot, want 1", len(slots))
		}
		if ok, err := s.FinishSlot(t.Context(), slots[0]); !ok || err != nil {
			t.Errorf("FinishSlot = %v, %v, want true", ok, err)
		}
		if ok, err := s.FinishSlot(t.Context(), slots[0]); ok || err != nil {
			t.Errorf("a second FinishSlot = %v, %v, want false", ok, err)
		}
		if _, ok, err := s.DueSlot(t.Context(), "job", "late", time.Minute); ok || err != nil {
			t.Errorf("DueSlot after the end = %v, %v, want false", ok, err)
		}
	})
}

func TestASlotOfADeadSchedulerIsTakenAgainAndMissedSlotsKeepTheBeat(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	for name, url := range map[string]func(testing.TB) string{"sqlite": storetest.SQLiteURL, "postgres": storetest.PostgresURL} {
		t.Run(name, func(t *testing.T) {
			s, err := store.Open(t.Context(), store.Options{URL: url(t), Ring: storetest.Ring(t), Now: func() time.Time { return now }})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			start := now
			due := func(holder string) (store.Slot, bool) {
				t.Helper()
				slot, ok, err := s.DueSlot(t.Context(), "job", holder, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				return slot, ok
			}
			if err := s.EnsureSchedule(t.Context(), "job", 10*time.Second); err != nil {
				t.Fatal(err)
			}
			if _, ok := due("dies"); !ok {
				t.Fatal("a new schedule is not due")
			}
			now = now.Add(59 * time.Second)
			if _, ok := due("next"); ok {
				t.Fatal("took a slot that is held")
			}
			waits, err := s.SlotWaits(t.Context())
			if err != nil || waits["job"] != time.Second {
				t.Errorf("SlotWaits = %v, %v, want 1 s", waits, err)
			}
			now = now.Add(2 * time.Second)
			slot, ok := due("next")
			if !ok || !slot.At.Equal(start) {
				t.Fatalf("DueSlot = %v, %v, want the slot of the dead one at %v", slot, ok, start)
			}
			if ok, err := s.FinishSlot(t.Context(), store.Slot{Name: "job", Holder: "dies", At: start}); ok || err != nil {
				t.Errorf("the dead one finished what is not its own: %v, %v", ok, err)
			}
			if ok, err := s.FinishSlot(t.Context(), slot); !ok || err != nil {
				t.Fatalf("FinishSlot = %v, %v", ok, err)
			}
			if waits, _ := s.SlotWaits(t.Context()); waits["job"] != 9*time.Second {
				t.Errorf("the next slot is in %v, want 9 s: 61 s have passed on a beat of 10 s", waits["job"])
			}
			now = now.Add(9 * time.Second)
			slot, ok = due("next")
			if !ok {
				t.Fatal("the next slot is not due")
			}
			if err := s.ReleaseSlot(t.Context(), slot, 3*time.Second); err != nil {
				t.Fatal(err)
			}
			if _, ok := due("other"); ok {
				t.Error("took a released slot before its pause ended")
			}
			now = now.Add(3 * time.Second)
			if again, ok := due("other"); !ok || !again.At.Equal(slot.At) {
				t.Errorf("DueSlot = %v, %v, want the released slot", again, ok)
			}
			// A shorter interval counts from now on, a longer one from the next slot.
			if err := s.EnsureSchedule(t.Context(), "slow", time.Hour); err != nil {
				t.Fatal(err)
			}
			slow, ok, err := s.DueSlot(t.Context(), "slow", "x", time.Second)
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			if _, err := s.FinishSlot(t.Context(), slow); err != nil {
				t.Fatal(err)
			}
			if err := s.EnsureSchedule(t.Context(), "slow", time.Minute); err != nil {
				t.Fatal(err)
			}
			if waits, _ := s.SlotWaits(t.Context()); waits["slow"] != time.Minute {
				t.Errorf("after the change the next slot is in %v, want 1m", waits["slow"])
			}
		})
	}
}

func TestOldAttemptsAndDeadWorkersArePurged(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		now := time.Now()
		term := commandSession(t, s, "a-01")
		for i := range 5 {
			mustSQL(t, s, `INSERT INTO attempts (message_id, n, session_id, epoch, kind, at) VALUES ('m', $1, $2, 1, 'send', $3)`,
				i, term.SessionID, now.Add(-time.Duration(i)*time.Hour).UnixMilli())
		}
		for _, want := range []int{2, 1, 0} {
			if n, err := s.PurgeAttempts(t.Context(), now.Add(-90*time.Minute), 2); n != want || err != nil {
				t.Errorf("PurgeAttempts = %d, %v, want %d", n, err, want)
			}
		}
		for owner, beat := range map[string]time.Time{"gone/1": now.Add(-time.Hour), "here/1": now, term.Owner: now.Add(-time.Hour)} {
			mustSQL(t, s, `INSERT INTO workers (owner, id, version, sessions, max_sessions, draining, started_at, beat_at)
				VALUES ($1, 'w', 'v', 0, 1, FALSE, 1, $2)`, owner, beat.UnixMilli())
		}
		if n, err := s.PurgeWorkers(t.Context(), now.Add(-10*time.Minute)); n != 1 || err != nil {
			t.Errorf("PurgeWorkers = %d, %v, want 1: one is alive, one still owns a session", n, err)
		}
	})
}
