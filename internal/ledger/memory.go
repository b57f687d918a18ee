package ledger

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Memory is the ledger of one process that has the fleet to itself. It is made anew from rows at each
// start, like one that lost its memory. Nothing in it waits while the lock is held.
type Memory struct {
	o       Options
	warming atomic.Bool

	mu         sync.Mutex
	closed     bool
	generation int64 // 0 = cold
	rebuilt    int64 // ms
	accounts   map[fleet.SessionSlug]*account
	tokens     map[string]bucket
	pins       map[pinKey]pin
	sweepAt    int // number of pins at which dead ones are looked for
	turns      map[fleet.OrgID]int64
	backlog    map[fleet.ProjectID]int64
	above      map[fleet.ProjectID]int64 // what the last Rebase saw too much
	quota      map[quotaKey]int64
	versions   map[fleet.OrgID]Version
	calls      map[string]bucket // of requests; they outlive a rebuild

	free []eligible // scratch of decide
	why  []Why
}

type (
	pinKey struct {
		org fleet.OrgID
		key string
	}
	pin struct {
		to   fleet.SessionSlug
		ends int64 // ms
	}
	quotaKey struct {
		project fleet.ProjectID
		month   string
	}
	// eligible is a candidate that can send, and how much it has left of its hour.
	eligible struct{ index, left int64 }
)

var _ Ledger = (*Memory)(nil)

// NewMemory returns a cold ledger, or an empty warm one if there is nothing to rebuild from.
func NewMemory(o Options) *Memory {
	m := &Memory{
		o: o.or(), versions: map[fleet.OrgID]Version{}, turns: map[fleet.OrgID]int64{},
		pins: map[pinKey]pin{}, sweepAt: firstSweep, calls: map[string]bucket{},
	}
	m.clear()
	if o.Rebuild == nil {
		m.generation, m.rebuilt = 1, m.now()
	}
	return m
}

func (m *Memory) clear() {
	m.accounts = map[fleet.SessionSlug]*account{}
	m.tokens = map[string]bucket{}
	m.backlog = map[fleet.ProjectID]int64{}
	m.above = map[fleet.ProjectID]int64{}
	m.quota = map[quotaKey]int64{}
}

func (m *Memory) now() int64 {
	if m.o.Now != nil {
		return m.o.Now().UnixMilli()
	}
	return time.Now().UnixMilli()
}

// account returns a session's, brought to the second.
func (m *Memory) account(slug fleet.SessionSlug, second int64) *account {
	a := m.accounts[slug]
	if a == nil {
		a = newAccount()
		m.accounts[slug] = a
	}
	a.settle(second)
	return a
}

// locked runs f under the lock on a warm ledger; a cold one is rebuilt first.
func (m *Memory) locked(ctx context.Context, f func(now int64)) error {
	for range 2 {
		if err := ctx.Err(); err != nil {
			return err
		}
		m.mu.Lock()
		closed, warm := m.closed, m.generation != 0
		if warm && !closed {
			f(m.now())
		}
		m.mu.Unlock()
		switch {
		case closed:
			return errClosed
		case warm:
			return nil
		}
		if err := m.Warm(ctx); err != nil {
			return err
		}
	}
	return errCold() // made cold again as soon as it was warm
}

// Reserve implements Ledger.
func (m *Memory) Reserve(ctx context.Context, r Request) (Answer, error) {
	if err := r.check(); err != nil {
		return Answer{}, err
	}
	var a Answer
	err := m.locked(ctx, func(now int64) {
		if a = m.decide(now, &r); a.Verdict == Taken {
			m.take(now, &r, &a)
		}
	})
	return a, err
}

// Look implements Ledger.
func (m *Memory) Look(ctx context.Context, r Request) (View, error) {
	if err := r.check(); err != nil {
		return View{}, err
	}
	var v View
	err := m.locked(ctx, func(now int64) {
		v = View{Answer: m.decide(now, &r), Accounts: make([]Account, len(r.Candidates))}
		for i, c := range r.Candidates {
			a := m.account(c.Slug, now/1000)
			why, _ := m.passes(a, &c, &r, now)
			v.Accounts[i] = Account{
				Why: why, Outstanding: int(a.out), Health: a.well(now),
				Used: Budget{int(a.used(minute)), int(a.used(hour)), int(a.used(day)), int(a.used(newChats))},
			}
		}
	})
	return v, err
}

// decide picks the winner and changes nothing that counts.
func (m *Memory) decide(now int64, r *Request) Answer {
	a := Answer{Winner: -1}
	if v := m.versions[r.Org]; r.Version != 0 && r.Version != v {
		a.Verdict, a.Version = Stale, v
		return a
	}
	if l := r.Limits; l != nil {
		if wait := m.lacks(now, r.Org, l); wait > 0 {
			a.Verdict, a.Wait = Rated, time.Duration(wait)*time.Millisecond
			return a
		}
		if l.Month != "" && l.Quota > 0 && m.quota[quotaKey{l.Project, l.Month}] >= l.Quota {
			a.Verdict = Overdrawn
			return a
		}
		if l.Backlog > 0 && m.backlog[l.Project] >= l.Backlog {
			a.Verdict = Backlog
			return a
		}
		if len(r.Candidates) == 0 {
			a.Verdict = Taken
			return a
		}
	}
	m.pick(now, r, &a)
	return a
}

// pick chooses among the candidates: the pinned one if it can send, else by strategy.
func (m *Memory) pick(now int64, r *Request, a *Answer) {
	if i := m.pinned(now, r); i >= 0 {
		c := &r.Candidates[i]
		if why, _ := m.passes(m.account(c.Slug, now/1000), c, r, now); why == Free {
			a.Verdict, a.Winner, a.Pinned = Taken, i, true
			return
		}
	}
	if i := m.sample(now, r); i >= 0 {
		a.Verdict, a.Winner = Taken, i
		return
	}
	m.free, m.why = m.free[:0], m.why[:0]
	soon, total := int64(math.MaxInt64), int64(0)
	for i := range r.Candidates {
		c := &r.Candidates[i]
		acc := m.account(c.Slug, now/1000)
		why, at := m.passes(acc, c, r, now)
		m.why = append(m.why, why)
		if why != Free {
			soon = min(soon, at)
			continue
		}
		left := c.Budget.cap(hour) - acc.used(hour)
		m.free = append(m.free, eligible{int64(i), left})
		total += left
	}
	switch {
	case len(m.free) > 0:
		a.Verdict, a.Winner = Taken, int(m.free[m.choose(r, total)].index)
		return
	case soon == math.MaxInt64:
		a.Verdict = Ineligible
	default:
		a.Verdict, a.Wait = Exhausted, time.Duration(soon-now)*time.Millisecond
	}
	a.Why = append(a.Why, m.why...)
}

// pinned is the index of the candidate that the recipient hears from, or -1.
func (m *Memory) pinned(now int64, r *Request) int {
	if r.Key == "" || r.Bound {
		return -1
	}
	p := m.pins[pinKey{r.Org, r.Key}]
	if now >= p.ends {
		return -1
	}
	return slices.IndexFunc(r.Candidates, func(c Candidate) bool { return c.Slug == p.to })
}

// sample is the index of the candidate that the throws take, or -1.
func (m *Memory) sample(now int64, r *Request) int {
	throws := r.throws()
	if len(throws) == 0 {
		return -1
	}
	largest := int64(0)
	for i := range r.Candidates {
		largest = max(largest, r.Candidates[i].Budget.cap(hour))
	}
	for _, t := range throws {
		i := int(t.which * float64(len(r.Candidates)))
		c := &r.Candidates[i]
		acc := m.account(c.Slug, now/1000)
		why, _ := m.passes(acc, c, r, now)
		if left := c.Budget.cap(hour) - acc.used(hour); why == Free && t.take*float64(largest) < float64(left) {
			return i
		}
	}
	return -1
}

// choose returns the place of the winner in free.
func (m *Memory) choose(r *Request, total int64) int {
	switch r.Strategy {
	case fleet.StrategyPriority:
		return 0
	case fleet.StrategyRoundRobin:
		return int(m.turns[r.Org] % int64(len(m.free)))
	default:
		x := math.Floor(r.Rand * float64(total))
		for i, e := range m.free {
			if x -= float64(e.left); x < 0 {
				return i
			}
		}
		return len(m.free) - 1
	}
}

// passes says whether a candidate can send, and if not, why and when it can by waiting (ms).
func (m *Memory) passes(a *account, c *Candidate, r *Request, now int64) (why Why, at int64) {
	if !r.Bound && a.well(now) < m.o.HealthMin {
		return Unwell, math.MaxInt64
	}
	for i := range windows {
		if i == newChats && !c.NewChat {
			continue
		}
		limit := c.Budget.cap(i)
		over := a.used(i) - limit + 1
		if over <= 0 {
			continue
		}
		if why == Free {
			why = Minute + Why(i)
		}
		if limit <= 0 {
			at = math.MaxInt64
		} else {
			at = max(at, a.windows[i].frees(now/1000, over)*1000)
		}
	}
	if c.Rate.PerSecond > 0 {
		if wait := lacks(m.level(a.tokens, c.Rate, now), c.Rate); wait > 0 {
			if why == Free {
				why = Tokens
			}
			at = max(at, now+wait)
		}
	}
	return why, at
}

// level of a token bucket. One that nobody took from begins empty when the ledger was rebuilt.
func (m *Memory) level(b bucket, r Rate, now int64) float64 {
	if b.at == 0 {
		b.at = m.rebuilt
	}
	return b.now(now, r)
}

// lacks is how many ms the shared token buckets need.
func (m *Memory) lacks(now int64, org fleet.OrgID, l *Limits) (wait int64) {
	l.each(org, func(key string, r Rate) { wait = max(wait, lacks(m.level(m.tokens[key], r, now), r)) })
	return wait
}

// take takes what decide found free.
func (m *Memory) take(now int64, r *Request, a *Answer) {
	res := Reservation{Generation: m.generation, At: time.UnixMilli(now)}
	draw := func(b bucket, rate Rate) bucket { return bucket{m.level(b, rate, now) - 1, now, rate} }
	if l := r.Limits; l != nil {
		l.each(r.Org, func(key string, rate Rate) { m.tokens[key] = draw(m.tokens[key], rate) })
		res.Org, res.Project, res.Month = r.Org, l.Project, l.Month
		m.backlog[l.Project]++
		if l.Month != "" {
			m.quota[quotaKey{l.Project, l.Month}]++
		}
	}
	if a.Winner >= 0 {
		c := &r.Candidates[a.Winner]
		res.Session, res.NewChat = c.Slug, c.NewChat
		lapses := lapse(now, r.Hold)
		res.Lapses = time.Unix(lapses, 0)
		acc := m.account(c.Slug, now/1000)
		acc.hold(lapses, c.NewChat)
		if c.Rate.PerSecond > 0 {
			acc.tokens = draw(acc.tokens, c.Rate)
		}
		if !a.Pinned && !r.Bound && r.Strategy == fleet.StrategyRoundRobin {
			m.turns[r.Org]++
		}
		if r.Key != "" && !r.Bound {
			m.pin(r.Org, r.Key, c.Slug, now, r.AffinityTTL)
		}
	}
	if !r.Move.IsZero() {
		if r.Limits == nil {
			res.Org, res.Project, res.Month = r.Move.Org, r.Move.Project, r.Move.Month
		}
		m.giveBack(now, r.Move)
	}
	a.Reservation = res
}
