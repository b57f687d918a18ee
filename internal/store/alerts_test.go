package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestABurstOfLogoutsIsOneAlertForOperatorsOfTheWholeFleet(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		newOrg(t, s, "org-a")
		var ids []fleet.SessionID
		for i := range 34 {
			v := newSession(t, s, store.NewSession{Org: "org-a"})
			sqlNow(t, s, `UPDATE sessions SET phone = $2, device_jid = $3 WHERE id = $1`, v.ID, fmt.Sprint(5511900000000+i), fmt.Sprintf("55119%08d:1@s.whatsapp.net", i))
			ids = append(ids, v.ID)
		}
		hook(t, s, fleet.Endpoint{Scope: fleet.ScopeOperator})
		hook(t, s, fleet.Endpoint{Scope: fleet.ScopeOperator, OrgID: "org-a"}) // the fleet is none of its business
		hook(t, s, fleet.Endpoint{OrgID: "org-a"})
		now, err := s.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ago := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
		revoke := func(n int, at int64) {
			t.Helper()
			for _, id := range ids[:n] {
				sqlNow(t, s, `UPDATE sessions SET revoked_at = $2 WHERE id = $1`, id, at)
			}
		}
		look := func(what string, want int) {
			t.Helper()
			if got, err := s.TellLogouts(t.Context()); got != want || err != nil {
				t.Errorf("TellLogouts with %s = %d, %v, want %d", what, got, err, want)
			}
		}

		look("no logout", 0)
		revoke(2, ago(time.Minute))
		look("two logouts", 0)
		revoke(4, ago(6*time.Minute))
		look("four logouts, long ago", 0)
		revoke(4, ago(time.Minute))
		for _, id := range ids[:2] {
			if _, err := s.InsertCommand(t.Context(), fleet.Command{
				SessionID: id, Class: fleet.ClassControl, Kind: fleet.CommandLogout, Payload: "{}", ExpiresAt: now.Add(time.Minute),
			}); err != nil {
				t.Fatal(err)
			}
		}
		look("two logouts beside two that were asked for", 0)
		revoke(8, ago(time.Minute))
		look("six of thirty-two logins ended", 1)
		look("the same burst", 0)

		owed, err := s.ListDeliveries(t.Context(), store.DeliveryQuery{Limit: 10})
		if err != nil || len(owed) != 1 {
			t.Fatalf("the alert is owed to %d endpoints, %v, want the operator's alone", len(owed), err)
		}
		ev, err := s.GetEvent(t.Context(), "", owed[0].EventID)
		if err != nil || ev.Kind != fleet.EventFleetAlert || ev.OrgID != "" || ev.SessionID != "" ||
			ev.Data.Reason != fleet.AlertLogouts || ev.Data.Sessions != 6 || ev.Data.Of != 32 {
			t.Errorf("event = %+v, %v, want a fleet.alert of 6 logouts in 32", ev, err)
		}
		if _, err := s.GetEvent(t.Context(), "org-a", ev.ID); err == nil {
			t.Error("an organization can read the fleet's alert")
		}
		sqlNow(t, s, `UPDATE events SET created_at = $1`, ago(61*time.Minute))
		look("a burst an hour after the last alert", 1)
		sqlNow(t, s, `UPDATE events SET created_at = $1`, ago(61*time.Minute))
		revoke(5, 0)
		look("three of thirty-two, less than a tenth of those that count", 0)
	})
}
