package fleet

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const day = 24 * time.Hour

func TestEffectiveBudgetIsExactAtDays1And7And14(t *testing.T) {
	b := Budget{PerMinute: 20, PerHour: 200, PerDay: 1_000, NewChatsPerDay: 50}
	for _, tc := range []struct {
		name string
		age  time.Duration
		want Budget
	}{
		{"just paired", 0, Budget{2, 20, 100, 5}},
		{"by a clock that is behind", -time.Hour, Budget{2, 20, 100, 5}},
		{"day 1", day, Budget{2, 20, 100, 5}},
		{"day 4", 4 * day, Budget{6, 60, 300, 15}},
		{"day 7", 7 * day, Budget{10, 100, 500, 25}},
		{"day 10 and a half", 10*day + 12*time.Hour, Budget{15, 150, 750, 37}},
		{"a second before day 14", 14*day - time.Second, Budget{19, 199, 999, 49}},
		{"day 14", 14 * day, b},
		{"years later", 1_000 * day, b},
	} {
		if got := b.Effective(tc.age); got != tc.want {
			t.Errorf("Effective(%s) = %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

func TestEffectiveBudgetNeverFallsWithAgeAndNeverIsZeroUnlessTheBudgetIs(t *testing.T) {
	part := rapid.IntRange(0, MaxBudget)
	age := rapid.Int64Range(0, int64(20*day))
	rapid.Check(t, func(t *rapid.T) {
		b := Budget{part.Draw(t, "minute"), part.Draw(t, "hour"), part.Draw(t, "day"), part.Draw(t, "chats")}
		younger, older := time.Duration(age.Draw(t, "age")), time.Duration(age.Draw(t, "age"))
		if younger > older {
			younger, older = older, younger
		}
		young, old := b.Effective(younger), b.Effective(older)
		for _, p := range [][3]int{
			{young.PerMinute, old.PerMinute, b.PerMinute},
			{young.PerHour, old.PerHour, b.PerHour},
			{young.PerDay, old.PerDay, b.PerDay},
			{young.NewChatsPerDay, old.NewChatsPerDay, b.NewChatsPerDay},
		} {
			if p[0] > p[1] || p[1] > p[2] {
				t.Errorf("of %d: %d at %s, %d at %s", p[2], p[0], younger, p[1], older)
			}
			if (p[0] == 0) != (p[2] == 0) {
				t.Errorf("of %d: %d at %s", p[2], p[0], younger)
			}
		}
	})
}

func TestAPersonIsWarmOnlyWhereTheyWroteWithinTheWindow(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	for _, tc := range []struct {
		name string
		chat Chat
		want bool
	}{
		{"nobody wrote", Chat{}, false},
		{"we opened it and nobody answered", Chat{FirstOutAt: now.Add(-day), LastOutAt: now}, false},
		{"they wrote yesterday", Chat{FirstInAt: now.Add(-day), LastInAt: now.Add(-day)}, true},
		{"they wrote long ago", Chat{FirstInAt: now.Add(-90 * day), LastInAt: now.Add(-29 * day)}, false},
		{"their token came with the history", Chat{TokenAt: now.Add(-3 * day)}, true},
		{"their token is old", Chat{TokenAt: now.Add(-28 * day)}, false},
	} {
		if got := tc.chat.Warm(now, WarmFor); got != tc.want {
			t.Errorf("Warm(%s) = %v, want %v", tc.name, got, tc.want)
		}
	}
}
