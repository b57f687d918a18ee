package ledger

import "testing"

func TestMemoryKeepsTheRulesOfALedger(t *testing.T) {
	testLedger(t, func(_ *testing.T, o Options) Ledger { return NewMemory(o) })
}
