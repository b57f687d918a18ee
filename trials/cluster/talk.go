package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// sendTime is how long a client goes on trying to get one message accepted.
const sendTime = 3 * time.Minute

// Send sends by the public API as a careful client does: with an Idempotency-Key made of the text, which must be
// unique, and again under the same key after "not now" and after every answer that did not come. It returns once the
// message was accepted and is on record for the audit. attempts counts the requests.
func (c *Cluster) Send(ctx context.Context, n *Number, text string) (id string, attempts int, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	header := http.Header{"Idempotency-Key": {url.QueryEscape(text)}}
	for {
		attempts++
		var msg struct {
			MessageID string `json:"messageId"`
		}
		err = Call(ctx, "POST", c.API+"/api/v1/messages", n.Key, header, map[string]string{"to": "+" + n.Person, "text": text}, &msg)
		if err == nil {
			c.mu.Lock()
			n.sent[msg.MessageID] = text
			c.mu.Unlock()
			return msg.MessageID, attempts, nil
		}
		if c.Refused != nil {
			c.Refused(err)
		}
		pause := 50 * time.Millisecond
		if refused, ok := errors.AsType[*RefusedError](err); ok {
			again := refused.Status >= 500 || refused.Status == http.StatusTooManyRequests || refused.Code == "IDEMPOTENCY_IN_PROGRESS"
			if !again {
				return "", attempts, err
			}
			pause = max(pause, refused.RetryAfter)
		}
		if Pause(ctx, pause) != nil {
			return "", attempts, fmt.Errorf("%q was not accepted: %w", text, err)
		}
	}
}

// Say lets the person write to the number.
func (c *Cluster) Say(ctx context.Context, n *Number, text string) error {
	var msg struct {
		ID string `json:"id"`
	}
	if err := c.simulator(ctx, "POST", "/sim/phones/"+n.Person+"/send", map[string]string{"to": n.Own, "text": text}, &msg); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n.said[msg.ID] = text
	return nil
}

// Talk lets every number and its person write so many texts to each other, all at the same time, and returns when the
// last was accepted. topic makes the texts unique.
func (c *Cluster) Talk(ctx context.Context, topic string, texts int) error {
	return c.Each(func(n *Number) error {
		for i := range texts {
			if err := c.exchange(ctx, n, fmt.Sprintf("%s %d", topic, i)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *Cluster) exchange(ctx context.Context, n *Number, what string) error {
	if _, _, err := c.Send(ctx, n, fmt.Sprintf("%s to %s", what, n.Person)); err != nil {
		return err
	}
	return c.Say(ctx, n, fmt.Sprintf("%s from %s", what, n.Person))
}

// Storm is traffic in both directions of every number that goes on until it is told to end.
type Storm struct {
	stop chan struct{}
	done chan error
}

// Storm starts one: per number one text each way, then a pause, and again.
func (c *Cluster) Storm(ctx context.Context, topic string, pause time.Duration) *Storm {
	s := &Storm{stop: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		s.done <- c.Each(func(n *Number) error {
			for i := 0; ; i++ {
				select {
				case <-s.stop:
					return nil
				default:
				}
				if err := c.exchange(ctx, n, fmt.Sprintf("%s %d", topic, i)); err != nil {
					return err
				}
				if err := Pause(ctx, pause); err != nil {
					return err
				}
			}
		})
	}()
	return s
}

// End ends the storm and waits until what was begun is accepted.
func (s *Storm) End() error {
	close(s.stop)
	return <-s.done
}

// Settle waits until everything that was said so far has arrived: messages are delivered, and webhooks have told of
// every message and every status.
func (c *Cluster) Settle(ctx context.Context, within time.Duration) error {
	return Until(ctx, within, func() error {
		for _, open := range []struct{ what, query string }{
			{"message", `SELECT id, status FROM messages WHERE status NOT IN ('delivered', 'read', 'played', 'failed') ORDER BY seq LIMIT 1`},
			{"webhook of event", `SELECT event_id, status FROM deliveries WHERE status <> 'done' ORDER BY n LIMIT 1`},
		} {
			left, err := rows(ctx, c, open.query, func(scan func(...any) error) (row struct{ id, status string }, err error) {
				return row, scan(&row.id, &row.status)
			})
			if err != nil {
				return err
			}
			if len(left) > 0 {
				return fmt.Errorf("%s %s is %s", open.what, left[0].id, left[0].status)
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, n := range c.Numbers {
			for id, text := range n.said {
				if !c.sink.told(id) {
					return fmt.Errorf("no webhook of %q, %s", text, id)
				}
			}
		}
		return nil
	})
}

// rows reads what a query finds.
func rows[T any](ctx context.Context, c *Cluster, query string, read func(scan func(...any) error) (T, error)) (all []T, err error) {
	found, err := c.DB.QueryContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", query, err)
	}
	defer found.Close() //nolint:errcheck // Err says it
	for found.Next() {
		row, err := read(found.Scan)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", query, err)
		}
		all = append(all, row)
	}
	return all, found.Err()
}

// Stream is traffic at a rate in both directions, over all numbers in turn, that goes on until it is told to end. Unlike a
// Storm it doesn't wait for answers before it goes on.
type Stream struct {
	stop chan struct{}
	done chan error

	Texts int           // each way, when it has ended
	Took  time.Duration // from its first text to its last
}

// Stream starts one of so many texts a second each way. topic makes them unique.
func (c *Cluster) Stream(ctx context.Context, topic string, perSecond int) *Stream {
	s := &Stream{stop: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		var all sync.WaitGroup
		var mu sync.Mutex
		var errs []error
		say := func(err error) {
			if err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		}
		began := time.Now()
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for running := true; running; {
			select {
			case <-s.stop:
				running = false
			case <-ctx.Done():
				running = false
			case <-tick.C:
				// A ticker drops what a busy machine is too late for, so it is the clock that says how many are due.
				for due := int(time.Since(began).Seconds() * float64(perSecond)); s.Texts < due; s.Texts++ {
					n, i := c.Numbers[s.Texts%len(c.Numbers)], s.Texts
					all.Go(func() {
						_, _, err := c.Send(ctx, n, fmt.Sprintf("%s %d to %s", topic, i, n.Person))
						say(err)
					})
					all.Go(func() { say(c.Say(ctx, n, fmt.Sprintf("%s %d from %s", topic, i, n.Person))) })
				}
			}
		}
		s.Took = time.Since(began)
		all.Wait()
		s.done <- errors.Join(errs...)
	}()
	return s
}

// End ends the stream and waits until what was begun is accepted.
func (s *Stream) End() error {
	close(s.stop)
	return <-s.done
}

// Rate is how many texts a second there were each way.
func (s *Stream) Rate() float64 { return float64(s.Texts) / s.Took.Seconds() }
