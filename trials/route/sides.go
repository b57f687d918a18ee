package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
)

// roomy is so much that no run exhausts it: what is measured is a decision among numbers that can all send.
const roomy = 100_000_000

// ask is one reservation with everything that a real one may carry.
func ask(l ledger.Ledger, version ledger.Version, candidates int) decider {
	plenty := ledger.Rate{PerSecond: 1e6, Burst: 1e6}
	budget := ledger.Budget{PerMinute: roomy, PerHour: roomy, PerDay: roomy, NewChatsPerDay: roomy}
	cs := make([]ledger.Candidate, candidates)
	for i := range cs {
		cs[i] = ledger.Candidate{Slug: fleet.SessionSlug(fmt.Sprintf("org-a-%03d", i)), Budget: budget, Rate: plenty, NewChat: true}
	}
	limits := &ledger.Limits{
		Project: "prj_bench", ProjectRate: plenty, OrgRate: plenty, FleetRate: plenty, Backlog: roomy, Quota: roomy, Month: "2026-11",
	}
	return func(ctx context.Context, person int64) error {
		a, err := l.Reserve(ctx, ledger.Request{
			Org: "org-a", Key: strconv.FormatInt(person, 10), Candidates: cs, Strategy: fleet.StrategyWeighted, Rand: rand.Float64(), //nolint:gosec // dice
			Limits: limits, Version: version,
		})
		if err == nil && a.Verdict != ledger.Taken {
			err = fmt.Errorf("%s after %s", a.Verdict, a.Wait)
		}
		return err
	}
}

// multi is the comparison: a pin, three counters per candidate, a choice by the client, and a MULTI that raises the
// winner's counters and pins it. It checks nothing afterwards and gives nothing back.
type multi struct{ client *redis.Client }

func newMulti(addr string) *multi {
	return &multi{redis.NewClient(&redis.Options{Addr: addr, PoolSize: 16})}
}

func (m *multi) close() { _ = m.client.Close() }

func (m *multi) decider(candidates int) decider {
	return func(ctx context.Context, person int64) error {
		pin := "multi:affinity:org-a:" + strconv.FormatInt(person, 10)
		if _, err := m.client.Get(ctx, pin).Result(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		now := time.Now().Unix()
		windows := [3]string{"m:" + strconv.FormatInt(now/60, 10), "h:" + strconv.FormatInt(now/3600, 10), "d:" + strconv.FormatInt(now/86400, 10)}
		keys := make([]string, 0, 3*candidates)
		for i := range candidates {
			for _, w := range windows {
				keys = append(keys, counter(i, w))
			}
		}
		values, err := m.client.MGet(ctx, keys...).Result()
		if err != nil {
			return err
		}
		winner := choose(values)
		_, err = m.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
			for _, w := range windows {
				p.Incr(ctx, counter(winner, w))
			}
			p.Set(ctx, pin, winner, 24*time.Hour)
			return nil
		})
		return err
	}
}

func counter(candidate int, window string) string {
	return "multi:budget:" + strconv.Itoa(candidate) + ":" + window
}

// choose goes by what is left of the hour among those with something left of all three.
func choose(values []any) int {
	var left []int64
	total := int64(0)
	for i := 0; i < len(values); i += 3 {
		var used [3]int64
		for w := range used {
			if text, ok := values[i+w].(string); ok {
				used[w], _ = strconv.ParseInt(text, 10, 64)
			}
		}
		n := int64(0)
		if used[0] < roomy && used[1] < roomy && used[2] < roomy {
			n = roomy - used[1]
		}
		left = append(left, n)
		total += n
	}
	x := rand.Int64N(total) //nolint:gosec // dice
	for i, n := range left {
		if x -= n; x < 0 {
			return i
		}
	}
	return len(left) - 1
}
