package ledger

import (
	"cmp"
	"context"
	"maps"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// firstSweep is the number of pins at which dead ones are first looked for.
const firstSweep = 1024

// pin makes a session the one a person hears from, for another while.
func (m *Memory) pin(org fleet.OrgID, key string, to fleet.SessionSlug, now int64, ttl time.Duration) {
	m.pins[pinKey{org, key}] = pin{to, now + cmp.Or(ttl, defaultPin).Milliseconds()}
	if len(m.pins) > m.sweepAt {
		maps.DeleteFunc(m.pins, func(_ pinKey, p pin) bool { return now >= p.ends })
		m.sweepAt = max(firstSweep, 2*len(m.pins))
	}
}

// Pin implements Ledger.
func (m *Memory) Pin(ctx context.Context, org fleet.OrgID, key string, to fleet.SessionSlug, ttl time.Duration) (fleet.SessionSlug, error) {
	holder := to
	err := m.locked(ctx, func(now int64) {
		if p, ok := m.pins[pinKey{org, key}]; ok && now < p.ends {
			holder = p.to
			return
		}
		m.pin(org, key, to, now, ttl)
	})
	return holder, err
}

// Merge implements Ledger.
func (m *Memory) Merge(ctx context.Context, org fleet.OrgID, from, into string) error {
	return m.locked(ctx, func(now int64) {
		old, ok := m.pins[pinKey{org, from}]
		if !ok || from == into {
			return
		}
		delete(m.pins, pinKey{org, from})
		if p := m.pins[pinKey{org, into}]; now < old.ends && old.ends > p.ends {
			m.pins[pinKey{org, into}] = old
		}
	})
}

// Unpin implements Ledger.
func (m *Memory) Unpin(ctx context.Context, org fleet.OrgID, from fleet.SessionSlug) error {
	return m.locked(ctx, func(int64) {
		maps.DeleteFunc(m.pins, func(k pinKey, p pin) bool { return k.org == org && p.to == from })
	})
}

// Version implements Ledger.
func (m *Memory) Version(ctx context.Context, org fleet.OrgID) (Version, error) {
	var v Version
	err := m.locked(ctx, func(now int64) {
		if v = m.versions[org]; v == 0 {
			v = m.bump(org, now)
		}
	})
	return v, err
}

// Bump implements Ledger.
func (m *Memory) Bump(ctx context.Context, org fleet.OrgID) (Version, error) {
	var v Version
	err := m.locked(ctx, func(now int64) { v = m.bump(org, now) })
	return v, err
}

// bump makes a version that no lost one can equal: the moment, or one more.
func (m *Memory) bump(org fleet.OrgID, now int64) Version {
	v := max(m.versions[org]+1, Version(now*1000))
	m.versions[org] = v
	return v
}

// Rebase implements Ledger.
func (m *Memory) Rebase(ctx context.Context, rows map[fleet.ProjectID]int64) error {
	return m.locked(ctx, func(int64) {
		for project, n := range rows {
			above := max(0, m.backlog[project]-n)
			off := min(above, m.above[project])
			m.backlog[project] -= off
			m.above[project] = above - off
		}
	})
}
