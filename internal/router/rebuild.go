package router

import (
	"context"
	"fmt"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/store"
)

// Rebuild returns what makes a lost ledger anew from the rows of this database: frames that left, messages that
// wait, who wrote to whom last. penalty and reward are those of the ledger.
func Rebuild(s *store.Store, penalty, reward int) ledger.Rebuild {
	return func(ctx context.Context, cold func(context.Context) (bool, error), load func(context.Context, ledger.State) error) error {
		return s.RebuildLedger(ctx, func(ctx context.Context, read func(context.Context) (store.LedgerRows, error)) error {
			if is, err := cold(ctx); err != nil || !is {
				return err
			}
			rows, err := read(ctx)
			if err != nil {
				return err
			}
			state, err := stateOf(rows, penalty, reward)
			if err != nil {
				return err
			}
			return load(ctx, state)
		})
	}
}

func stateOf(rows store.LedgerRows, penalty, reward int) (ledger.State, error) {
	state := ledger.State{Generation: rows.Generation, Health: map[fleet.SessionSlug]int{}, Backlog: rows.Backlog}
	for _, f := range rows.Frames {
		state.Frames = append(state.Frames, ledger.FrameCount(f))
	}
	for _, p := range rows.Pins {
		state.Pins = append(state.Pins, ledger.PinState(p))
	}
	for _, q := range rows.Quota {
		state.Quota = append(state.Quota, ledger.QuotaCount(q))
	}
	for _, text := range rows.Outstanding {
		if plant.LoseHeld {
			break
		}
		held, err := ledger.ParseReservation(text)
		if err != nil {
			return state, fmt.Errorf("rebuild ledger: %w", err)
		}
		state.Outstanding = append(state.Outstanding, held)
	}
	const full = 100
	for _, tried := range rows.Tried {
		health, known := state.Health[tried.Session]
		if !known {
			health = full
		}
		switch {
		case tried.Outcome == fleet.OutcomeSent:
			health = min(full, health+reward)
		case fleet.NumberFault(tried.Code):
			health = max(0, health-penalty)
		}
		state.Health[tried.Session] = health
	}
	for slug, health := range state.Health {
		if health == full {
			delete(state.Health, slug)
		}
	}
	return state, nil
}
