package ledger

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/testkit"
)

// machine drives both ledgers with the same calls, and a model that knows frames and nothing of
// buckets' bookkeeping.
type machine struct {
	*clock
	ctx    context.Context //nolint:containedctx // the test's
	both   [2]Ledger       // memory, Redis
	budget map[fleet.SessionSlug]Budget
	rates  map[fleet.SessionSlug]Rate
	state  State
	model  map[fleet.SessionSlug]*modelSession
	held   []modelHold
	redone int64 // ms of the last rebuild
}

// modelSession is when frames left, in ms; first counts new chats only.
type modelSession struct{ frames, first []int64 }

type modelHold struct {
	Reservation
	stored bool // there is a row, which a rebuild would read
	gone   bool // a rebuild did not count it
}

// More than fewCandidates, so that requests with few and with many come.
var machineSlugs = []fleet.SessionSlug{"s-01", "s-02", "s-03", "s-04", "s-05", "s-06", "s-07", "s-08", "s-09", "s-10"}

func (m *machine) session(slug fleet.SessionSlug) *modelSession {
	if m.model[slug] == nil {
		m.model[slug] = &modelSession{}
	}
	return m.model[slug]
}

func (m *machine) ms() int64 { return m.at.UnixMilli() }

// used counts what is in the windows now, by the definition of a window.
func (m *machine) used(slug fleet.SessionSlug) Budget {
	s := m.session(slug)
	count := func(times []int64, span int64) (n int) {
		for _, at := range times {
			if (at/1000/span+61)*span > m.ms()/1000 {
				n++
			}
		}
		return n
	}
	frames, first := slices.Clone(s.frames), slices.Clone(s.first)
	out, chats := 0, 0
	for _, h := range m.held {
		switch {
		case h.Session != slug || h.gone:
		case h.Lapses.After(m.at):
			out++
			if h.NewChat {
				chats++
			}
		default:
			frames = append(frames, h.Lapses.UnixMilli())
			if h.NewChat {
				first = append(first, h.Lapses.UnixMilli())
			}
		}
	}
	return Budget{out + count(frames, 1), out + count(frames, 60), out + count(frames, 1440), chats + count(first, 1440)}
}

// ask calls both ledgers and fails unless they answer the same.
func ask[T any](t *rapid.T, m *machine, what string, f func(l Ledger) (T, error)) T {
	mine, err := f(m.both[0])
	if err != nil {
		t.Fatalf("%s in memory: %v", what, err)
	}
	theirs, err := f(m.both[1])
	if err != nil {
		t.Fatalf("%s in Redis: %v", what, err)
	}
	if diff := cmp.Diff(mine, theirs); diff != "" {
		t.Fatalf("%s: memory and Redis differ (-memory +Redis):\n%s", what, diff)
	}
	return mine
}

func (m *machine) request(t *rapid.T) Request {
	r := Request{
		Org:      "org-a",
		Key:      rapid.SampledFrom([]string{"", "5511900000001", "5511900000002", "lid:1"}).Draw(t, "key"),
		Strategy: rapid.SampledFrom([]fleet.Strategy{fleet.StrategyWeighted, fleet.StrategyPriority, fleet.StrategyRoundRobin}).Draw(t, "strategy"),
		Rand:     rapid.Float64Range(0, 0.999999).Draw(t, "dice"),
		Hold:     time.Duration(rapid.SampledFrom([]int{0, 5, 600, 7200}).Draw(t, "hold")) * time.Second,
	}
	for _, slug := range machineSlugs {
		if rapid.IntRange(0, 3).Draw(t, "in") > 0 {
			r.Candidates = append(r.Candidates, Candidate{
				Slug: slug, Budget: m.budget[slug], Rate: m.rates[slug], NewChat: rapid.Bool().Draw(t, "new chat"),
			})
		}
	}
	if rapid.IntRange(0, 2).Draw(t, "limited") == 0 || len(r.Candidates) == 0 {
		r.Limits = &Limits{
			Project: rapid.SampledFrom([]fleet.ProjectID{"prj_1", "prj_2"}).Draw(t, "project"),
			Backlog: int64(rapid.IntRange(0, 6).Draw(t, "backlog")), Quota: int64(rapid.IntRange(0, 9).Draw(t, "quota")),
			Month:       rapid.SampledFrom([]string{"", "2026-11"}).Draw(t, "month"),
			ProjectRate: rapid.SampledFrom([]Rate{{}, {0.3, 4}}).Draw(t, "project's rate"),
			OrgRate:     rapid.SampledFrom([]Rate{{}, {0.7, 9}}).Draw(t, "organization's rate"),
			FleetRate:   rapid.SampledFrom([]Rate{{}, {1.1, 12}}).Draw(t, "fleet's rate"),
		}
	}
	r.Bound = len(r.Candidates) == 1 && rapid.Bool().Draw(t, "bound")
	return r
}

func (m *machine) reserve(t *rapid.T) {
	r := m.request(t)
	moved := -1
	if len(m.held) > 0 && rapid.IntRange(0, 5).Draw(t, "moves") == 0 {
		if i := rapid.IntRange(0, len(m.held)-1).Draw(t, "which"); m.held[i].stored && !m.held[i].gone {
			moved, r.Move, r.Limits = i, m.held[i].Reservation, nil
			if len(r.Candidates) == 0 {
				return
			}
		}
	}
	a := ask(t, m, "Reserve", func(l Ledger) (Answer, error) { return l.Reserve(m.ctx, r) })
	if a.Verdict != Taken {
		return
	}
	if a.Winner >= 0 {
		c := r.Candidates[a.Winner]
		before, limit := m.used(c.Slug), c.Budget
		if before.PerMinute >= limit.PerMinute || before.PerHour >= limit.PerHour || before.PerDay >= limit.PerDay ||
			c.NewChat && before.NewChatsPerDay >= limit.NewChatsPerDay {
			t.Fatalf("took %s, which has used %v of %v (new chat: %v)", c.Slug, before, limit, c.NewChat)
		}
	}
	if moved >= 0 {
		m.giveUp(moved)
	}
	m.held = append(m.held, modelHold{Reservation: a.Reservation, stored: rapid.IntRange(0, 4).Draw(t, "stored") > 0})
}

// giveUp ends a reservation of the model; one that has lapsed was counted then.
func (m *machine) giveUp(i int) modelHold {
	h := m.held[i]
	m.held = slices.Delete(m.held, i, i+1)
	if h.Session != "" && !h.gone && !h.Lapses.After(m.at) {
		s := m.session(h.Session)
		s.frames = append(s.frames, h.Lapses.UnixMilli())
		if h.NewChat {
			s.first = append(s.first, h.Lapses.UnixMilli())
		}
	}
	return h
}

func (m *machine) settle(t *rapid.T) {
	if len(m.held) == 0 {
		t.Skip("nothing is held")
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "which")
	h := m.held[i]
	s := Settlement{Reservation: h.Reservation, Unstored: !h.stored}
	if h.stored && h.Session != "" {
		s.Frames = rapid.IntRange(0, 1).Draw(t, "frames")
		s.Health = Health(rapid.IntRange(0, 2).Draw(t, "health"))
	}
	s.Ago = min(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms ago"))*time.Millisecond, m.at.Sub(h.At))
	ended := m.ms() - s.Ago.Milliseconds()
	ask(t, m, "Settle", func(l Ledger) (struct{}, error) { return struct{}{}, l.Settle(m.ctx, s) })
	if h.Generation != m.state.Generation && (s.Unstored || ended <= m.redone) {
		if h.gone {
			m.held = slices.Delete(m.held, i, i+1)
		} else {
			m.held[i].stored = false // nobody settles it again, but it stays until it lapses
			m.held[i].gone = false
		}
		return
	}
	m.giveUp(i)
	if s.Frames > 0 && h.Session != "" {
		session := m.session(h.Session)
		session.frames = append(session.frames, ended)
		if h.NewChat {
			session.first = append(session.first, ended)
		}
	}
}

func (m *machine) frame(t *rapid.T) {
	s := Settlement{
		Session: rapid.SampledFrom(machineSlugs).Draw(t, "session"), Frames: rapid.IntRange(0, 1).Draw(t, "frames"),
		Health: Health(rapid.IntRange(0, 2).Draw(t, "health")),
	}
	ask(t, m, "Settle", func(l Ledger) (struct{}, error) { return struct{}{}, l.Settle(m.ctx, s) })
	for range s.Frames {
		m.session(s.Session).frames = append(m.session(s.Session).frames, m.ms())
	}
}

// lose makes both forget and be rebuilt from what rows would say.
func (m *machine) lose(t *rapid.T) {
	m.state.Frames, m.state.Outstanding = nil, nil
	for slug, s := range m.model {
		for _, at := range s.frames {
			m.state.Frames = append(m.state.Frames, FrameCount{Session: slug, At: time.UnixMilli(at), Frames: 1})
		}
		for _, at := range s.first {
			m.state.Frames = append(m.state.Frames, FrameCount{Session: slug, At: time.UnixMilli(at), NewChats: 1})
		}
	}
	for i := range m.held {
		if m.held[i].stored {
			m.state.Outstanding = append(m.state.Outstanding, m.held[i].Reservation)
		} else {
			m.held[i].gone = true
		}
	}
	generation := m.state.Generation
	for _, l := range m.both {
		m.state.Generation = generation
		if err := l.Cool(m.ctx, generation); err != nil {
			t.Fatalf("Cool: %v", err)
		}
		if err := l.Warm(m.ctx); err != nil {
			t.Fatalf("Warm: %v", err)
		}
	}
	m.redone = m.ms()
}

func (m *machine) pins(t *rapid.T) {
	keys := []string{"5511900000001", "5511900000002", "lid:1"}
	key := rapid.SampledFrom(keys).Draw(t, "key")
	slug := rapid.SampledFrom(machineSlugs).Draw(t, "session")
	switch rapid.IntRange(0, 2).Draw(t, "what") {
	case 0:
		ask(t, m, "Pin", func(l Ledger) (fleet.SessionSlug, error) { return l.Pin(m.ctx, "org-a", key, slug, time.Hour) })
	case 1:
		into := rapid.SampledFrom(keys).Draw(t, "into")
		ask(t, m, "Merge", func(l Ledger) (struct{}, error) { return struct{}{}, l.Merge(m.ctx, "org-a", key, into) })
	default:
		ask(t, m, "Unpin", func(l Ledger) (struct{}, error) { return struct{}{}, l.Unpin(m.ctx, "org-a", slug) })
	}
}

// check compares every account with the model.
func (m *machine) check(t *rapid.T) {
	r := Request{Org: "org-a"}
	for _, slug := range machineSlugs {
		r.Candidates = append(r.Candidates, Candidate{Slug: slug})
	}
	v, err := m.both[0].Look(m.ctx, r)
	if err != nil {
		t.Fatalf("Look: %v", err)
	}
	for i, slug := range machineSlugs {
		if diff := cmp.Diff(m.used(slug), v.Accounts[i].Used); diff != "" {
			t.Fatalf("used of %s (-model +ledger):\n%s", slug, diff)
		}
	}
}

// look compares both.
func (m *machine) look(t *rapid.T) {
	r := Request{Org: "org-a", Key: "5511900000001", Limits: &Limits{Project: "prj_1", Backlog: 5, Quota: 5, Month: "2026-11", OrgRate: Rate{0.7, 9}}}
	for _, slug := range machineSlugs {
		r.Candidates = append(r.Candidates, Candidate{Slug: slug, Budget: m.budget[slug], Rate: m.rates[slug], NewChat: true})
	}
	ask(t, m, "Look", func(l Ledger) (View, error) { return l.Look(m.ctx, r) })
}

// TestBothLedgersDecideAlikeAndByTheBudgets is the state machine: any order of calls, the same
// answers, and never a frame above a budget that the model could not have allowed.
func TestBothLedgersDecideAlikeAndByTheBudgets(t *testing.T) {
	addr, prefix := testkit.Redis(t)
	shared, err := NewRedis(RedisOptions{URL: addr, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	// Each call goes to Redis: fewer rounds than rapid's own 100, unless somebody asks for more.
	if checks := flag.Lookup("rapid.checks"); checks != nil && checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("40"); err != nil {
			t.Fatal(err)
		}
	}
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		m := &machine{clock: newClock(), ctx: t.Context(), model: map[fleet.SessionSlug]*modelSession{}, budget: map[fleet.SessionSlug]Budget{}, rates: map[fleet.SessionSlug]Rate{}}
		o := Options{Now: m.now, Rebuild: m.rebuild(&m.state)}.or()
		m.both = [2]Ledger{NewMemory(o), &Redis{o: o, conn: shared.conn, prefix: fmt.Sprintf("%s%d:", prefix, round), log: shared.log}}
		for _, slug := range machineSlugs {
			part := rapid.IntRange(0, 4)
			m.budget[slug] = Budget{part.Draw(t, "per minute"), 2 * part.Draw(t, "per hour"), 3 * part.Draw(t, "per day"), part.Draw(t, "new chats")}
			m.rates[slug] = rapid.SampledFrom([]Rate{{}, {}, {0.05, 2}}).Draw(t, "rate")
		}
		m.lose(t)
		t.Repeat(map[string]func(*rapid.T){
			"":        m.check,
			"reserve": m.reserve, "reserve more": m.reserve, "settle": m.settle, "settle more": m.settle, "frame": m.frame, "lose": m.lose, "pins": m.pins, "look": m.look,
			"advance": func(t *rapid.T) {
				unit := rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute, 30 * time.Minute}).Draw(t, "unit")
				m.advance(time.Duration(rapid.IntRange(1, 100).Draw(t, "units")) * unit)
			},
			"rebase": func(t *rapid.T) {
				n := int64(rapid.IntRange(0, 4).Draw(t, "rows"))
				ask(t, m, "Rebase", func(l Ledger) (struct{}, error) {
					return struct{}{}, l.Rebase(m.ctx, map[fleet.ProjectID]int64{"prj_1": n})
				})
			},
		})
	})
}
