package ledger

import (
	"cmp"
	"context"
	"crypto/sha1" //nolint:gosec // how Redis names scripts
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/redis"
)

//go:embed ledger.lua
var script string

var scriptSHA = func() string {
	sum := sha1.Sum([]byte(script)) //nolint:gosec // how Redis names scripts
	return hex.EncodeToString(sum[:])
}()

const (
	callLimit   = 2 * time.Second // one call of the script
	callRest    = time.Second     // a server that did not answer is not asked for so long
	settleBatch = 100             // settlements in one call of the script
)

// RedisOptions of NewRedis.
type RedisOptions struct {
	Options
	URL    string
	Prefix string // goes in front of every key, so that several fleets can share a server
	Log    *slog.Logger
}

// Redis is the ledger between processes: one script on one server, which only the server's memory
// makes fast and whose loss of memory it notices.
//
// The script is called by its hash only. A server that doesn't know it has lost its memory: it was
// restarted, or is a replica that took over. That is so even if its data are back, since the last
// second of them may be missing. A missing marker key is the other sign: the data were flushed.
type Redis struct {
	o       Options
	conn    *redis.Conn
	prefix  string
	log     *slog.Logger
	warming atomic.Bool
	closed  atomic.Bool
	rests   atomic.Int64 // unix ms before which the server is not asked
}

var _ Ledger = (*Redis)(nil)

// NewRedis connects. A server that can't be reached now is dialled until it can; meanwhile every call
// fails as unavailable. One that answers and refuses us is an error.
func NewRedis(o RedisOptions) (*Redis, error) {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	conn, err := redis.Open(o.URL, "ledger", log)
	if err != nil {
		return nil, err
	}
	return &Redis{o: o.or(), conn: conn, prefix: o.Prefix, log: log}, nil
}

// errBroken says that the connection ended in mid-call: whether it was done isn't known.
var errBroken = fmt.Errorf("the connection to Redis broke: %w", fleet.ErrUnavailable)

// errForgot says that the server doesn't know the script, errUnmarked that the marker is missing.
var (
	errForgot   = fmt.Errorf("Redis lost its memory: %w", fleet.ErrUnavailable)
	errUnmarked = fmt.Errorf("the ledger in Redis is cold: %w", fleet.ErrUnavailable)
)

// do calls the script once.
func (l *Redis) do(ctx context.Context, op string, args ...string) (reply, error) {
	if l.closed.Load() {
		return nil, errClosed
	}
	client, err := l.conn.Client()
	if err != nil {
		return nil, err
	}
	if time.Now().UnixMilli() < l.rests.Load() {
		return nil, fmt.Errorf("%w: Redis did not answer the last time", fleet.ErrUnavailable)
	}
	now := "0"
	if l.o.Now != nil {
		now = strconv.FormatInt(l.o.Now().UnixMilli(), 10)
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	got, err := client.Do(call, client.B().Evalsha().Sha1(scriptSHA).Numkeys(1).Key(l.prefix).Arg(op, now).Arg(args...).Build()).ToArray()
	if err != nil {
		return nil, l.failed(ctx, op, err)
	}
	r := reply(got)
	if r.word(0) == "cold" {
		return nil, errUnmarked
	}
	return r, nil
}

func (l *Redis) failed(ctx context.Context, op string, err error) error {
	if refusal, ok := rueidis.IsRedisErr(err); ok {
		if refusal.IsNoScript() {
			return errForgot
		}
	} else if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		l.rests.Store(time.Now().Add(callRest).UnixMilli())
	} else if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("ledger: %s: %w: %w", op, errBroken, err)
	}
	return fmt.Errorf("ledger: %s: %w", op, redis.Unavailable(err))
}

// call does so on a warm ledger; a cold one is rebuilt first.
func (l *Redis) call(ctx context.Context, op string, args ...string) (reply, error) {
	r, err := l.do(ctx, op, args...)
	if errors.Is(err, errBroken) && op != "settle" && op != "rebase" && ctx.Err() == nil {
		r, err = l.do(ctx, op, args...) // at worst it is done twice, and the first reservation lapses
	}
	if err == nil || !errors.Is(err, errForgot) && !errors.Is(err, errUnmarked) {
		return r, err
	}
	if err := l.rebuild(ctx); err != nil {
		return nil, err
	}
	r, err = l.do(ctx, op, args...)
	if errors.Is(err, errForgot) || errors.Is(err, errUnmarked) {
		return nil, errCold() // lost again
	}
	return r, err
}

// reply of the script.
type reply []rueidis.RedisMessage

func (r reply) word(i int) string {
	if i >= len(r) {
		return ""
	}
	s, _ := r[i].ToString()
	return s
}

func (r reply) number(i int) int64 {
	if i >= len(r) {
		return 0
	}
	n, _ := r[i].AsInt64()
	return n
}

// Reserve implements Ledger.
func (l *Redis) Reserve(ctx context.Context, r Request) (Answer, error) {
	if err := r.check(); err != nil {
		return Answer{}, err
	}
	got, err := l.call(ctx, "reserve", l.arguments(&r)...)
	if err != nil {
		return Answer{}, err
	}
	a := got.answer()
	if a.Verdict != Taken {
		return a, nil
	}
	a.Winner, a.Pinned = int(got.number(1))-1, got.number(2) == 1
	res := Reservation{Generation: got.number(3), At: time.UnixMilli(got.number(4))}
	if a.Winner >= 0 {
		c := &r.Candidates[a.Winner]
		res.Session, res.NewChat, res.Lapses = c.Slug, c.NewChat, time.Unix(got.number(5), 0)
	}
	if r.Limits != nil {
		res.Org, res.Project, res.Month = r.Org, r.Limits.Project, r.Limits.Month
	} else {
		res.Org, res.Project, res.Month = r.Move.Org, r.Move.Project, r.Move.Month
	}
	a.Reservation = res
	return a, nil
}

// answer reads a refusal.
func (r reply) answer() Answer {
	a := Answer{Verdict: Verdict(r.word(0)), Winner: -1}
	switch a.Verdict {
	case Stale:
		a.Version = Version(r.number(1))
	case Rated:
		a.Wait = time.Duration(r.number(1)) * time.Millisecond
	case Exhausted, Ineligible:
		a.Wait = time.Duration(r.number(1)) * time.Millisecond
		for _, why := range []byte(r.word(2)) {
			a.Why = append(a.Why, Why(why))
		}
	case Taken, Overdrawn, Backlog:
	}
	return a
}

// Look implements Ledger.
func (l *Redis) Look(ctx context.Context, r Request) (View, error) {
	if err := r.check(); err != nil {
		return View{}, err
	}
	got, err := l.call(ctx, "look", l.arguments(&r)...)
	if err != nil {
		return View{}, err
	}
	v := View{Answer: got.answer()}
	if v.Verdict == Taken {
		v.Winner, v.Pinned = int(got.number(1))-1, got.word(2) == "1"
	}
	v.Accounts, err = unpackAccounts(got.word(3), len(r.Candidates))
	return v, err
}

// Settle implements Ledger.
func (l *Redis) Settle(ctx context.Context, settlements ...Settlement) error {
	for i := range settlements {
		if err := settlements[i].check(); err != nil {
			return err
		}
	}
	for len(settlements) > 0 {
		n := min(settleBatch, len(settlements))
		args := make([]string, 0, 12*n)
		for i := range settlements[:n] {
			args = l.settlement(args, &settlements[i])
		}
		if _, err := l.call(ctx, "settle", args...); err != nil {
			return err
		}
		settlements = settlements[n:]
	}
	return nil
}

func (l *Redis) settlement(args []string, s *Settlement) []string {
	r := s.Reservation
	generation, lapses := "", "0"
	if !r.IsZero() {
		generation = strconv.FormatInt(r.Generation, 10)
	}
	if r.Session != "" {
		lapses = strconv.FormatInt(r.Lapses.Unix(), 10)
	}
	by := 0
	switch s.Health {
	case HealthBad:
		by = -l.o.HealthPenalty
	case HealthGood:
		by = l.o.HealthReward
	case HealthSame:
	}
	return append(args,
		string(s.slug()), generation, ms(r.At), lapses, digit(r.NewChat), string(r.Org), string(r.Project), r.Month,
		strconv.Itoa(s.Frames), strconv.FormatInt(max(0, s.Ago.Milliseconds()), 10), digit(s.Unstored), strconv.Itoa(by))
}

// Pin implements Ledger.
func (l *Redis) Pin(ctx context.Context, org fleet.OrgID, key string, to fleet.SessionSlug, ttl time.Duration) (fleet.SessionSlug, error) {
	got, err := l.call(ctx, "pin", string(org), key, string(to), strconv.FormatInt(cmp.Or(ttl, defaultPin).Milliseconds(), 10))
	return fleet.SessionSlug(got.word(1)), err
}

// Merge implements Ledger.
func (l *Redis) Merge(ctx context.Context, org fleet.OrgID, from, into string) error {
	if from == into {
		return nil
	}
	_, err := l.call(ctx, "merge", string(org), from, into)
	return err
}

// Unpin implements Ledger. It reads every key of the server, as a change that a person makes may.
func (l *Redis) Unpin(ctx context.Context, org fleet.OrgID, from fleet.SessionSlug) error {
	client, err := l.conn.Client()
	if err != nil {
		return err
	}
	pattern := globEscape.Replace(l.prefix+"wa:affinity:"+string(org)+":") + "*"
	for cursor := uint64(0); ; {
		page, err := l.scan(ctx, client, cursor, pattern)
		if err != nil {
			return err
		}
		if len(page.Elements) > 0 {
			if _, err := l.call(ctx, "unpin", append([]string{string(from)}, page.Elements...)...); err != nil {
				return err
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
	}
}

func (l *Redis) scan(ctx context.Context, client rueidis.Client, cursor uint64, pattern string) (rueidis.ScanEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	page, err := client.Do(ctx, client.B().Scan().Cursor(cursor).Match(pattern).Count(1000).Build()).AsScanEntry()
	if err != nil {
		return page, l.failed(ctx, "scan", err)
	}
	return page, nil
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// Version implements Ledger.
func (l *Redis) Version(ctx context.Context, org fleet.OrgID) (Version, error) {
	got, err := l.call(ctx, "version", string(org))
	return Version(got.number(1)), err
}

// Bump implements Ledger.
func (l *Redis) Bump(ctx context.Context, org fleet.OrgID) (Version, error) {
	got, err := l.call(ctx, "bump", string(org))
	return Version(got.number(1)), err
}

// Rebase implements Ledger.
func (l *Redis) Rebase(ctx context.Context, rows map[fleet.ProjectID]int64) error {
	if len(rows) == 0 {
		return nil
	}
	args := make([]string, 0, 2*len(rows))
	for project, n := range rows {
		args = append(args, string(project), strconv.FormatInt(n, 10))
	}
	_, err := l.call(ctx, "rebase", args...)
	return err
}

// Cool implements Ledger.
func (l *Redis) Cool(ctx context.Context, generation int64) error {
	_, err := l.do(ctx, "cool", strconv.FormatInt(generation, 10))
	if errors.Is(err, errUnmarked) || errors.Is(err, errForgot) {
		return nil // it is
	}
	return err
}

// Close implements Ledger.
func (l *Redis) Close() {
	if !l.closed.Swap(true) {
		l.conn.Close()
	}
}
