package ledger

import (
	"testing"

	"github.com/wafleet/wafleet/internal/testkit"
)

func openRedis(t *testing.T, o Options) Ledger {
	t.Helper()
	addr, prefix := testkit.Redis(t)
	l, err := NewRedis(RedisOptions{Options: o, URL: addr, Prefix: prefix, Log: testkit.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestRedisKeepsTheRulesOfALedger(t *testing.T) { testLedger(t, openRedis) }
