package store_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestASessionIsMovedOnlyWhenNobodyWaitsForIt(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		newOrg(t, s, "org-b")
		busy := func(why string) {
			t.Helper()
			_, err := s.MoveSession(t.Context(), l.sess.Slug, "org-b")
			coded, ok := errors.AsType[*fleet.CodedError](err)
			if !ok || coded.Code != "SESSION_BUSY" || !strings.Contains(coded.Detail, why) {
				t.Errorf("MoveSession = %v, want SESSION_BUSY with %q", err, why)
			}
		}
		open := l.accept("5511900000001", "hello")
		busy("it is not stopped")
		stopped := fleet.DesiredStopped
		if _, err := s.UpdateSession(t.Context(), l.sess.Slug, store.SessionChange{Desired: &stopped}); err != nil {
			t.Fatal(err)
		}
		busy("a worker still holds it")
		mustSQL(t, s, `UPDATE leases SET owner='', expires_at=$1`, time.Now().UnixMilli())
		busy("less than 15 seconds")
		mustSQL(t, s, `UPDATE leases SET expires_at=0`)
		mustSQL(t, s, `UPDATE sessions SET observed_since=1`)
		busy("1 of its messages are queued")
		if _, err := s.CancelMessage(t.Context(), "org-a", open.ID); err != nil {
			t.Fatal(err)
		}
		insertCmd(t, s, fleet.Command{SessionID: l.sess.ID, Class: fleet.ClassControl, Kind: fleet.CommandConnect, ExpiresAt: time.Now().Add(time.Hour)})
		busy("1 commands are open")
		mustSQL(t, s, `UPDATE commands SET status='done'`)
		if _, err := s.MoveSession(t.Context(), l.sess.Slug, "org-c"); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("MoveSession to nobody = %v, want ErrNotFound", err)
		}
		if _, err := s.MoveSession(t.Context(), l.sess.Slug, "org-a"); !errors.Is(err, fleet.ErrConflict) {
			t.Errorf("MoveSession to its own = %v, want ErrConflict", err)
		}
		moved, err := s.MoveSession(t.Context(), l.sess.Slug, "org-b")
		if err != nil || moved.OrgID != "org-b" || moved.ID != l.sess.ID || moved.Desired != fleet.DesiredStopped {
			t.Errorf("MoveSession = %+v, %v", moved, err)
		}
	})
}

func TestAMovedSessionLeavesItsHistoryAndTheHead(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		second := newSession(t, s, store.NewSession{Org: "org-a"})
		newOrg(t, s, "org-b")
		m := l.accept("5511900000001", "hello")
		l.send(m, fleet.OutcomeSent)
		appendEvent(t, s, fleet.Event{OrgID: "org-a", Kind: fleet.EventSessionStatus, SessionID: l.sess.ID})
		mustSQL(t, s, `UPDATE leases SET owner='', expires_at=0`)
		mustSQL(t, s, `UPDATE sessions SET desired='stopped', observed_since=1, device_jid='5511900000009:1@s.whatsapp.net', budget_day=7 WHERE id=$1`, l.sess.ID)
		mustSQL(t, s, `INSERT INTO chats (contact_key, session_id) VALUES ('5511900000001', $1)`, l.sess.ID)
		ctx := store.AsActor(t.Context(), "key_1")
		if _, err := s.MoveSession(ctx, l.sess.Slug, "org-b"); err != nil {
			t.Fatal(err)
		}
		if got := l.get(m.ID); got.OrgID != "org-a" || got.SessionID != l.sess.ID {
			t.Errorf("the message is %s's on %s, want it to stay as it was", got.OrgID, got.SessionID)
		}
		for org, want := range map[fleet.OrgID]fleet.SessionID{"org-a": second.ID, "org-b": l.sess.ID} {
			o, err := s.GetOrganization(t.Context(), org)
			if err != nil || o.HeadSessionID != want {
				t.Errorf("head of %s = %s, %v, want %s", org, o.HeadSessionID, err, want)
			}
			sessions, err := s.OrgSessions(t.Context(), org)
			if err != nil || len(sessions) != 1 || sessions[0].ID != want {
				t.Errorf("sessions of %s = %v, %v, want one, %s", org, sessions, err, want)
			}
		}
		if lines := auditLines(t, s, store.AuditQuery{Limit: 10}); len(lines) != 1 || !strings.Contains(lines[0], "session.move") {
			t.Errorf("audit log = %v, want the move", lines)
		}
		v, err := s.SessionByID(t.Context(), l.sess.ID)
		if err != nil || v.DeviceJID == "" || v.Budget.PerDay != 7 {
			t.Errorf("the session is %+v, %v, want login and budget kept", v, err)
		}
		appendEvent(t, s, fleet.Event{OrgID: "org-b", Kind: fleet.EventSessionStatus, SessionID: l.sess.ID})
	})
}

func TestUsageIsCountedByDayOfTheZoneHoweverOften(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		zone := "Pacific/Kiritimati" // 14 hours ahead
		if _, err := s.UpdateOrganization(t.Context(), "org-a", store.OrgChange{TimeZone: &zone}); err != nil {
			t.Fatal(err)
		}
		where, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		local := time.Now().In(where)
		yesterday := time.Date(local.Year(), local.Month(), local.Day(), 0, 0, 0, 0, where).Add(-time.Millisecond)
		old := l.accept("5511900000001", "the day before")
		mustSQL(t, s, `UPDATE messages SET created_at=$2 WHERE id=$1`, old.ID, yesterday.UnixMilli())
		sent, delivered, failed := l.accept("5511900000002", "sent"), l.accept("5511900000003", "delivered"), l.accept("5511900000004", "cancelled")
		l.send(sent, fleet.OutcomeSent)
		l.send(delivered, fleet.OutcomeSent)
		mustSQL(t, s, `INSERT INTO inbound_messages (id, org_id, session_id, conversation_id, chat, sender, wa_id, kind, offline, sent_at, received_at)
			VALUES ('in', 'org-a', $1, 'c', 'x', 'x', 'x', 'text', FALSE, $2, $2)`, l.sess.ID, time.Now().UnixMilli())
		day := func(t time.Time) string { return t.In(where).Format(time.DateOnly) }
		check := func(want ...fleet.Usage) {
			t.Helper()
			for range 2 {
				if _, err := s.RollUpUsage(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			got, err := s.ListUsage(t.Context(), store.UsageQuery{From: day(yesterday), To: day(local), Limit: 10})
			if err != nil || len(got) != len(want) {
				t.Fatalf("ListUsage = %+v, %v, want %+v", got, err, want)
			}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("ListUsage[%d] = %+v, want %+v", i, got[i], want[i])
				}
			}
		}
		before := fleet.Usage{OrgID: "org-a", ProjectID: "prj_1", Day: day(yesterday), Accepted: 1}
		in := fleet.Usage{OrgID: "org-a", Day: day(local), Received: 1}
		check(before, in, fleet.Usage{OrgID: "org-a", ProjectID: "prj_1", Day: day(local), Accepted: 3, Sent: 2})
		l.receipt(fleet.StatusDelivered, time.Now(), delivered.WAID)
		if _, err := s.CancelMessage(t.Context(), "org-a", failed.ID); err != nil {
			t.Fatal(err)
		}
		check(before, in, fleet.Usage{OrgID: "org-a", ProjectID: "prj_1", Day: day(local), Accepted: 3, Sent: 2, Delivered: 1, Failed: 1})
	})
}

func TestQuotaAfterARebuildCountsWhatWasAcceptedInTheMonthAndUnderTheQuota(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		l := newLane(t, s, "org-a")
		p, err := s.CreateProject(t.Context(), fleet.Project{OrgID: "org-a", Name: "crm"})
		if err != nil {
			t.Fatal(err)
		}
		_, first := fleet.Month(time.Now(), "UTC")
		month := max(first.UnixMilli(), time.Now().Add(-time.Hour).UnixMilli()) // in this month, on its first day too
		accept := func(at int64) {
			m := l.accept("5511900000001", "hello")
			mustSQL(t, s, `UPDATE messages SET project_id=$2, created_at=$3 WHERE id=$1`, m.ID, p.ID, at)
		}
		quota := func(n int64) {
			t.Helper()
			if _, err := s.UpdateProject(t.Context(), "org-a", p.ID, store.ProjectChange{MonthlyQuota: &n}); err != nil {
				t.Fatal(err)
			}
		}
		want := func(used int64) {
			t.Helper()
			rows := ledgerRows(t, s).Quota
			if len(rows) != 1 || rows[0].Used != used {
				t.Errorf("quota after a rebuild = %+v, want %d used", rows, used)
			}
		}
		accept(first.UnixMilli() - 1) // last month's
		accept(month)
		quota(10)
		want(0)
		accept(time.Now().Add(time.Second).UnixMilli())
		want(1)
		quota(20) // it had one already
		want(1)
		mustSQL(t, s, `UPDATE projects SET quota_since=$1`, first.Add(-time.Hour).UnixMilli())
		want(2)
	})
}
