package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/redis"
)

const (
	publishLimit   = time.Second            // Publish and Ping
	subscribeLimit = 2 * time.Second        // how long Subscribe waits to be heard
	retryFirst     = 100 * time.Millisecond // pause before the first re-subscription …
	retryMost      = 2 * time.Second        // … and the longest one
	publishRest    = 5 * time.Second        // nothing is published for so long after one publishing failed
)

// RedisOptions of NewRedis.
type RedisOptions struct {
	// URL is redis://, rediss:// (TLS) or unix://; host:port alone is redis:// too.
	URL string
	// Prefix goes in front of every topic, so that several fleets can share a server.
	Prefix string
	// Log gets one line when a subscription is lost and one when it is back.
	Log *slog.Logger
}

// Redis is the bus between processes: publish/subscribe on one pipelined connection. It reconnects
// by itself, and what was published meanwhile is lost, as the package allows.
type Redis struct {
	conn   *redis.Conn
	prefix string
	log    *slog.Logger
	rests  atomic.Int64 // unix ms before which nothing is published

	life   context.Context //nolint:containedctx // ends with Close: subscriptions outlive the calls that made them
	end    context.CancelFunc
	closed atomic.Bool
	mu     sync.Mutex // orders Subscribe's joining against Close's waiting
	joined sync.WaitGroup
}

var _ Bus = (*Redis)(nil)

// NewRedis connects. A server that can't be reached now is dialled until it can, since all that is
// missing meanwhile are nudges: Ping says so. One that answers and refuses us is an error.
func NewRedis(o RedisOptions) (*Redis, error) {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	conn, err := redis.Open(o.URL, "bus", log)
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background()) //nolint:forbidigo // the life of the bus, ended by Close
	return &Redis{conn: conn, prefix: o.Prefix, log: log, life: life, end: end}, nil
}

// rest reports whether d passed before ctx ended.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// connected returns the client, or says that there was no server yet.
func (b *Redis) connected() (rueidis.Client, error) {
	if b.closed.Load() {
		return nil, ErrClosed
	}
	return b.conn.Client()
}

// Publish implements Bus.
func (b *Redis) Publish(ctx context.Context, topic, payload string) error {
	client, err := b.connected()
	if err != nil {
		return fmt.Errorf("publish on %s: %w", topic, err)
	}
	if time.Now().UnixMilli() < b.rests.Load() { // a server that does not answer must not cost every row its second
		return fmt.Errorf("publish on %s: %w: Redis did not answer the last time", topic, fleet.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	if err := client.Do(ctx, client.B().Publish().Channel(b.prefix+topic).Message(payload).Build()).Error(); err != nil {
		if err = redis.Unavailable(err); errors.Is(err, fleet.ErrUnavailable) {
			b.rests.Store(time.Now().Add(publishRest).UnixMilli())
		}
		return fmt.Errorf("publish on %s: %w", topic, err)
	}
	return nil
}

// Ping implements Bus.
func (b *Redis) Ping(ctx context.Context) error {
	client, err := b.connected()
	if err != nil {
		return fmt.Errorf("ping Redis: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	if err := client.Do(ctx, client.B().Ping().Build()).Error(); err != nil {
		return fmt.Errorf("ping Redis: %w", redis.Unavailable(err))
	}
	return nil
}

// Subscribe implements Bus. It returns when the server has confirmed every topic, or after two
// seconds without an error: the subscription then follows by itself when the server is back.
func (b *Redis) Subscribe(ctx context.Context, fn func(topic, payload string), topics ...string) (func(), error) {
	if err := checkTopics(fn, topics); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	topics = slices.Compact(slices.Sorted(slices.Values(topics)))
	live, stop := context.WithCancel(b.life)
	s := &redisSub{bus: b, fn: fn, topics: topics, live: live, heard: make(chan struct{})}

	b.mu.Lock()
	if b.closed.Load() {
		b.mu.Unlock()
		stop()
		return nil, ErrClosed
	}
	b.joined.Go(s.run)
	b.mu.Unlock()

	limit := time.NewTimer(subscribeLimit)
	defer limit.Stop()
	select {
	case <-s.heard:
	case <-limit.C:
	case <-live.Done():
		stop()
		return nil, ErrClosed
	case <-ctx.Done():
		stop()
		return nil, ctx.Err()
	}
	return stop, nil
}

// Close implements Bus.
func (b *Redis) Close() error {
	b.mu.Lock()
	b.closed.Store(true)
	b.mu.Unlock()
	b.end()
	b.joined.Wait()
	b.conn.Close()
	return nil
}

// redisSub is one subscription: a goroutine that subscribes again whenever the connection is lost.
type redisSub struct {
	bus    *Redis
	fn     func(topic, payload string)
	topics []string
	live   context.Context //nolint:containedctx // ends with stop or with the bus, not with the call to Subscribe
	heard  chan struct{}   // closed at the first confirmation of every topic
	once   sync.Once
}

func (s *redisSub) run() {
	select {
	case <-s.bus.conn.Dialed():
	case <-s.live.Done():
		return
	}
	pause := retryFirst
	for s.live.Err() == nil {
		confirmed, err := s.receive()
		if s.live.Err() != nil {
			return
		}
		if confirmed {
			pause = retryFirst
		}
		s.bus.log.WarnContext(s.live, "nudges are lost until the bus is back",
			slog.String("topics", strings.Join(s.topics, ",")), slog.Any("err", err))
		if !rest(s.live, pause) {
			return
		}
		pause = min(2*pause, retryMost)
	}
}

// receive lives as long as one connection does.
func (s *redisSub) receive() (confirmed bool, err error) {
	var names []string
	for _, t := range s.topics {
		names = append(names, s.bus.prefix+t)
	}
	var count atomic.Int64
	ctx := rueidis.WithOnSubscriptionHook(s.live, func(c rueidis.PubSubSubscription) {
		if c.Kind == "subscribe" && count.Add(1) == int64(len(names)) {
			s.bus.rests.Store(0) // it is back
			s.once.Do(func() { close(s.heard) })
		}
	})
	client, err := s.bus.conn.Client()
	if err != nil {
		return false, err
	}
	err = client.Receive(ctx, client.B().Subscribe().Channel(names...).Build(), func(m rueidis.PubSubMessage) {
		if s.live.Err() == nil {
			s.fn(strings.TrimPrefix(m.Channel, s.bus.prefix), m.Message)
		}
	})
	return count.Load() >= int64(len(names)), err
}
