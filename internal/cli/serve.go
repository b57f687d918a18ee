package cli

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/httpapi"
	"github.com/wafleet/wafleet/internal/inbound"
	"github.com/wafleet/wafleet/internal/outbound"
	"github.com/wafleet/wafleet/internal/pairing"
	"github.com/wafleet/wafleet/internal/scheduler"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wastore"
	"github.com/wafleet/wafleet/internal/webhook"
	"github.com/wafleet/wafleet/internal/worker"
)

type (
	apiCmd       struct{ server }
	workerCmd    struct{ server }
	webhooksCmd  struct{ server }
	schedulerCmd struct{ server }
)

// Run serves the API.
func (c *apiCmd) Run(ctx context.Context, p *program) error {
	return p.serve(ctx, &c.server, "api", func(ctx context.Context, pr *process) error {
		_, err := pr.addAPI(ctx)
		return err
	})
}

// Run holds sessions: those of one shard, or below it one process for each of them.
func (c *workerCmd) Run(ctx context.Context, p *program) error {
	at, err := readPlace(p.environ)
	switch {
	case err != nil:
		return err
	case at != nil:
		at.settle(&c.Config)
		var cancel context.CancelFunc
		ctx, cancel = whileParent(ctx)
		defer cancel()
	case c.Shards() > 1 && c.ShardIndex == nil:
		if err := c.check(); err != nil {
			return err
		}
		return p.fork(ctx, &c.server)
	}
	return p.serveAt(ctx, &c.server, "worker", at, func(ctx context.Context, pr *process) error {
		network, err := c.network(ctx, pr.log)
		if err != nil {
			return err
		}
		pr.addWorker(network, false)
		return nil
	})
}

// Run delivers webhooks.
func (c *webhooksCmd) Run(ctx context.Context, p *program) error {
	return p.serve(ctx, &c.server, "webhooks", func(_ context.Context, pr *process) error {
		pr.addWebhooks()
		return nil
	})
}

// Run runs the periodic jobs.
func (c *schedulerCmd) Run(ctx context.Context, p *program) error {
	return p.serve(ctx, &c.server, "scheduler", func(_ context.Context, pr *process) error {
		pr.addScheduler()
		return nil
	})
}

// serve runs one separate process.
func (p *program) serve(ctx context.Context, s *server, command string, add func(ctx context.Context, pr *process) error) error {
	return p.serveAt(ctx, s, command, nil, add)
}

// serveAt is serve for a process that may be another one's child.
func (p *program) serveAt(ctx context.Context, s *server, command string, at *place, add func(ctx context.Context, pr *process) error) error {
	if err := s.check(); err != nil {
		return err
	}
	o := openOptions{command: command, mode: s.mode()}
	if at != nil {
		o.nonce = at.Nonce
	}
	pr, err := p.open(ctx, &s.Config, o)
	if err != nil {
		return err
	}
	defer pr.close()
	var ops net.Listener
	if at != nil {
		if ops, err = at.listener(); err != nil {
			return err
		}
	}
	if err := pr.addOpsOf(ctx, pr.opsHandler(), ops); err != nil {
		return err
	}
	if err := add(ctx, pr); err != nil {
		return err
	}
	return pr.run(ctx)
}

// check looks at what is no setting.
func (s *server) check() error {
	if s.Simulator == "" {
		return nil
	}
	_, err := s.address()
	return err
}

// addAPI takes the API's port and adds its parts.
func (pr *process) addAPI(ctx context.Context) (*listener, error) {
	proxies, err := pr.cfg.Proxies()
	if err != nil {
		return nil, fmt.Errorf("TRUSTED_PROXIES %w", err)
	}
	pr.auth = auth.New(auth.Options{Store: pr.store, Bus: pr.bus, Lookup: pr.lookup, Log: pr.log, Registerer: pr.registry})
	pr.add("auth", stageBack, pr.auth.Run)
	ln, err := listen(ctx, "LISTEN", pr.cfg.Listen, pr.anyPort, nil, pr.log) // it serves later, and links name its port
	if err != nil {
		return nil, err
	}
	public := cmp.Or(pr.cfg.PublicURL, ln.url())
	links := pairing.New(pairing.Options{Store: pr.store, Auth: pr.auth, Bus: pr.bus, Log: pr.log, PublicURL: public})
	pages := map[string]http.Handler{}
	for _, prefix := range pairing.Paths() {
		pages[prefix] = links
	}
	api := httpapi.New(httpapi.Options{
		Store: pr.store, Auth: pr.auth, Outbound: pr.out(), Bus: pr.bus, Log: pr.log, Registerer: pr.registry, Version: pr.versions.Version,
		PublicURL: public, Pages: pages, AllowPrivateWebhooks: pr.cfg.WebhookAllowPrivate,
	})
	ln.server.Handler = httpapi.BehindProxies(proxies, api)
	pr.closers = append(pr.closers, func() { _ = ln.Close() })
	pr.add("api listener", stageFront, ln.serve)
	pr.add("api", stageBack, api.Run)
	pr.add("pairing pages", stageBack, links.Run)
	pr.log.InfoContext(ctx, "API listener is open", slog.String("url", ln.url()))
	return ln, nil
}

// addWorker adds the worker. alone: no other process can own sessions of this database, so a lease
// that an earlier start of this one left behind is taken at once.
func (pr *process) addWorker(network *wa.Network, alone bool) {
	var w *worker.Worker
	in := inbound.New(inbound.Options{
		Store: pr.store, Bus: pr.bus, Log: pr.log, Registerer: pr.registry, Merged: pr.merged,
		Wrote: func(org fleet.OrgID, key string, session fleet.SessionID) { w.Wrote(org, key, session) },
	})
	w = worker.New(worker.Options{
		Store: pr.store, Bus: pr.bus, Network: network, Inbound: in, Ledger: pr.ledger,
		ID: pr.cfg.Name(), Owner: pr.owner, Version: pr.versions.Version,
		TTL: pr.cfg.LeaseTTL, Beat: pr.cfg.LeaseBeat, Batch: pr.cfg.RestoreConcurrency, Max: pr.cfg.WorkerMaxSessions, ClaimAll: alone,
		Shard: pr.shard, Adopt: pr.cfg.ShardAdoptAfter, WarmFor: days(pr.cfg.WarmDays),
		Log: pr.log, Registerer: pr.registry,
	})
	pr.add("worker", stageWork, w.Run)
	pr.ready.checks = append(pr.ready.checks, check{"worker", pr.workerHere})
}

// merged gives the ledger's pins of a person who went by another name to the one that counts now.
func (pr *process) merged(ctx context.Context, org fleet.OrgID, from, into string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := pr.ledger.Merge(ctx, org, from, into); err != nil {
		pr.log.DebugContext(ctx, "pins of a person who has another name now are left", slog.Any("err", err))
	}
}

// out is the one way out of this process.
func (pr *process) out() *outbound.Outbound {
	if pr.outbound == nil {
		pr.outbound = outbound.New(outbound.Options{
			Requests: int64(pr.cfg.RequestRate),
			Store:    pr.store, Router: pr.router(), Ledger: pr.ledger, Bus: pr.bus, Log: pr.log, Registerer: pr.registry,
		})
	}
	return pr.outbound
}

// addWebhooks adds delivery.
func (pr *process) addWebhooks() {
	w := webhook.New(webhook.Options{
		Store: pr.store, Bus: pr.bus, Owner: pr.owner, Log: pr.log, Registerer: pr.registry,
		Client: webhook.NewClient(webhook.ClientOptions{AllowPrivate: pr.cfg.WebhookAllowPrivate}),
	})
	pr.add("webhooks", stageWork, w.Run)
}

// addScheduler adds the periodic jobs.
func (pr *process) addScheduler() {
	s := scheduler.New(scheduler.Options{
		Store: pr.store, Bus: pr.bus, Holder: pr.owner, Log: pr.log, Registerer: pr.registry,
		Jobs: scheduler.Jobs(scheduler.JobOptions{
			Store: pr.store, Bus: pr.bus, Outbound: pr.out(), Log: pr.log, Registerer: pr.registry,
			Retention: scheduler.Retention{
				Messages:    days(pr.cfg.RetentionMessagesDays),
				Events:      days(pr.cfg.RetentionEventsDays),
				Attempts:    days(pr.cfg.RetentionAttemptsDays),
				Idempotency: days(pr.cfg.RetentionIdempotencyDays),
				Commands:    days(pr.cfg.RetentionCommandsDays),
				Chats:       days(pr.cfg.RetentionChatsDays),
			},
			PurgeBuffered: func(ctx context.Context, limit int) (int, error) {
				return wastore.PurgeBufferedHashes(ctx, pr.store, time.Now().Add(-wastore.BufferRetention), limit)
			},
			PurgeDevices: func(ctx context.Context, limit int) (int, error) { return wastore.PurgeDevices(ctx, pr.store, limit) },
		}),
	})
	pr.add("scheduler", stageWork, s.Run)
}

func days(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }
