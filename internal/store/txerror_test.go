package store_test

import (
	"context"
	"errors"
	"testing"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestCancelledTransactionIsNotALostLease(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		before, cancelBefore := context.WithCancel(t.Context())
		cancelBefore()
		within, cancelWithin := context.WithCancel(t.Context())
		defer cancelWithin()
		for name, ctx := range map[string]context.Context{"begin": before, "commit": within} {
			err := s.InTx(ctx, func(context.Context) error {
				cancelWithin()
				return nil
			})
			if !errors.Is(err, context.Canceled) || errors.Is(err, fleet.ErrLeaseLost) {
				t.Errorf("%s under a cancelled context = %v; is it a cancellation: %v, a lost lease: %v; want true, false",
					name, err, errors.Is(err, context.Canceled), errors.Is(err, fleet.ErrLeaseLost))
			}
		}
	})
}
