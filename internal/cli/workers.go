package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/config"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
)

// workerTool is what the commands for workers take. They may run beside every process.
type workerTool struct {
	config.Storage
	config.Logging
}

// with opens the database and runs fn. It needs no key: it opens no body.
func (c *workerTool) with(ctx context.Context, p *program, fn func(ctx context.Context, s *store.Store, b bus.Bus) error) error {
	if path := sqlitePath(&c.Storage); path != "" { // opening would make an empty one
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("there is no database yet: %w", err)
		}
	}
	ring, err := seal.NewRing(seal.NewKey())
	if err != nil {
		return err
	}
	octx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	s, err := store.Open(octx, store.Options{URL: databaseURL(&c.Storage), PoolMax: 2, Ring: ring})
	if err != nil {
		return err
	}
	defer s.Close() //nolint:errcheck // everything is committed
	if err := s.CheckVersion(octx); err != nil {
		return err
	}
	b, err := toolBus(&c.Storage, newLogger(p.stderr, &c.Logging)) //nolint:contextcheck // it lives until Close
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // nothing waits in it
	return fn(store.AsActor(ctx, "wafleet workers"), s, b)
}

type workersListCmd struct{ workerTool }

// Run lists workers.
func (c *workersListCmd) Run(ctx context.Context, p *program) error {
	return c.with(ctx, p, func(ctx context.Context, s *store.Store, _ bus.Bus) error {
		workers, err := s.Workers(ctx)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(p.stdout, 0, 8, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, "WORKER\tSHARD\tSESSIONS\tOF\tSTATE\tLAST BEAT\tSTARTED\tVERSION")
		for _, v := range workers {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s ago\t%s\t%s\n", v.ID, v.Shard, v.Sessions, v.MaxSessions, workerState(v),
				v.BeatAge.Round(time.Second), v.StartedAt.Format(time.RFC3339), v.Version)
		}
		return w.Flush()
	})
}

func workerState(w fleet.WorkerInfo) string {
	switch {
	case !w.Alive:
		return "dead"
	case w.Draining || w.Drain:
		return "draining"
	default:
		return "live"
	}
}

type workersDrainCmd struct {
	workerTool
	Force bool          `help:"Drain it although the others have no room for its sessions: those stay down until they have."`
	Wait  time.Duration `default:"2m" help:"How long to wait until it is empty."`
	ID    string        `arg:"" placeholder:"WORKER_ID" help:"The worker, as 'wafleet workers list' shows it."`
}

// Run empties a worker.
func (c *workersDrainCmd) Run(ctx context.Context, p *program) error {
	return c.with(ctx, p, func(ctx context.Context, s *store.Store, b bus.Bus) error {
		workers, err := s.Workers(ctx)
		if err != nil {
			return err
		}
		sessions, free, err := room(workers, c.ID)
		if err != nil {
			return err
		}
		if free < sessions && !c.Force {
			return fmt.Errorf("%s holds %d sessions and the other workers of its shard have room for %d: add a worker, raise WORKER_MAX_SESSIONS, or use --force", c.ID, sessions, free)
		}
		if err := ask(ctx, s, b, c.ID, true); err != nil {
			return err
		}
		return c.await(ctx, p, s)
	})
}

// await waits until no live lease names the worker.
func (c *workersDrainCmd) await(ctx context.Context, p *program, s *store.Store) error {
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	holds := "may still hold sessions"
	for {
		left, err := s.HeldBy(ctx, c.ID)
		switch {
		case ctx.Err() != nil: // below
		case err != nil:
			return err
		case left > 0:
			holds = fmt.Sprintf("still holds %d sessions", left)
		default:
			_, err = fmt.Fprintf(p.stdout, "%s is empty and claims nothing; stop it, or let it work again with: wafleet workers resume %s\n", c.ID, c.ID)
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stopped waiting: %s %s; it goes on handing them over", c.ID, holds)
		case <-look.C:
		}
	}
}

type workersResumeCmd struct {
	workerTool
	ID string `arg:"" placeholder:"WORKER_ID" help:"The worker."`
}

// Run lets a worker claim again.
func (c *workersResumeCmd) Run(ctx context.Context, p *program) error {
	return c.with(ctx, p, func(ctx context.Context, s *store.Store, b bus.Bus) error {
		if err := ask(ctx, s, b, c.ID, false); err != nil {
			return err
		}
		_, err := fmt.Fprintf(p.stdout, "%s claims sessions again.\n", c.ID)
		return err
	})
}

func ask(ctx context.Context, s *store.Store, b bus.Bus, id string, drain bool) error {
	err := s.DrainWorker(ctx, id, drain)
	if errors.Is(err, fleet.ErrNotFound) {
		return fmt.Errorf("there is no worker %q: see wafleet workers list", id)
	}
	if err != nil {
		return err
	}
	_ = b.Publish(ctx, bus.TopicControl(id), "") // lost, it is seen with the worker's next beat
	return nil
}

// room is how many sessions a worker holds, and how many more the others that may take them could hold.
func room(workers []fleet.WorkerInfo, id string) (sessions, free int, err error) {
	i := slices.IndexFunc(workers, func(w fleet.WorkerInfo) bool { return w.ID == id && w.Alive })
	if i < 0 {
		return 0, 0, fmt.Errorf("there is no live worker %q: see wafleet workers list", id)
	}
	for _, w := range workers {
		if w.ID != id && w.Alive && w.Shard.Overlaps(workers[i].Shard) {
			free += w.Free()
		}
	}
	return workers[i].Sessions, free, nil
}
