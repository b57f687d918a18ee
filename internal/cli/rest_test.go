package cli

import "testing"

func TestMemoryIsGivenBackByAProcessThatRestsAndHoldsMuchMoreThanItNeeds(t *testing.T) {
	const mib = 1 << 20
	before := heap{percent: 100, allocated: 1000 * mib, live: 100 * mib, objects: 100 * mib}
	for name, tc := range map[string]struct {
		now  heap
		want bool
	}{
		"garbage of a tenth of what lives": {heap{100, 1012 * mib, 100 * mib, 112 * mib, 0}, true},
		"less garbage than that":           {heap{100, 1009 * mib, 100 * mib, 109 * mib, 0}, false},
		"pages that nobody uses":           {heap{100, 1001 * mib, 100 * mib, 101 * mib, 50 * mib}, true},
		"little garbage of a small heap":   {heap{100, 1001 * mib, 5 * mib, 6 * mib, 0}, false},
		"a process under load":             {heap{100, 1100 * mib, 100 * mib, 190 * mib, 20 * mib}, false},
		"GOGC set by whoever runs it":      {heap{200, 1012 * mib, 100 * mib, 190 * mib, 0}, false},
	} {
		if got := tc.now.rests(before) && tc.now.wastes(); got != tc.want {
			t.Errorf("%s: given back = %v, want %v", name, got, tc.want)
		}
	}
}

func TestReadHeapKnowsEverySample(t *testing.T) {
	h := readHeap()
	if h.percent != 100 || h.allocated == 0 || h.live == 0 || h.objects == 0 {
		t.Errorf("readHeap = %+v, want GOGC 100 and sizes", h)
	}
}
