package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wafleet/wafleet/trials/cluster"
)

// open starts everything, pairs and warms both sides.
func (s *setting) open(ctx context.Context, binary, dir string, sessions int) error {
	s.run = func(name string, args ...string) (*cluster.Process, error) {
		p, err := cluster.StartProcess(cluster.ProcessOptions{Path: binary, Args: args, Env: s.env, Dir: dir, Log: filepath.Join(dir, name+".log")})
		if err == nil {
			s.stops = append(s.stops, func() { _, _ = p.Stop(syscall.SIGTERM, 20*time.Second) })
		}
		return p, err
	}
	s.env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "DATA_DIR=" + filepath.Join(dir, "data"), "LISTEN=127.0.0.1:0", "OPS_LISTEN=127.0.0.1:0",
		"DATABASE_POOL_MAX=" + strconv.Itoa(pool),
	}, s.env...)
	sim, err := s.run("sim", "sim", "--listen=127.0.0.1:0")
	if err != nil {
		return err
	}
	if s.simulator, err = sim.Find(ctx, `simulator on (http://\S+)/sim/`); err != nil {
		return err
	}
	s.simMeter.processes = map[string]cpu{"simulator": sim.CPU}
	s.gatewayMeter.processes = map[string]cpu{}
	s.gateway = &gateway{simulator: s.simulator}
	b := bareSettings{Simulator: s.simulator}
	if s.database == postgres {
		err = s.openPostgres(ctx, dir, &b)
	} else {
		err = s.openSQLite(ctx, dir, &b)
	}
	if err != nil {
		return err
	}
	for i := range people {
		if err := newPhone(ctx, s.simulator, number(5000+i)); err != nil {
			return err
		}
	}
	var own []string
	for i := range sessions {
		own, b.Numbers = append(own, number(1000+i)), append(b.Numbers, number(2000+i))
	}
	if err := s.gateway.pair(ctx, own); err != nil {
		return err
	}
	var stop func()
	if s.bare, stop, err = startBare(ctx, b); err != nil {
		return fmt.Errorf("bare process: %w", err)
	}
	s.stops = append(s.stops, stop)
	s.bareMeter.processes = map[string]cpu{"bare": s.bare.cpu}
	for _, g := range s.grounds {
		if g != s.bare.ground {
			return fmt.Errorf("the sides do not stand on the same ground: a process of the gateway has %+v, the bare one %+v", g, s.bare.ground)
		}
	}
	return s.warm(ctx, sessions)
}

// part starts one process of the gateway and waits until it is ready.
func (s *setting) part(ctx context.Context, name string) (*cluster.Process, error) {
	p, err := s.run(name, name, "--simulator="+s.simulator)
	if err != nil {
		return nil, err
	}
	s.gatewayMeter.processes[name] = p.CPU
	ops, err := p.Ready(ctx)
	if err != nil {
		return nil, err
	}
	g, err := groundOf(ctx, p, ops)
	s.grounds = append(s.grounds, g)
	return p, err
}

func (s *setting) openPostgres(ctx context.Context, dir string, b *bareSettings) error {
	pg, err := cluster.StartPostgres(ctx, cluster.PostgresOptions{Dir: dir, Settings: map[string]string{
		"shared_preload_libraries": "pg_stat_statements", "shared_buffers": "256MB",
		"max_wal_size": "4GB", "checkpoint_timeout": "30min", // every load begins with a checkpoint instead
	}})
	if err != nil {
		return err
	}
	s.stops = append(s.stops, pg.Close)
	redis, err := cluster.StartRedis(ctx, cluster.RedisOptions{Dir: dir})
	if err != nil {
		return err
	}
	s.stops = append(s.stops, redis.Close)
	if s.admin, err = pgx.Connect(ctx, pg.URL(postgres)); err != nil {
		return err
	}
	if _, err := s.admin.Exec(ctx, `CREATE EXTENSION pg_stat_statements`); err != nil {
		return err
	}
	ours, err := pg.CreateDatabase(ctx, "gateway")
	if err != nil {
		return err
	}
	if b.Database, err = pg.CreateDatabase(ctx, "bare"); err != nil {
		return err
	}
	b.Dialect, b.Pool = "pgx", pool
	s.gatewayMeter.database, s.gatewayMeter.admin = "gateway", s.admin
	s.bareMeter.database, s.bareMeter.admin = "bare", s.admin
	s.gatewayMeter.processes["redis"] = redis.CPU
	s.env = append(s.env, "DATABASE_URL="+ours, "REDIS_URL="+redis.URL(),
		"DATA_KEY="+strings.Repeat("ab", 32), "LOOKUP_KEY="+strings.Repeat("cd", 32)) // of a database that lives minutes
	if _, err := s.command(ctx, `(at this version)`, "migrate"); err != nil {
		return err
	}
	if s.gateway.admin, err = s.command(ctx, `(wfa_[a-z2-7]{58})`, "keys", "create", "--admin"); err != nil {
		return err
	}
	api, err := s.part(ctx, "api")
	if err != nil {
		return err
	}
	if s.gateway.api, err = api.Find(ctx, apiURL); err != nil {
		return err
	}
	_, err = s.part(ctx, "worker")
	return err
}

// The gateway's own settings of a SQLite file: see internal/store.
var sqliteSettings = url.Values{
	"_pragma": {"busy_timeout(10000)", "foreign_keys(1)", "journal_mode(WAL)", "synchronous(FULL)"}, "_txlock": {"immediate"},
}

const sqlitePool = 4

func (s *setting) openSQLite(ctx context.Context, dir string, b *bareSettings) error {
	b.Dialect, b.Pool = sqlite, sqlitePool
	b.Database = "file:" + filepath.Join(dir, "bare.db") + "?" + sqliteSettings.Encode()
	up, err := s.part(ctx, "up")
	if err != nil {
		return err
	}
	if s.gateway.api, err = up.Find(ctx, apiURL); err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(dir, "data", "admin.key")) //nolint:gosec // a folder of ours
	s.gateway.admin = strings.TrimSpace(string(raw))
	return err
}

const apiURL = `API listener is open" url=(http://\S+)`

// command runs a command that ends by itself and returns what it prints of this pattern.
func (s *setting) command(ctx context.Context, pattern string, args ...string) (string, error) {
	p, err := s.run(args[0], args...)
	if err != nil {
		return "", err
	}
	return p.Find(ctx, pattern)
}

// warm sends one message from every session to everybody it will write to, so that no load begins with key exchanges.
func (s *setting) warm(ctx context.Context, sessions int) error {
	for name, send := range map[string]func(context.Context, load) (posted, error){"warm-bare": s.bare.send, "warm-gateway": s.gateway.post} {
		l := load{Name: name, Sessions: sessions, Messages: sessions * circle}
		r, err := s.measure(ctx, l, &s.simMeter, send)
		if err == nil && r.lost > 0 {
			err = fmt.Errorf("%d of %d messages were lost", r.lost, l.Messages)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func newPhone(ctx context.Context, simulator, number string) error {
	return cluster.Call(ctx, http.MethodPost, simulator+"/sim/phones", "", nil, map[string]string{"pn": number}, nil)
}

// scan lets the phone of a number scan a QR code.
func scan(ctx context.Context, simulator, number, code string) error {
	if err := newPhone(ctx, simulator, number); err != nil {
		return err
	}
	return cluster.Call(ctx, http.MethodPost, simulator+"/sim/phones/"+number+"/scan", "", nil, map[string]string{"qr": code}, nil)
}
