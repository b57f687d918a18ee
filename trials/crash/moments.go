package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// assassin kills workers at chosen moments.
type assassin struct {
	t       *trial
	c       *cluster.Cluster
	moments map[string]int
	off     map[*cluster.Number]time.Time // phones that are off, since when
}

func newAssassin(t *trial, c *cluster.Cluster) *assassin {
	return &assassin{t: t, c: c, moments: map[string]int{}, off: map[*cluster.Number]time.Time{}}
}

// strike waits for a moment, kills the worker at it, and starts it again. Of ten kills four come at random, two between
// the relay of a message and its ack, two between the decryption of an incoming message and the commit, one between
// relay and ack while the recipients' phones are off, so that no receipt settles what became of the message and it is
// repeated, and one right after the last start, in the middle of claims and logins.
func (a *assassin) strike(ctx context.Context, i int, name string) error {
	var moment string
	var err error
	kill := func() error { return a.kill(ctx, name) }
	switch i % 10 {
	case 1, 6:
		moment, err = "before the ack", a.beforeAck(ctx, name, false, kill)
	case 3, 8:
		moment, err = "before the commit", a.beforeCommit(ctx, kill)
	case 4:
		moment, err = "before the ack, phones off", a.beforeAck(ctx, name, true, kill)
	case 9:
		moment, err = "after a start", kill()
	default:
		if err = cluster.Pause(ctx, a.t.between(300*time.Millisecond, 3*time.Second)); err == nil {
			moment, err = "at random", kill()
		}
	}
	if err != nil {
		return fmt.Errorf("kill %d, %s %s: %w", i+1, name, moment, err)
	}
	a.moments[moment]++
	for n, since := range a.off {
		if time.Since(since) > 25*time.Second { // the first repeat was 15 s after the takeover
			if err := a.power(ctx, n, true); err != nil {
				return err
			}
		}
	}
	if (i+1)%10 == 0 {
		a.t.say("%d kills", i+1)
	}
	return a.c.Restart(ctx, name)
}

func (a *assassin) kill(ctx context.Context, name string) error {
	p := a.c.Process(name)
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	code, err := p.Wait(ctx)
	if err == nil && code != -1 {
		err = fmt.Errorf("%s ended with %d, want the signal (log: %s)", name, code, p.LogPath())
	}
	a.t.killed++
	return err
}

// beforeAck lets WhatsApp's acks to some sessions of the worker get lost and keeps the recipients' phones off, waits
// until a message of one of them is relayed, kills, and mends; the phones may stay off. Nobody may have a session just
// then: it kills all the same.
func (a *assassin) beforeAck(ctx context.Context, name string, phonesOff bool, kill func() error) error {
	victims, err := a.sessionsOf(ctx, name, 3)
	if err != nil {
		return err
	}
	for _, n := range victims {
		if err := a.power(ctx, n, false); err != nil {
			return err
		}
		if err := a.c.Fault(ctx, n.Own, map[string]any{"dropAcks": true}); err != nil {
			return err
		}
	}
	waited := cluster.Until(ctx, 4*time.Second, func() error {
		for _, n := range victims {
			if err := a.c.InFlight(ctx, n); err == nil {
				return nil
			}
		}
		return errors.New("nothing was relayed")
	})
	if err := kill(); err != nil {
		return err
	}
	for _, n := range victims {
		if err := a.c.Fault(ctx, n.Own, nil); err != nil {
			return err
		}
		if !phonesOff {
			if err := a.power(ctx, n, true); err != nil {
				return err
			}
		}
	}
	if waited != nil {
		a.moments["before the ack, but nothing was on the way"]++
	}
	return ctx.Err()
}

// beforeCommit makes the database slow for incoming messages, waits until one waits to be committed, kills, and lets the
// database go on.
func (a *assassin) beforeCommit(ctx context.Context, kill func() error) error {
	conn, err := a.c.DB.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the transaction in it is what counts
	for _, statement := range []string{`SET idle_in_transaction_session_timeout=0`, `BEGIN`, `LOCK TABLE inbound_messages IN EXCLUSIVE MODE`} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	waited := cluster.Until(ctx, 1500*time.Millisecond, func() error {
		var waiting int
		err := a.c.DB.QueryRowContext(ctx, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation='inbound_messages'::regclass`).Scan(&waiting)
		if err == nil && waiting == 0 {
			err = errors.New("nobody waits for a commit")
		}
		return err
	})
	killed := kill()
	if waited != nil {
		a.moments["before the commit, but nothing came"]++
	}
	_, err = conn.ExecContext(ctx, `ROLLBACK`)
	return errors.Join(killed, err)
}

// sessionsOf returns some numbers whose sessions are connected on a worker.
func (a *assassin) sessionsOf(ctx context.Context, name string, most int) (some []*cluster.Number, err error) {
	err = cluster.Until(ctx, 15*time.Second, func() error {
		sessions, err := a.c.Sessions(ctx)
		if err != nil {
			return err
		}
		some = nil
		for _, n := range a.c.Numbers {
			if s := sessions[n.Slug]; s.Connected && s.WorkerID() == name && len(some) < most && a.off[n].IsZero() {
				some = append(some, n)
			}
		}
		if len(some) == 0 {
			return fmt.Errorf("%s has no connected session", name)
		}
		return nil
	})
	if ctx.Err() == nil {
		err = nil // then it is a kill of a worker without sessions
	}
	return some, err
}

func (a *assassin) power(ctx context.Context, n *cluster.Number, on bool) error {
	if on {
		delete(a.off, n)
	} else {
		a.off[n] = time.Now()
	}
	return a.c.Power(ctx, n.Person, on)
}

// mend switches on the phones that are still off, once what was sent to them was repeated.
func (a *assassin) mend(ctx context.Context) error {
	for n, since := range a.off {
		if err := cluster.Pause(ctx, max(0, 25*time.Second-time.Since(since))); err != nil {
			return err
		}
		if err := a.power(ctx, n, true); err != nil {
			return err
		}
	}
	return nil
}
