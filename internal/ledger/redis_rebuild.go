package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/redis"
)

// Warm implements Ledger.
func (l *Redis) Warm(ctx context.Context) error {
	_, err := l.do(ctx, "probe")
	if errors.Is(err, errForgot) || errors.Is(err, errUnmarked) {
		return l.rebuild(ctx)
	}
	return err
}

// rebuild makes the ledger anew, unless another process was faster.
func (l *Redis) rebuild(ctx context.Context) error {
	if !l.warming.CompareAndSwap(false, true) {
		return errCold()
	}
	defer l.warming.Store(false)
	begun := time.Now()
	loaded := int64(0)
	load := func(ctx context.Context, s State) error {
		loaded = s.Generation
		return l.load(ctx, s)
	}
	var err error
	if l.o.Rebuild == nil {
		var is bool
		if is, err = l.cold(ctx); is {
			err = load(ctx, State{Generation: 1})
		}
	} else {
		err = l.o.Rebuild(ctx, l.cold, load)
	}
	if err != nil {
		if loaded != 0 { // its generation may not have been committed
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
			defer cancel()
			if cool := l.Cool(undo, loaded); cool != nil {
				l.log.WarnContext(ctx, "a ledger that was not committed stays until an INSERT finds it", slog.Any("err", cool))
			}
		}
		return fmt.Errorf("rebuild the ledger: %w: %w", errCold(), err)
	}
	if loaded != 0 {
		l.log.InfoContext(ctx, "ledger rebuilt", slog.Int64("generation", loaded), slog.Duration("took", time.Since(begun)))
	}
	return nil
}

// cold looks again. A server that forgot the script is made to know it, but never with a marker of
// before in place: that would be a ledger that looks warm and has lost its last second.
func (l *Redis) cold(ctx context.Context) (bool, error) {
	client, err := l.conn.Client()
	if err != nil {
		return false, err
	}
	for range 5 {
		_, err := l.do(ctx, "probe")
		switch {
		case errors.Is(err, errUnmarked):
			return true, nil
		case !errors.Is(err, errForgot):
			return false, err
		}
		if err := l.teach(ctx, client); err != nil {
			return false, err
		}
		// It may have been restarted in between and have the marker back: then it must go again.
		if _, err := l.do(ctx, "probe"); err == nil {
			if err := l.drop(ctx, client); err != nil {
				return false, err
			}
		}
	}
	return false, errCold()
}

func (l *Redis) teach(ctx context.Context, client rueidis.Client) error {
	if err := l.drop(ctx, client); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	sha, err := client.Do(ctx, client.B().ScriptLoad().Script(script).Build()).ToString()
	if err != nil {
		return fmt.Errorf("load the script: %w", redis.Unavailable(err))
	}
	if sha != scriptSHA {
		return fmt.Errorf("load the script: Redis calls it %s, want %s", sha, scriptSHA)
	}
	return nil
}

// drop deletes the marker.
func (l *Redis) drop(ctx context.Context, client rueidis.Client) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := client.Do(ctx, client.B().Del().Key(l.prefix+"wa:ledger").Build()).Error(); err != nil {
		return fmt.Errorf("delete the marker: %w", redis.Unavailable(err))
	}
	return nil
}

const (
	keepSeconds = 187_200 // the script's KEEP
	loadBatch   = 500
)

// load writes a state under names of its generation, which nobody reads before the marker names it.
func (l *Redis) load(ctx context.Context, s State) error {
	if s.Generation == 0 {
		return errNoGeneration
	}
	client, err := l.conn.Client()
	if err != nil {
		return err
	}
	gen := strconv.FormatInt(s.Generation, 10)
	name := func(parts ...string) string { return l.prefix + "wa:" + strings.Join(parts, ":") }
	var batch rueidis.Commands
	flush := func(least int) error {
		if len(batch) < least {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, 5*callLimit)
		defer cancel()
		for _, r := range client.DoMulti(ctx, batch...) {
			if err := r.Error(); err != nil {
				return fmt.Errorf("load the ledger: %w", redis.Unavailable(err))
			}
		}
		batch = batch[:0]
		return nil
	}
	put := func(key, value string, seconds int64) error {
		batch = append(batch, client.B().Set().Key(key).Value(value).ExSeconds(seconds).Build())
		return flush(loadBatch)
	}
	now := time.Now().UnixMilli()
	if l.o.Now != nil {
		now = l.o.Now().UnixMilli()
	}
	for _, hash := range []string{"budget", "limits"} { // what stands for their not being evicted
		batch = append(batch, client.B().Hset().Key(name(hash, gen)).FieldValue().FieldValue("*", "").Build())
	}
	for slug, a := range s.accounts(now) {
		header, lists := a.pack()
		ring := name("ring", gen, string(slug))
		batch = append(batch,
			client.B().Hset().Key(name("budget", gen)).FieldValue().FieldValue(string(slug), header).Build(),
			client.B().Hset().Key(ring).FieldValue().FieldValue("m", lists[minute]).FieldValue("h", lists[hour]).
				FieldValue("d", lists[day]).FieldValue("n", lists[newChats]).Build(),
			client.B().Expire().Key(ring).Seconds(keepSeconds).Build())
		if now < a.healthEnds {
			if err := put(name("health", string(slug)), fmt.Sprintf("%d %d", a.health, a.healthEnds), int64(healthTTL/time.Second)); err != nil {
				return err
			}
		}
		if err := flush(loadBatch); err != nil {
			return err
		}
	}
	for _, p := range s.Pins {
		left := p.Until.UnixMilli() - now
		if left <= 0 {
			continue
		}
		if err := put(name("affinity", string(p.Org), p.Key), fmt.Sprintf("%s %d", p.Session, p.Until.UnixMilli()), left/1000+1); err != nil {
			return err
		}
	}
	limit := func(field string, n int64) error {
		batch = append(batch, client.B().Hset().Key(name("limits", gen)).FieldValue().FieldValue(field, strconv.FormatInt(n, 10)).Build())
		return flush(loadBatch)
	}
	for project, n := range s.Backlog {
		if err := limit("b:"+string(project), n); err != nil {
			return err
		}
	}
	for _, q := range s.Quota {
		if err := limit("q:"+string(q.Project)+":"+q.Month, q.Used); err != nil {
			return err
		}
	}
	if err := flush(1); err != nil {
		return err
	}
	_, err = l.do(ctx, "open", gen)
	return err
}

// accounts are what the state says of each session.
func (s *State) accounts(now int64) map[fleet.SessionSlug]*account {
	accounts := map[fleet.SessionSlug]*account{}
	of := func(slug fleet.SessionSlug) *account {
		a := accounts[slug]
		if a == nil {
			a = newAccount()
			accounts[slug] = a
		}
		return a
	}
	for _, f := range s.Frames {
		of(f.Session).count(f.At.Unix(), int64(f.Frames), int64(f.NewChats))
	}
	for _, r := range s.Outstanding {
		if r.Session != "" {
			of(r.Session).hold(r.Lapses.Unix(), r.NewChat)
		}
	}
	for slug, health := range s.Health {
		a := of(slug)
		a.health, a.healthEnds = health, now+healthTTL.Milliseconds()
	}
	return accounts
}
