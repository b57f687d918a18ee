package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

const (
	between = 12 * time.Second // from one loss to the next
	// lateStop is how long after an opt-out a frame may come to WhatsApp that had left before it.
	lateStop = time.Second
	slowAcks = 1500 // ms: so that reservations are in flight whenever Redis loses them
)

// lostRedis takes Redis' memory away while clients send to two organizations: one whose numbers are always exhausted, and
// one whose people must hear from the number that they know, whatever happens.
func (t *trial) lostRedis(ctx context.Context, v *verdict) error {
	g, err := t.start(ctx, t.binary, "lost", "", v)
	if err != nil {
		return err
	}
	defer g.Close()
	busy, err := g.addOrg(ctx, "org-busy", 1, 3, 40, perMinute)
	if err != nil {
		return err
	}
	loyal, err := g.addOrg(ctx, "org-loyal", 10_001, 3, 40, 0)
	if err != nil {
		return err
	}
	l := &losses{gateway: g, busy: busy, loyal: loyal, stopped: map[string]time.Time{}}
	if err := l.before(ctx); err != nil {
		return err
	}
	if err := g.Fault(ctx, busy.numbers[0], map[string]any{"latencyMs": slowAcks}); err != nil {
		return err
	}
	traffic := l.traffic(ctx)
	err = l.lose(ctx)
	close(traffic.stop)
	traffic.all.Wait()
	if err != nil {
		return err
	}
	if err := g.Fault(ctx, busy.numbers[0], nil); err != nil {
		return err
	}
	if err := l.after(ctx); err != nil {
		return err
	}
	return g.Stop()
}

// losses is one run of lostRedis.
type losses struct {
	*gateway
	busy, loyal *org

	mu      sync.Mutex
	stopped map[string]time.Time // when a person's opt-out was sure
}

// tell sends to a person as a careful client does, until it is known what becomes of it.
func (l *losses) tell(ctx context.Context, o *org, person string, api int) answer {
	text := l.text(o)
	for {
		a := l.send(ctx, o, person, text, api)
		if a.status == http.StatusAccepted || a.status == http.StatusForbidden || ctx.Err() != nil {
			return a
		}
		if cluster.Pause(ctx, max(50*time.Millisecond, min(a.after, time.Second))) != nil {
			return a
		}
		api++
	}
}

// say lets a person write to a number.
func (l *losses) write(ctx context.Context, person, number, text string) error {
	return cluster.Call(ctx, http.MethodPost, l.Sim+"/sim/phones/"+person+"/send", "", nil, map[string]string{"to": number, "text": text}, nil)
}

// stop opts a person out by the API.
func (l *losses) stop(ctx context.Context, o *org, person string) error {
	if err := cluster.Call(ctx, http.MethodPost, l.API+"/api/v1/opt-outs", o.key, nil, map[string]string{"to": "+" + person}, nil); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped[person] = time.Now()
	l.v.OptedOut++
	return nil
}

// before lets everybody of one organization hear from a number, or write to one, and some people opt out.
func (l *losses) before(ctx context.Context) error {
	quiet := len(l.loyal.people) - 6 // the last six are never written to before
	for i, person := range l.loyal.people[:quiet] {
		if a := l.tell(ctx, l.loyal, person, i); a.status != http.StatusAccepted {
			return fmt.Errorf("send to %s: %w", person, a.err)
		}
	}
	for i, person := range l.loyal.people[quiet:] {
		if err := l.write(ctx, person, l.loyal.numbers[i%len(l.loyal.numbers)], "hello"); err != nil {
			return err
		}
	}
	for _, o := range []*org{l.loyal, l.busy} {
		if err := l.stopByKeyword(ctx, o, o.people[0]); err != nil {
			return err
		}
		if err := l.stop(ctx, o, o.people[1]); err != nil {
			return err
		}
	}
	return l.arrived(ctx, time.Minute, never)
}

// stopByKeyword lets a person write STOP to one of the numbers and waits until that is heard.
func (l *losses) stopByKeyword(ctx context.Context, o *org, person string) error {
	if err := l.write(ctx, person, o.numbers[1], "STOP"); err != nil {
		return err
	}
	err := cluster.Until(ctx, 20*time.Second, func() error {
		var page struct {
			Items []struct {
				Phone string `json:"phone"`
			} `json:"items"`
		}
		if err := cluster.Call(ctx, http.MethodGet, l.API+"/api/v1/opt-outs", o.key, nil, nil, &page); err != nil {
			return err
		}
		for _, item := range page.Items {
			if item.Phone == "+"+person {
				return nil
			}
		}
		return errors.New("STOP was not heard")
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped[person] = time.Now()
	l.v.OptedOut++
	return err
}

// running is traffic that goes on until stop is closed.
type running struct {
	stop chan struct{}
	all  sync.WaitGroup
}

// traffic lets clients of both organizations send to everybody.
func (l *losses) traffic(ctx context.Context) *running {
	r := &running{stop: make(chan struct{})}
	client := func(o *org, i int, pause time.Duration) {
		for n := 7 * i; ; n++ {
			select {
			case <-r.stop:
				return
			default:
			}
			person := o.people[n%len(o.people)]
			if o == l.loyal { // until its answer is known
				if n%len(o.people) >= len(o.people)-6 {
					continue // they only wrote so far
				}
				l.tell(ctx, o, person, n)
			} else {
				l.send(ctx, o, person, l.text(o), n)
			}
			if cluster.Pause(ctx, pause) != nil {
				return
			}
		}
	}
	for i := range 4 {
		r.all.Go(func() { client(l.busy, i, 100*time.Millisecond) })
		r.all.Go(func() { client(l.loyal, i, 150*time.Millisecond) })
	}
	return r
}

// lose takes Redis' memory in every way there is.
func (l *losses) lose(ctx context.Context) error {
	do := func(command string) func() error {
		return func() error {
			got, err := l.redis.Do(ctx, command)
			if err == nil && got != "+OK" {
				err = fmt.Errorf("%s: %s", command, got)
			}
			return err
		}
	}
	for i, loss := range []struct {
		name   string
		happen func() error
	}{
		{"FLUSHALL", do("FLUSHALL")},
		{"SCRIPT FLUSH", do("SCRIPT FLUSH")},
		{"kill -9 and a start with what the file has", func() error {
			l.redis.Crash()
			return l.redis.Start(ctx)
		}},
		{"kill -9 and a start with nothing", func() error {
			l.redis.Crash()
			return errors.Join(l.redis.Forget(), l.redis.Start(ctx))
		}},
		{"kill -9, two seconds without, FLUSHALL right after the start", func() error {
			l.redis.Crash()
			return errors.Join(cluster.Pause(ctx, 2*time.Second), l.redis.Start(ctx), do("FLUSHALL")())
		}},
	} {
		if err := cluster.Pause(ctx, between); err != nil {
			return err
		}
		var held int
		if err := l.DB.QueryRowContext(ctx, `SELECT count(*) FROM messages WHERE status IN ('queued', 'sending')`).Scan(&held); err != nil {
			return err
		}
		if held == 0 {
			return fmt.Errorf("nothing is in flight before %s", loss.name)
		}
		l.v.Losses++
		if err := loss.happen(); err != nil {
			return fmt.Errorf("%s: %w", loss.name, err)
		}
		// While messages to them wait.
		if err := l.stop(ctx, l.busy, l.busy.people[2+i]); err != nil {
			return err
		}
		l.mu.Lock()
		l.say("%s, with %d messages in flight; so far %d sent, %d refused", loss.name, held, l.v.Sent, l.v.Refused)
		l.mu.Unlock()
	}
	return cluster.Pause(ctx, between)
}

// after lets those who only wrote hear for the first time, waits until everything has arrived, and audits.
func (l *losses) after(ctx context.Context) error {
	quiet := len(l.loyal.people) - 6
	for i, person := range l.loyal.people[quiet:] {
		if a := l.tell(ctx, l.loyal, person, i); a.status != http.StatusAccepted {
			return fmt.Errorf("send to %s: %w", person, a.err)
		}
	}
	var ended map[string]bool
	if err := cluster.Until(ctx, time.Minute, func() (err error) {
		ended, err = l.suppressed(ctx)
		return err
	}); err != nil {
		return err
	}
	if err := l.arrived(ctx, 2*time.Minute, func(id string) bool { return ended[id] }); err != nil {
		l.say("%v", err)
	}
	if err := l.auditArrivals(ctx, ended); err != nil {
		return err
	}
	if err := l.auditCaps(ctx, l.busy); err != nil {
		return err
	}
	return l.auditPeople(ctx)
}

// suppressed are the messages that an opt-out held back. It fails while a message is not settled.
func (l *losses) suppressed(ctx context.Context) (map[string]bool, error) {
	rows, err := l.DB.QueryContext(ctx, `SELECT id, status FROM messages WHERE status IN ('queued', 'sending', 'suppressed')`)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // Err says it
	ended := map[string]bool{}
	for rows.Next() {
		var id, status string
		if err := rows.Scan(&id, &status); err != nil {
			return nil, err
		}
		if status != "suppressed" {
			return nil, fmt.Errorf("message %s is %s", id, status)
		}
		ended[id] = true
	}
	return ended, rows.Err()
}

// auditPeople counts frames to people who had opted out, and people who heard from another number than before.
func (l *losses) auditPeople(ctx context.Context) error {
	from := map[string]map[string]bool{} // by person: the numbers
	for _, o := range []*org{l.busy, l.loyal} {
		for _, number := range o.numbers {
			frames, err := l.frames(ctx, number)
			if err != nil {
				return err
			}
			for _, e := range frames {
				if at, ok := l.stopped[e.Recipient]; ok && e.At.After(at.Add(lateStop)) {
					l.v.Suppressed++
					l.say("frame %s to %s, who opted out %s before", e.ID, e.Recipient, e.At.Sub(at))
				}
				if o == l.loyal {
					if from[e.Recipient] == nil {
						from[e.Recipient] = map[string]bool{}
					}
					from[e.Recipient][number] = true
				}
			}
		}
	}
	for i, person := range l.loyal.people[len(l.loyal.people)-6:] {
		if from[person] == nil {
			from[person] = map[string]bool{}
		}
		from[person][l.loyal.numbers[i%len(l.loyal.numbers)]] = true // whom they wrote to
	}
	used := map[string]int{}
	for person, numbers := range from {
		for number := range numbers {
			used[number]++
		}
		if len(numbers) > 1 {
			l.v.Strayed++
			l.say("%s hears from %v", person, numbers)
		}
	}
	l.say("%d people of %s hear from %d numbers: %v", len(from), l.loyal.id, len(used), used)
	return nil
}
