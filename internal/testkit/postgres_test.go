package testkit

import (
	"errors"
	"testing"
)

func TestAFailedPreparationLeavesNoTemplate(t *testing.T) {
	server := postgresServer(t)
	errBroken := errors.New("migration 3 is broken")
	calls := 0
	for range 2 {
		err := ensureTemplate(t.Context(), server, "testkit_never_ready", func(string) error {
			calls++
			return errBroken
		})
		if !errors.Is(err, errBroken) {
			t.Errorf("ensureTemplate with a failing prepare = %v, want %v", err, errBroken)
		}
	}
	if calls != 2 {
		t.Errorf("prepare ran %d times in two attempts that failed, want 2", calls)
	}
}
