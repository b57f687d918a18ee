package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestExecGivesItsConnectionBack(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.CreateOrganization(ctx, fleet.Organization{ID: "org-a", Strategy: fleet.StrategyWeighted}); err != nil {
			t.Fatal(err)
		}
		before := s.DB().RawDB.Stats().InUse
		for range 50 { // more than any pool here has
			n, err := store.Exec(ctx, s.DB(), `UPDATE organizations SET label='again' WHERE id=$1`, "org-a")
			if n != 1 || err != nil {
				t.Fatalf("Exec = %d, %v, want 1 row", n, err)
			}
			if _, err := store.Exec(ctx, s.DB(), `UPDATE nothing SET label='again'`); err == nil {
				t.Fatal("Exec of a table that is not there succeeded")
			}
		}
		if after := s.DB().RawDB.Stats().InUse; after != before {
			t.Errorf("%d connections are in use after Exec, want %d as before", after, before)
		}
		err := s.InTx(ctx, func(ctx context.Context) error {
			n, err := store.Exec(ctx, s.DB(), `UPDATE organizations SET label='inside' WHERE id=$1`, "org-a")
			if n != 1 {
				t.Errorf("Exec in a transaction = %d, want 1 row", n)
			}
			if err == nil {
				err = context.Canceled // roll back
			}
			return err
		})
		if err == nil {
			t.Error("the transaction was committed")
		}
		org, err := s.GetOrganization(ctx, "org-a")
		if err != nil || org.Label != "again" {
			t.Errorf("organization = %+v, %v; Exec did not join the transaction that was rolled back", org, err)
		}
	})
}
