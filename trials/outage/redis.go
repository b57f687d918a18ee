package main

import (
	"context"
	"errors"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// withoutRedis: nothing is kept in Redis that is not in PostgreSQL, so callers need not notice.
func withoutRedis(ctx context.Context, o options, v *verdict) error {
	s, err := start(ctx, o, "redis", v)
	if err != nil {
		return err
	}
	defer s.close()
	for _, step := range []struct {
		name   string
		happen func(context.Context) error
	}{
		{"Redis restarts", func(ctx context.Context) error { return errors.Join(s.redis.Stop(), s.redis.Start(ctx)) }},
		{"Redis crashes", func(ctx context.Context) error {
			s.redis.Crash()
			return s.redis.Start(ctx)
		}},
		{"Redis is away", func(ctx context.Context) error {
			return errors.Join(s.redis.Stop(), cluster.Pause(ctx, 30*time.Second), s.redis.Start(ctx))
		}},
		{"Redis does not answer", func(ctx context.Context) error {
			return errors.Join(s.redis.Freeze(), cluster.Pause(ctx, 30*time.Second), s.redis.Thaw())
		}},
		{"a worker starts while Redis is away", s.startWithoutRedis},
	} {
		if err := s.outage(ctx, step.name, false, step.happen); err != nil {
			return err
		}
	}
	return s.end(ctx)
}

// startWithoutRedis stops every worker and starts one of them while Redis is away. It must take all sessions over.
func (s *servers) startWithoutRedis(ctx context.Context) error {
	if err := s.redis.Stop(); err != nil {
		return err
	}
	for _, name := range []string{"w1", "w2"} {
		s.Process(name).Kill()
	}
	ready := make(chan error, 1)
	go func() { ready <- s.Restart(ctx, "w1") }() // it is ready only when Redis is back
	_, err := s.AwaitConnected(ctx, time.Minute, "w1")
	return errors.Join(err, s.redis.Start(ctx), <-ready, s.Restart(ctx, "w2"))
}
