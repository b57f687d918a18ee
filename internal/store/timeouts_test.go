package store_test

import (
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/store/storetest"
)

func TestTimeoutsReachConnectionsOpenedBeforeAnotherProcessSetThem(t *testing.T) {
	url := storetest.PostgresURL(t)
	early, other := storetest.Open(t, url), storetest.Open(t, url)
	if err := early.Ping(t.Context()); err != nil { // leaves an idle connection without the timeouts
		t.Fatal(err)
	}
	if err := other.EnsureTimeouts(t.Context(), 6*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := early.EnsureTimeouts(t.Context(), 6*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := early.CheckTimeouts(t.Context(), 6*time.Second); err != nil {
		t.Errorf("CheckTimeouts = %v, want nil", err)
	}
	var jit string
	if err := early.DB().QueryRow(t.Context(), `SHOW jit`).Scan(&jit); err != nil || jit != "off" {
		t.Errorf("jit is %q, %v, want a look at a lane not to be compiled first", jit, err)
	}
}
