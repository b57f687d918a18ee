package outbound

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/router"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

// Every limit that can be set holds from the next send of every process, whichever of them was told to change it.
func TestEveryLimitHoldsFromTheNextSendOfEveryProcess(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	project := func(c store.ProjectChange) func(*world, fleet.ProjectID) error {
		return func(w *world, id fleet.ProjectID) error {
			_, err := w.s.UpdateProject(w.t.Context(), "org-a", id, c)
			return err
		}
	}
	now := func(r *Request) {}
	later := func(r *Request) { r.SendAt = time.Now().Add(time.Hour) }
	for _, tc := range []struct {
		name    string
		two     func(w *world, id fleet.ProjectID) error // lets two messages through
		none    func(w *world, id fleet.ProjectID) error // lifts that
		edit    func(*Request)
		code    string
		reopens bool // by waiting as told
	}{
		{
			"a project's rate", project(store.ProjectChange{RateMinute: number(60), RateBurst: number(2)}), project(store.ProjectChange{RateMinute: number(0)}),
			now, "API_RATE_LIMITED", true,
		},
		{
			"a project's rate, of messages for later", project(store.ProjectChange{RateMinute: number(2)}), project(store.ProjectChange{RateMinute: number(0)}),
			later, "API_RATE_LIMITED", true,
		},
		{"a project's backlog", project(store.ProjectChange{MaxBacklog: number(2)}), project(store.ProjectChange{MaxBacklog: number(0)}), now, "BACKLOG_FULL", false},
		{"a project's month", project(store.ProjectChange{MonthlyQuota: number(2)}), project(store.ProjectChange{MonthlyQuota: number(0)}), later, "QUOTA_EXCEEDED", true},
		{
			"an organization's rate", func(w *world, _ fleet.ProjectID) error {
				_, err := w.s.UpdateOrganization(w.t.Context(), "org-a", store.OrgChange{RateMinute: number(60), RateBurst: number(2)})
				return err
			}, func(w *world, _ fleet.ProjectID) error {
				_, err := w.s.UpdateOrganization(w.t.Context(), "org-a", store.OrgChange{RateMinute: number(0)})
				return err
			}, now, "API_RATE_LIMITED", true,
		},
		{
			"a session's rate", func(w *world, _ fleet.ProjectID) error {
				_, err := w.s.UpdateSession(w.t.Context(), "org-a-01", store.SessionChange{RateMinute: number(60), RateBurst: number(2)})
				return err
			}, func(w *world, _ fleet.ProjectID) error {
				_, err := w.s.UpdateSession(w.t.Context(), "org-a-01", store.SessionChange{RateMinute: number(0)})
				return err
			}, now, "RATE_LIMITED", true,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, storetest.SQLite(t))
				id, err := w.s.DefaultProject(t.Context(), "org-a")
				if err != nil {
					t.Fatal(err)
				}
				l := ledger.NewMemory(ledger.Options{Rebuild: router.Rebuild(w.s, 20, 5)})
				t.Cleanup(l.Close)
				process := func(keep time.Duration) *Outbound {
					return New(Options{Store: w.s, Router: router.New(router.Options{Store: w.s, Ledger: l, Keep: keep}), Ledger: l, Bus: w.bus, Log: testkit.Logger(t)})
				}
				operator, api, deaf := process(time.Hour), process(time.Hour), process(0)
				to := 0
				send := func(o *Outbound) error {
					to++
					_, err := o.Accept(t.Context(), request(func(r *Request) { r.Project, r.To = id, fmt.Sprint(5511900000100+to) }, tc.edit))
					return err
				}
				for _, o := range []*Outbound{operator, api, deaf} { // they know the organization
					if _, err := o.Capacity(t.Context(), "org-a"); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Minute) // token buckets begin empty in a ledger that was made anew
				if err := operator.Changing(t.Context(), "org-a", func() error { return tc.two(w, id) }); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if err := send(api); err != nil {
						t.Fatalf("Accept within the limit = %v", err)
					}
				}
				err = send(api)
				wantCode(t, err, tc.code)
				if coded, _ := errors.AsType[*fleet.CodedError](err); coded.RetryAfter <= 0 {
					t.Errorf("Accept = %v, want a time to try again", err)
				} else if tc.reopens {
					time.Sleep(coded.RetryAfter)
					if tc.code == "QUOTA_EXCEEDED" { // everything that holds a term ends meanwhile
						w.term = w.reclaim()
					}
					if err := send(api); err != nil {
						t.Errorf("Accept after waiting %s = %v, want it accepted", coded.RetryAfter, err)
					}
				}
				for send(api) == nil { // until the limit is reached again
				}
				// Nobody is told of this change: it counts after two seconds.
				if err := tc.none(w, id); err != nil {
					t.Fatal(err)
				}
				time.Sleep(defaultKeep)
				for range 3 {
					if err := send(deaf); err != nil {
						t.Errorf("Accept without a limit = %v, want it accepted", err)
					}
				}
			})
		})
	}
}

// defaultKeep is how long a router uses rows again that nobody told it to read anew.
const defaultKeep = 2 * time.Second

// reclaim gives the session its owner back after a long time.
func (w *world) reclaim() fleet.Term {
	w.t.Helper()
	terms, _, err := w.s.ClaimLeases(w.t.Context(), store.ClaimQuery{Owner: "worker-1/boot", Limit: 1, TTL: 10_000 * time.Hour})
	if err != nil || len(terms) != 1 {
		w.t.Fatalf("ClaimLeases = %v, %v", terms, err)
	}
	w.term = terms[0]
	w.connect(fleet.ObservedConnected)
	return terms[0]
}

func TestTheLimitsOfANewProjectHoldFromItsFirstSend(t *testing.T) {
	for _, later := range []bool{false, true} {
		t.Run(fmt.Sprintf("for later: %v", later), func(t *testing.T) {
			w := newWorld(t, storetest.SQLite(t))
			l := ledger.NewMemory(ledger.Options{Rebuild: router.Rebuild(w.s, 20, 5)})
			t.Cleanup(l.Close)
			o := New(Options{
				Store: w.s, Router: router.New(router.Options{Store: w.s, Ledger: l, Keep: time.Hour}), Ledger: l, Bus: w.bus, Log: testkit.Logger(t),
			})
			if _, err := o.Capacity(t.Context(), "org-a"); err != nil { // its router knows the organization without the project
				t.Fatal(err)
			}
			p, err := w.s.CreateProject(t.Context(), fleet.Project{OrgID: "org-a", Name: "new", Entitlements: fleet.Entitlements{MonthlyQuota: 2}})
			if err != nil {
				t.Fatal(err)
			}
			r := request(func(r *Request) {
				r.Project = p.ID
				if later {
					r.SendAt = time.Now().Add(time.Hour)
				}
			})
			for i := range 4 {
				switch _, err := o.Accept(t.Context(), r); {
				case i < 2 && err != nil:
					t.Errorf("Accept within the quota = %v", err)
				case i >= 2:
					wantCode(t, err, "QUOTA_EXCEEDED")
				}
			}
		})
	}
}
