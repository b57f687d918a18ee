package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/config"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/ledger"
	"github.com/wafleet/wafleet/internal/outbound"
	"github.com/wafleet/wafleet/internal/redis"
	"github.com/wafleet/wafleet/internal/router"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wastore"
)

// openTime bounds connecting and checking at the start, migrations aside.
const openTime = 30 * time.Second

// server is what every long-running command takes.
type server struct {
	config.Config
	simulation
}

// process is an opened process: what its parts share, and the parts added so far.
type process struct {
	cfg      *config.Config
	log      *slog.Logger
	store    *store.Store
	bus      bus.Bus
	ledger   ledger.Ledger
	outbound *outbound.Outbound // set by out
	lookup   *seal.Lookup
	auth     *auth.Auth // set by addAPI
	registry *prometheus.Registry
	ready    readiness
	versions versions
	owner    string        // WORKER_ID and a nonce: this start of this process
	stopIn   time.Duration // at most, if not stopLimit
	shard    fleet.Shard   // what its worker is for, if it has one
	parts    []part
	ops      *listener
	anyPort  bool
	closers  []func() // run last to first
}

// openOptions of program.open.
type openOptions struct {
	command  string
	embedded bool // "up": makes its folder, keys and schema, and may stand alone
	mode     store.Mode
	anyPort  bool   // where a port is taken, a free one does
	nonce    string // of the owner's name; "" = a fresh one
}

// open checks the settings and opens what every part needs. The caller closes the process.
func (p *program) open(ctx context.Context, cfg *config.Config, o openOptions) (_ *process, err error) {
	if err := cfg.Check(); err != nil {
		return nil, &usageError{err}
	}
	if cfg.RedisURL != "" {
		if err := redis.CheckURL(cfg.RedisURL.Reveal()); err != nil {
			return nil, &usageError{&config.Error{Setting: "REDIS_URL", Problem: "can't be used: " + err.Error()}}
		}
	}
	if !o.embedded {
		if err := cfg.CheckShared(o.command); err != nil {
			return nil, &usageError{err}
		}
	} else if cfg.ShardIndex != nil {
		return nil, &usageError{&config.Error{Setting: "SHARD_INDEX", Problem: fmt.Sprintf("is for \"worker\": %q is for every shard, so leave it out", o.command)}}
	}
	if err := checkKeys(cfg.Keys); err != nil {
		return nil, err
	}
	var nonce [4]byte
	_, _ = rand.Read(nonce[:])
	if o.nonce == "" {
		o.nonce = hex.EncodeToString(nonce[:])
	}
	pr := &process{
		cfg: cfg, log: newLogger(p.stderr, &cfg.Logging), registry: newRegistry(), versions: readVersions(),
		owner: cfg.Name() + "/" + o.nonce, anyPort: o.anyPort,
		shard: fleet.Shard{Count: cfg.Shards(), Index: fleet.AllShards},
	}
	if cfg.ShardIndex != nil {
		pr.shard.Index = *cfg.ShardIndex
	}
	defer func() {
		if err != nil {
			pr.close()
		}
	}()
	if cfg.WAWebVersion != "" {
		if err := wa.SetWebVersion(cfg.WAWebVersion); err != nil {
			return nil, &usageError{&config.Error{Setting: "WA_WEB_VERSION", Problem: err.Error()}}
		}
		pr.versions.WAWeb = wa.WebVersion()
	}
	var made []string
	if o.embedded {
		if made, err = pr.openFolder(); err != nil {
			return nil, err
		}
	}
	if err := pr.openStore(ctx, o, made); err != nil {
		return nil, err
	}
	if pr.store.Postgres() && cfg.RedisURL == "" {
		if err := pr.standAlone(ctx); err != nil {
			return nil, err
		}
	}
	if err := pr.openBus(ctx); err != nil {
		return nil, err
	}
	if err := pr.openLedger(); err != nil { //nolint:contextcheck // it lives until Close
		return nil, err
	}
	pr.ready.checks = append(pr.ready.checks,
		check{"database", pr.store.Ping},
		check{"schema", pr.store.CheckVersion},
		check{"bus", pr.bus.Ping},
	)
	if pr.store.Postgres() {
		pr.ready.checks = append(pr.ready.checks, check{"timeouts", func(ctx context.Context) error { return pr.store.CheckTimeouts(ctx, cfg.LeaseTTL) }})
	}
	pr.add("memory", stageBack, tendHeap)
	pr.log.InfoContext(ctx, "started", slog.String("command", o.command), slog.String("version", pr.versions.Version),
		slog.String("owner", pr.owner), slog.Bool("redis", cfg.RedisURL != ""))
	pr.log.InfoContext(ctx, "shard configuration", slog.Int("shard_count", cfg.Shards()), slog.String("shard", pr.shard.String()),
		slog.Duration("adopt_after", cfg.ShardAdoptAfter))
	if !o.embedded || cfg.RedisURL != "" {
		pr.watchShards()
	}
	return pr, nil
}

// openFolder makes the data folder, locks the SQLite file in it, and reads or makes the keys.
func (pr *process) openFolder() (made []string, err error) {
	if err := os.MkdirAll(pr.cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("make DATA_DIR: %w", err)
	}
	if path := sqlitePath(&pr.cfg.Storage); path != "" {
		release, err := lockDatabase(path)
		if err != nil {
			return nil, err
		}
		pr.closers = append(pr.closers, release)
	}
	return folderKeys(&pr.cfg.Storage, &pr.cfg.Keys, true)
}

// openStore opens the database, checks it or brings it to this version, and ties it to the mode and the
// keys. made are key files that were made for it just now.
func (pr *process) openStore(ctx context.Context, o openOptions, made []string) error {
	ring, lookup, err := keys(&pr.cfg.Keys)
	if err != nil {
		return err
	}
	pr.lookup = lookup
	if path := sqlitePath(&pr.cfg.Storage); path != "" {
		// SQLite would make it readable for everybody; its other files follow this one.
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the operator names the folder
		if err != nil {
			return fmt.Errorf("make database: %w", err)
		}
		_ = f.Close()
	}
	octx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	pr.store, err = store.Open(octx, store.Options{URL: databaseURL(&pr.cfg.Storage), PoolMax: pr.cfg.DatabasePoolMax, Ring: ring})
	if err != nil {
		return err
	}
	pr.closers = append(pr.closers, func() { _ = pr.store.Close() })
	if o.embedded { // it may wait for another process that migrates, so it has a limit of its own
		if err := pr.store.Migrate(ctx, wastore.Upgrade(pr.store)); err != nil {
			return err
		}
	}
	sctx, cancelSettle := context.WithTimeout(ctx, openTime)
	defer cancelSettle()
	if err := pr.store.CheckVersion(sctx); err != nil {
		return err
	}
	if err := pr.settle(sctx, o.mode, made); err != nil {
		return err
	}
	durability, err := pr.store.Durability(sctx)
	if err != nil {
		return err
	}
	pr.log.InfoContext(ctx, "database is open", slog.Bool("postgres", pr.store.Postgres()), slog.String("durability", durability))
	pr.registry.MustRegister(collectors.NewDBStatsCollector(pr.store.DB().RawDB, "work"))
	if err := pr.store.EnsureTimeouts(sctx, pr.cfg.LeaseTTL); err != nil {
		// A role that may not alter itself can be altered by somebody else; readiness says whether it was.
		pr.log.WarnContext(ctx, "database timeouts could not be set", slog.Any("err", err))
	}
	return nil
}

// settle ties the database to the mode and the keys. Keys that were made now for a database that was
// made with others are thrown away again: the right ones are lost, and these would hide it.
func (pr *process) settle(ctx context.Context, mode store.Mode, made []string) error {
	if len(made) > 0 {
		// Admin keys are there from the first start on; without their LOOKUP_KEY no API key works.
		n, err := pr.store.LiveAdminKeys(ctx)
		if err != nil {
			return err
		}
		if n == 0 {
			err = pr.tie(ctx, mode)
		}
		if n > 0 || errors.Is(err, store.ErrDataKey) || errors.Is(err, store.ErrLookupKey) {
			for _, path := range made {
				_ = os.Remove(path)
			}
			return fmt.Errorf("the database was made with other keys, and %s did not exist: put the lost files back, or set DATA_KEY and LOOKUP_KEY",
				strings.Join(made, " and "))
		}
		return err
	}
	return pr.tie(ctx, mode)
}

func (pr *process) tie(ctx context.Context, mode store.Mode) error {
	if err := pr.store.Settle(ctx, mode); err != nil {
		return err
	}
	return pr.store.SettleLookup(ctx, pr.lookup)
}

func (pr *process) openBus(ctx context.Context) error {
	if pr.cfg.RedisURL == "" {
		if pr.store.Postgres() {
			pr.log.WarnContext(ctx, "no REDIS_URL: other processes on this database see work of this one up to a second late")
		}
		pr.bus = bus.NewLocal()
	} else {
		r, err := bus.NewRedis(bus.RedisOptions{URL: pr.cfg.RedisURL.Reveal(), Prefix: pr.cfg.RedisPrefix, Log: pr.log}) //nolint:contextcheck // it lives until Close
		if err != nil {
			return fmt.Errorf("REDIS_URL: %w", err)
		}
		pr.bus = r
	}
	pr.bus = bus.Sharded(pr.bus, pr.cfg.Shards())
	pr.closers = append(pr.closers, func() { _ = pr.bus.Close() })
	return nil
}

// openLedger opens the ledger of budgets: in this process's memory where it has the fleet to itself, else in Redis.
func (pr *process) openLedger() error {
	o := ledger.Options{
		Rebuild:   router.Rebuild(pr.store, pr.cfg.HealthPenalty, pr.cfg.HealthReward),
		HealthMin: pr.cfg.HealthMin, HealthPenalty: pr.cfg.HealthPenalty, HealthReward: pr.cfg.HealthReward,
	}
	if pr.cfg.RedisURL == "" || !pr.store.Postgres() {
		pr.ledger = ledger.NewMemory(o)
	} else {
		r, err := ledger.NewRedis(ledger.RedisOptions{Options: o, URL: pr.cfg.RedisURL.Reveal(), Prefix: pr.cfg.RedisPrefix, Log: pr.log})
		if err != nil {
			return fmt.Errorf("REDIS_URL: %w", err)
		}
		pr.ledger = r
	}
	pr.closers = append(pr.closers, pr.ledger.Close)
	return nil
}

// router is the one of this process.
func (pr *process) router() *router.Router {
	return router.New(router.Options{Store: pr.store, Ledger: pr.ledger, FleetRate: fleet.Rate{PerMinute: pr.cfg.SendRate}, WarmFor: days(pr.cfg.WarmDays)})
}

func (pr *process) add(name string, stage int, run func(ctx context.Context) error) {
	pr.parts = append(pr.parts, part{name, stage, run})
}

// addOps takes the port of the ops listener.
func (pr *process) addOps(ctx context.Context) error {
	return pr.addOpsOf(ctx, pr.opsHandler(), nil)
}

// opsHandler answers what every process does, and one with an API more.
func (pr *process) opsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", opsHandler(&pr.ready, pr.versions, pr.registry))
	mux.HandleFunc("GET "+channelsPath, pr.channels)
	return mux
}

// addOpsOf is addOps with other answers, or on a listener that is open already.
func (pr *process) addOpsOf(ctx context.Context, h http.Handler, open net.Listener) error {
	var ln *listener
	if open != nil {
		ln = serveOn(ctx, open, h, pr.log)
	} else {
		var err error
		if ln, err = listen(ctx, "OPS_LISTEN", pr.cfg.OpsListen, pr.anyPort, h, pr.log); err != nil {
			return err
		}
	}
	pr.ops = ln
	pr.closers = append(pr.closers, func() { _ = ln.Close() })
	pr.add("ops listener", stageBack, ln.serve)
	pr.log.InfoContext(ctx, "ops listener is open", slog.String("url", ln.url()))
	return nil
}

// run runs the parts until ctx ends.
func (pr *process) run(ctx context.Context) error {
	return runParts(ctx, pr.log, cmp.Or(pr.stopIn, stopLimit), pr.parts, func() { pr.ready.draining.Store(true) })
}

// close closes what open opened, last first.
func (pr *process) close() {
	for _, fn := range slices.Backward(pr.closers) {
		fn()
	}
	pr.closers = nil
}

// workerHere reports whether this process's worker has registered and beats.
func (pr *process) workerHere(ctx context.Context) error {
	workers, err := pr.store.Workers(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(workers, func(w fleet.WorkerInfo) bool { return w.Owner == pr.owner })
	if i < 0 {
		return errors.New("has not registered yet")
	}
	now, err := pr.store.Now(ctx)
	if err != nil {
		return err
	}
	if age := now.Sub(workers[i].BeatAt); age > pr.cfg.LeaseTTL {
		return fmt.Errorf("last beat was %s ago", age.Round(time.Second))
	}
	return nil
}

// adminKeyPath is where the first admin key is kept.
func adminKeyPath(s *config.Storage) string { return filepath.Join(s.DataDir, adminKeyFile) }
