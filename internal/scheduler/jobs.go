package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/outbound"
	"github.com/wafleet/wafleet/internal/store"
)

// batchSize bounds the rows of one statement, so that no job holds locks, or SQLite's only writer,
// for long.
const batchSize = 500

// dispatchSize bounds how many people's messages find another number in one slot: what a banned number leaves is not
// poured over the others at once.
const dispatchSize = 100

// deadWorkerAfter is how long after its last beat a worker's row is forgotten. It is long past every
// lease, so that people see for a while who died.
const deadWorkerAfter = 10 * time.Minute

// Retention says how long rows are kept. Bodies of marshalled messages are kept for
// fleet.PayloadRetention.
type Retention struct {
	Messages    time.Duration // outbound and inbound
	Events      time.Duration // with their deliveries; at most Messages, which they refer to
	Attempts    time.Duration // at least 25 h
	Idempotency time.Duration
	Commands    time.Duration
	Chats       time.Duration // at least fleet.WarmFor
}

// JobOptions of Jobs.
type JobOptions struct {
	Store      *store.Store
	Bus        bus.Bus
	Outbound   *outbound.Outbound
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	Retention  Retention
	// PurgeBuffered deletes whatsmeow's hashes of decrypted events that WhatsApp can't deliver again.
	PurgeBuffered func(ctx context.Context, limit int) (int, error)
	// PurgeDevices deletes up to limit rows of WhatsApp keys of devices that no session logs in with any more.
	PurgeDevices func(ctx context.Context, limit int) (int, error)
}

// Jobs returns the periodic jobs of a fleet.
func Jobs(o JobOptions) []Job {
	unknown := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "wafleet_scheduler_unknown_commands",
		Help: "Open commands of kinds that this version does not know; they are left to a newer one until they expire.",
	})
	open := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "wafleet_scheduler_open_sends",
		Help: "Messages still sending five minutes after their outcome should have been known.",
	})
	if o.Registerer != nil {
		o.Registerer.MustRegister(unknown, open)
	}
	return []Job{
		{Name: "suppress-parked", Every: 10 * time.Second, Hold: 30 * time.Second, Run: o.telling(o.Store.SuppressParked)},
		{
			Name: "dispatch", Every: 5 * time.Second, Hold: time.Minute, Wake: bus.TopicDispatch,
			Run: func(ctx context.Context) (int, error) { return o.Outbound.Dispatch(ctx, dispatchSize) },
		},
		{Name: "give-back", Every: 10 * time.Second, Hold: 30 * time.Second, Run: func(ctx context.Context) (int, error) { return drain(ctx, o.Outbound.GiveBackOwed) }},
		{Name: "rebase-backlogs", Every: time.Minute, Hold: 30 * time.Second, Run: o.Outbound.Rebase},
		{Name: "expire-messages", Every: 10 * time.Second, Hold: 30 * time.Second, Run: o.telling(o.Store.ExpireQueued)},
		{Name: "tell-unknown", Every: 10 * time.Second, Hold: 30 * time.Second, Run: o.telling(o.Store.TellUnknownUnowned)},
		{Name: "close-unconfirmed", Every: time.Minute, Hold: 30 * time.Second, Run: counting(o.telling(o.Store.CloseUnconfirmed), o.Store.OpenSends, func(_ context.Context, n int) { open.Set(float64(n)) })},
		{Name: "expire-commands", Every: 10 * time.Second, Hold: 30 * time.Second, Run: counting(
			func(ctx context.Context) (int, error) { return drain(ctx, o.Store.ExpireCommands) },
			o.Store.UnknownCommands, func(ctx context.Context, n int) {
				unknown.Set(float64(n))
				if n > 0 {
					o.Log.WarnContext(ctx, "commands wait that this version does not know: is a newer worker missing?", slog.Int("commands", n))
				}
			})},
		{Name: "release-invites", Every: 10 * time.Second, Hold: 30 * time.Second, Run: o.releaseInvites},
		{Name: "tell-logouts", Every: 30 * time.Second, Hold: 30 * time.Second, Run: o.telling(
			func(ctx context.Context, _ int) (int, error) { return o.Store.TellLogouts(ctx) })},
		{Name: "dead-workers", Every: time.Minute, Hold: 30 * time.Second, Run: func(ctx context.Context) (int, error) {
			now, err := o.Store.Now(ctx)
			if err != nil {
				return 0, err
			}
			return o.Store.PurgeWorkers(ctx, now.Add(-deadWorkerAfter))
		}},
		{Name: "warm-ledger", Every: 10 * time.Second, Hold: time.Minute, Run: o.Outbound.WarmLedger},
		{Name: "usage", Every: 15 * time.Minute, Hold: 10 * time.Minute, Run: o.Store.RollUpUsage},
		{
			Name: "rezone", Every: time.Hour, Hold: 10 * time.Minute,
			Run: func(ctx context.Context) (int, error) { return o.Store.Rezone(ctx, batchSize) },
		},
		{Name: "purge", Every: 10 * time.Second, Hold: 10 * time.Minute, Run: o.purge},
		{Name: "retention", Every: time.Hour, Hold: 20 * time.Minute, Run: o.retain},
	}
}

// releaseInvites gives back the slots of pairing links that led to nothing, and lets the owners of the
// sessions that end with that know.
func (o *JobOptions) releaseInvites(ctx context.Context) (int, error) {
	return drain(ctx, func(ctx context.Context, limit int) (int, error) {
		ended, err := o.Store.ReleaseInviteSlots(ctx, "", limit)
		for _, s := range ended {
			if err := o.Bus.Publish(ctx, bus.TopicSession, string(s.ID)); err != nil {
				o.Log.DebugContext(ctx, "nudge lost", slog.Any("err", err))
			}
		}
		return len(ended), err
	})
}

// purgesAtOnce bounds how many purges one round goes through.
const purgesAtOnce = 100

// purge deletes what belongs to sessions and organizations that are no more, until nothing is left or what is left
// waits. One that fails holds up no other.
func (o *JobOptions) purge(ctx context.Context) (int, error) {
	total := 0
	var failed error
	for {
		open, err := o.Store.OpenPurges(ctx, purgesAtOnce)
		if err != nil {
			return total, err
		}
		round := 0
		for _, k := range open {
			for more := true; more && ctx.Err() == nil; {
				var n int
				if n, more, err = o.Store.PurgeBatch(ctx, k, batchSize); err != nil {
					failed, more = err, false
				}
				total, round = total+n, round+n
			}
		}
		n, err := drain(ctx, o.PurgeDevices)
		total, round = total+n, round+n
		switch {
		case err != nil:
			return total, err
		case failed != nil || round == 0:
			return total, failed
		case ctx.Err() != nil:
			return total, fmt.Errorf("stopped in the middle: %w", ctx.Err())
		}
	}
}

// counting runs a job and then counts what it left.
func counting(job func(ctx context.Context) (int, error), count func(ctx context.Context) (int, error), tell func(ctx context.Context, n int)) func(ctx context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		n, err := job(ctx)
		if err != nil {
			return n, err
		}
		left, err := count(ctx)
		if err == nil {
			tell(ctx, left)
		}
		return n, err
	}
}

// telling runs a job that writes events, and nudges whoever delivers them.
func (o *JobOptions) telling(batch func(ctx context.Context, limit int) (int, error)) func(ctx context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		n, err := drain(ctx, batch)
		if n > 0 {
			if err := o.Bus.Publish(ctx, bus.TopicWebhooks, ""); err != nil {
				o.Log.DebugContext(ctx, "nudge lost", slog.Any("err", err))
			}
		}
		return n, err
	}
}

// retain deletes what is older than its time: what refers to something goes before it does.
func (o *JobOptions) retain(ctx context.Context) (int, error) {
	now, err := o.Store.Now(ctx)
	if err != nil {
		return 0, err
	}
	older := func(age time.Duration, purge func(ctx context.Context, before time.Time, limit int) (int, error)) func(context.Context, int) (int, error) {
		return func(ctx context.Context, limit int) (int, error) { return purge(ctx, now.Add(-age), limit) }
	}
	total := 0
	for _, batch := range []func(ctx context.Context, limit int) (int, error){
		older(o.Retention.Events, o.Store.PurgeDeliveries),
		older(o.Retention.Events, o.Store.PurgeEvents),
		older(fleet.PayloadRetention, o.Store.PurgePayloads),
		older(o.Retention.Messages, o.Store.PurgeMessages),
		older(o.Retention.Messages, o.Store.PurgeInbound),
		older(o.Retention.Attempts, o.Store.PurgeAttempts),
		older(o.Retention.Idempotency, o.Store.PurgeIdempotency),
		older(o.Retention.Commands, o.Store.PurgeCommands),
		older(o.Retention.Chats, o.Store.PurgeChats),
		older(o.Retention.Attempts, o.Store.PurgeLeaseLog),
		older(o.Retention.Commands, o.Store.PurgePurges),
		o.PurgeBuffered,
	} {
		n, err := drain(ctx, batch)
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}
