package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/wafleet/wafleet/internal/fleet"
)

func TestErrorsMatchWhatCallersBranchOn(t *testing.T) {
	invalid := fmt.Errorf("accept: %w", &fleet.InvalidError{Code: "TEXT_EMPTY", Field: "text", Detail: "is empty"})
	coded := fmt.Errorf("accept: %w", &fleet.CodedError{Code: "NO_SESSIONS", Err: fleet.ErrConflict})
	for _, tc := range []struct {
		name        string
		err, target error
		want        bool
	}{
		{"bad input is invalid", invalid, fleet.ErrInvalid, true},
		{"bad input is no conflict", invalid, fleet.ErrConflict, false},
		{"a coded refusal is its sentinel", coded, fleet.ErrConflict, true},
		{"a coded refusal is no other", coded, fleet.ErrUnavailable, false},
		{"a lost lease is itself", fmt.Errorf("write: %w", fleet.ErrLeaseLost), fleet.ErrLeaseLost, true},
		{"a lost lease counts as cancelled, so that whatsmeow stays silent", fleet.ErrLeaseLost, context.Canceled, true},
		{"a cancelled context is no lost lease", context.Canceled, fleet.ErrLeaseLost, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := errors.Is(tc.err, tc.target); got != tc.want {
				t.Errorf("errors.Is(%v, %v) = %v, want %v", tc.err, tc.target, got, tc.want)
			}
		})
	}
}
