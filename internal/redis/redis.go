package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/wafleet/wafleet/internal/fleet"
)

const (
	dialLimit  = 2 * time.Second        // one dial of the client
	retryFirst = 100 * time.Millisecond // pause before the second dial …
	retryMost  = 2 * time.Second        // … and the longest one
)

// Conn is a pipelined connection that comes back by itself.
type Conn struct {
	client atomic.Pointer[rueidis.Client] // nil until the server was reached once
	dialed chan struct{}                  // closed then
	log    *slog.Logger
	end    context.CancelFunc
	joined sync.WaitGroup
}

// Open connects. A server that can't be reached now is dialled until it can; what names this
// connection in the log. One that answers and refuses us is an error.
func Open(url, what string, log *slog.Logger) (*Conn, error) {
	opt, err := options(url)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	life, end := context.WithCancel(context.Background()) //nolint:forbidigo // the life of the connection, ended by Close
	c := &Conn{dialed: make(chan struct{}), log: log.With(slog.String("connection", what)), end: end}
	err = c.dial(opt)
	switch {
	case err == nil:
	case errors.Is(err, fleet.ErrUnavailable):
		c.log.WarnContext(life, "Redis can't be reached; dialling until it can", slog.Any("err", err))
		c.joined.Go(func() { c.dialOn(life, opt) })
	default:
		end()
		return nil, err
	}
	return c, nil
}

// dial connects once.
func (c *Conn) dial(opt rueidis.ClientOption) error {
	client, err := rueidis.NewClient(opt)
	if err != nil {
		return fmt.Errorf("connect to Redis: %w", Unavailable(err))
	}
	c.client.Store(&client)
	close(c.dialed)
	return nil
}

// dialOn connects until it is done. A refusal is no reason to stop any more: the server may be put right.
func (c *Conn) dialOn(life context.Context, opt rueidis.ClientOption) {
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-life.Done():
			timer.Stop()
			return
		}
		err := c.dial(opt)
		if err == nil {
			c.log.InfoContext(life, "Redis is reached")
			return
		}
		c.log.DebugContext(life, "Redis still can't be reached", slog.Any("err", err))
	}
}

// Client returns the client, or says that there was no server yet.
func (c *Conn) Client() (rueidis.Client, error) {
	client := c.client.Load()
	if client == nil {
		return nil, fmt.Errorf("%w: Redis was not reached yet", fleet.ErrUnavailable)
	}
	return *client, nil
}

// Dialed is closed when the server was reached for the first time.
func (c *Conn) Dialed() <-chan struct{} { return c.dialed }

// Close ends the dialling and the connection.
func (c *Conn) Close() {
	c.end()
	c.joined.Wait()
	if client := c.client.Load(); client != nil {
		(*client).Close()
	}
}

// CheckURL reports whether Open could use the URL, without connecting: redis://, rediss:// (TLS) or
// unix://; host:port alone is redis:// too.
func CheckURL(raw string) error {
	_, err := options(raw)
	return err
}

func options(raw string) (rueidis.ClientOption, error) {
	if !strings.Contains(raw, "://") {
		raw = "redis://" + raw
	}
	opt, err := rueidis.ParseURL(raw)
	if err != nil {
		// The error of url.Parse repeats its input, which may hold a password.
		return opt, errors.New("the URL of Redis can't be read: use redis://[user:password@]host:port[/db] or rediss://…")
	}
	opt.DisableCache = true
	opt.DisableRetry = true // what is sent twice by itself may be done twice
	opt.ClientName = "wafleet"
	opt.Dialer.Timeout = dialLimit
	opt.ConnWriteTimeout = 5 * time.Second
	return opt, nil
}

// passing are refusals of a server that will think otherwise later: it reads its file first, has no
// memory left, can't write its file, is a replica or loses its primary, or is busy with a script.
var passing = []string{"LOADING", "OOM", "MISCONF", "READONLY", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN", "BUSY"}

// Unavailable marks everything but the server's own refusals as passing, and of those the ones that are.
func Unavailable(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	if refusal, ok := rueidis.IsRedisErr(err); ok && !passes(refusal.Error()) {
		return err
	}
	return fmt.Errorf("%w: %w", fleet.ErrUnavailable, err)
}

// passes reads the code of a refusal; older servers put it behind words of their own when a script met it.
func passes(refusal string) bool {
	for _, code := range passing {
		if strings.HasPrefix(refusal, code+" ") || strings.Contains(refusal, "-"+code+" ") {
			return true
		}
	}
	return false
}
