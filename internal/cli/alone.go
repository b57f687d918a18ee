package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// errNotAlone: another process runs on this PostgreSQL database without Redis.
var errNotAlone = errors.New("another process without REDIS_URL runs on this database: set REDIS_URL for both, or stop one of them")

// standAlone holds the singleton row for this process and adds the part that keeps it. Without Redis
// two processes would each keep for itself what they must share. A row that an earlier start left
// behind is waited for: that one may have been killed, and then it runs out.
func (pr *process) standAlone(ctx context.Context) error {
	left, err := pr.holdSingleton(ctx, openTime)
	if err == nil && left > 0 {
		pr.log.InfoContext(ctx, "another process without REDIS_URL holds this database; waiting to see whether it lives", slog.Duration("at_most", left))
		wait := time.NewTimer(left + 50*time.Millisecond)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		left, err = pr.holdSingleton(ctx, openTime)
	}
	switch {
	case err != nil:
		return err
	case left > 0:
		return errNotAlone
	}
	pr.closers = append(pr.closers, func() {
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hardGrace)
		defer cancel()
		if err := pr.store.DropSingleton(dctx, pr.owner); err != nil {
			pr.log.WarnContext(dctx, "the next start must wait for the singleton row to run out", slog.Any("err", err))
		}
	})
	pr.add("singleton", stageBack, pr.keepAlone)
	return nil
}

// keepAlone prolongs the row with each beat. A database that does not answer is asked again; only a row
// that another process holds ends this one.
func (pr *process) keepAlone(ctx context.Context) error {
	beat := time.NewTicker(pr.cfg.LeaseBeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
		}
		switch left, err := pr.holdSingleton(ctx, pr.cfg.LeaseBeat); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			pr.log.WarnContext(ctx, "singleton row not prolonged; trying again", slog.Any("err", err))
		case left > 0:
			return errNotAlone
		}
	}
}

func (pr *process) holdSingleton(ctx context.Context, limit time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	left, err := pr.store.HoldSingleton(ctx, pr.owner, pr.cfg.LeaseTTL)
	if err != nil {
		return 0, fmt.Errorf("be the only process without REDIS_URL: %w", err)
	}
	return left, nil
}
