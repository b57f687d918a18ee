package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const sqlite = "sqlite"

// setting is everything that runs for one database: both sides and the simulator between them.
type setting struct {
	database  string
	simulator string
	oracle    oracle
	gateway   *gateway
	bare      *bareProcess
	admin     *pgx.Conn // nil on SQLite

	gatewayMeter, bareMeter, simMeter meter

	queued func(ctx context.Context) (bool, error) // whether the gateway still has work
	stops  []func()
}

// result is one load of one side.
type result struct {
	rate          float64 // messages per second
	lost, doubled int
	cost          cost
	simulator     time.Duration // its processor time
	took          time.Duration
	messages      int
	posted        posted
}

func compare(ctx context.Context) error {
	o, err := readOptions()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "wafleet-send-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)                      //nolint:errcheck // the system tidies the rest
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL runs as another user
		return err
	}
	binary := filepath.Join(dir, "wafleet")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		return fmt.Errorf("build wafleet: %w: %s", err, out)
	}
	var verdicts []verdict
	for _, database := range o.databases {
		v, err := trial(ctx, o, database, binary, filepath.Join(dir, database))
		if err != nil {
			return fmt.Errorf("%s: %w", database, err)
		}
		verdicts = append(verdicts, v...)
	}
	return conclude(verdicts)
}

// trial compares both sides on one database.
func trial(ctx context.Context, o options, database, binary, dir string) ([]verdict, error) {
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL runs as another user
		return nil, err
	}
	s := &setting{database: database}
	defer func() {
		for _, stop := range slices.Backward(s.stops) {
			stop()
		}
	}()
	most := slices.Max(o.sessions)
	begun := time.Now()
	if err := s.open(ctx, binary, dir, most); err != nil {
		return nil, err
	}
	fmt.Printf("\n%s: %d sessions on each side are paired and warm after %.0f s\n", database, most, time.Since(begun).Seconds())
	var verdicts []verdict
	for _, sessions := range o.sessions {
		var bares, gateways []result
		for round := range o.rounds {
			l := load{Name: fmt.Sprintf("bare-%d-%d", sessions, round), Sessions: sessions, Messages: o.messages}
			b, err := s.measure(ctx, l, &s.bareMeter, func() (posted, error) { return s.bare.send(l) })
			if err != nil {
				return nil, fmt.Errorf("bare: %w", err)
			}
			l.Name = fmt.Sprintf("gateway-%d-%d", sessions, round)
			g, err := s.measure(ctx, l, &s.gatewayMeter, func() (posted, error) { return s.gateway.post(ctx, l) })
			if err != nil {
				return nil, fmt.Errorf("gateway: %w", err)
			}
			bares, gateways = append(bares, b), append(gateways, g)
			fmt.Printf("  %2d sessions, round %d: bare %5.0f/s, gateway %5.0f/s\n", sessions, round+1, b.rate, g.rate)
		}
		v := judge(database, sessions, bares, gateways)
		v.print()
		verdicts = append(verdicts, v)
	}
	return verdicts, nil
}

// measure runs one load and says what it took.
func (s *setting) measure(ctx context.Context, l load, m *meter, send func() (posted, error)) (result, error) {
	if s.admin != nil { // so that none comes by itself
		if _, err := s.admin.Exec(ctx, `CHECKPOINT`); err != nil {
			return result{}, err
		}
	}
	mark, err := s.oracle.mark(ctx)
	if err != nil {
		return result{}, err
	}
	before, err := m.read(ctx)
	if err != nil {
		return result{}, err
	}
	simBefore, err := s.simMeter.read(ctx)
	if err != nil {
		return result{}, err
	}
	type sent struct {
		posted
		err error
	}
	done := make(chan sent, 1)
	go func() {
		p, err := send()
		done <- sent{p, err}
	}()
	d, err := s.oracle.await(ctx, mark, l)
	if err != nil {
		return result{}, err
	}
	simAfter, err := s.simMeter.read(ctx)
	if err != nil {
		return result{}, err
	}
	p := <-done
	if p.err != nil {
		return result{}, p.err
	}
	// What is still to be written belongs to this load.
	qctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	err = until(qctx, "the last receipts", func() (bool, error) {
		more, err := s.queued(qctx)
		return !more, err
	})
	cancel()
	if err != nil {
		return result{}, err
	}
	after, err := m.read(ctx)
	if err != nil {
		return result{}, err
	}
	r := result{messages: d.messages, lost: l.Messages - d.messages, doubled: d.doubled, cost: after.since(before), posted: p.posted}
	r.simulator = simAfter.since(simBefore).total()
	if r.took = d.last.Sub(p.first); r.took > 0 {
		r.rate = float64(d.messages) / r.took.Seconds()
	}
	return r, nil
}

// open starts everything, pairs and warms both sides, and checks that they stand on the same ground.
func (s *setting) open(ctx context.Context, binary, dir string, sessions int) error {
	run := func(name string, env []string, args ...string) (*child, error) {
		c, err := start(ctx, dir, name, env, binary, args...)
		if err == nil {
			s.stops = append(s.stops, c.stop)
		}
		return c, err
	}
	sim, err := run("sim", nil, "sim", "--listen=127.0.0.1:0")
	if err != nil {
		return err
	}
	if s.simulator, err = sim.find(ctx, sim.out, `simulator on (http://\S+)/sim/`); err != nil {
		return err
	}
	s.oracle = oracle{s.simulator}
	s.simMeter.processes = map[string]int{"simulator": sim.pid()}

	env := []string{
		"DATA_DIR=" + filepath.Join(dir, "data"), "DATA_KEY=" + key(), "LOOKUP_KEY=" + key(),
		"LISTEN=127.0.0.1:0", "OPS_LISTEN=127.0.0.1:0", fmt.Sprintf("DATABASE_POOL_MAX=%d", pool),
	}
	b := bareSettings{Simulator: s.simulator, Pool: pool, Dialect: "pgx"}
	parts := []string{"up"}
	if s.database == postgres {
		server, stop, err := startPostgres(ctx, dir)
		if err != nil {
			return err
		}
		s.stops = append(s.stops, stop)
		if s.admin, err = pgx.Connect(ctx, server+"postgres?sslmode=disable"); err != nil {
			return err
		}
		for _, text := range []string{`CREATE DATABASE gateway`, `CREATE DATABASE bare`, `CREATE EXTENSION pg_stat_statements`} {
			if _, err := s.admin.Exec(ctx, text); err != nil {
				return err
			}
		}
		s.gatewayMeter.database, s.gatewayMeter.admin = "gateway", s.admin
		s.bareMeter.database, s.bareMeter.admin = "bare", s.admin
		b.Database = server + "bare?sslmode=disable"
		port, err := freePort()
		if err != nil {
			return err
		}
		redis, err := start(ctx, dir, "redis", nil, "redis-server", "--bind", "127.0.0.1", "--port", fmt.Sprint(port), "--save", "", "--appendonly", "no", "--dir", dir)
		if err != nil {
			return err
		}
		s.stops = append(s.stops, redis.stop)
		s.gatewayMeter.processes = map[string]int{"redis": redis.pid()}
		env = append(env, "DATABASE_URL="+server+"gateway?sslmode=disable", fmt.Sprintf("REDIS_URL=redis://127.0.0.1:%d/0", port))
		if err := once(ctx, env, binary, nil, "migrate"); err != nil {
			return err
		}
		parts = []string{"api", "worker"}
	} else {
		s.gatewayMeter.processes = map[string]int{}
		b.Dialect, b.Pool = sqlite, 4
		q := url.Values{"_pragma": {"busy_timeout(10000)", "foreign_keys(1)", "journal_mode(WAL)", "synchronous(FULL)"}, "_txlock": {"immediate"}}
		b.Database = "file:" + filepath.Join(dir, "bare.db") + "?" + q.Encode()
	}

	g := &gateway{simulator: s.simulator}
	for _, part := range parts {
		c, err := run(part, env, part, "--simulator="+s.simulator)
		if err != nil {
			return err
		}
		s.gatewayMeter.processes[part] = c.pid()
		ops, err := c.find(ctx, c.errs, `ops listener is open" url=(http://\S+)`)
		if err != nil {
			return err
		}
		if part != "worker" {
			if g.api, err = c.find(ctx, c.errs, `API listener is open" url=(http://\S+)`); err != nil {
				return err
			}
		}
		if err := until(ctx, part, func() (bool, error) { return call(ctx, "GET", ops+"/readyz", "", nil, nil) == nil, nil }); err != nil {
			return err
		}
	}
	if s.database == postgres {
		if err := once(ctx, env, binary, &g.admin, "keys", "create", "--admin"); err != nil {
			return err
		}
	} else {
		raw, err := os.ReadFile(filepath.Join(dir, "data", "admin.key"))
		if err != nil {
			return err
		}
		g.admin = strings.TrimSpace(string(raw))
	}
	s.gateway = g

	var own []string
	for i := range sessions {
		own, b.Numbers = append(own, number(1000+i)), append(b.Numbers, number(2000+i))
	}
	for i := range people {
		if err := call(ctx, "POST", s.simulator+"/sim/phones", "", map[string]string{"pn": number(5000 + i)}, nil); err != nil {
			return err
		}
	}
	if err := g.pair(ctx, own); err != nil {
		return err
	}
	if s.bare, err = startBare(ctx, dir, b); err != nil {
		return err
	}
	s.stops = append(s.stops, s.bare.child.stop)
	s.bareMeter.processes = map[string]int{"bare": s.bare.child.pid()}
	s.queued = func(context.Context) (bool, error) { return false, nil }
	for _, warm := range []struct {
		name string
		send func(l load) (posted, error)
	}{
		{"warm-bare", s.bare.send},
		{"warm-gateway", func(l load) (posted, error) { return g.post(ctx, l) }},
	} {
		l := load{Name: warm.name, Sessions: sessions, Messages: sessions * circle}
		r, err := s.measure(ctx, l, &s.simMeter, func() (posted, error) { return warm.send(l) })
		if err == nil && r.lost > 0 {
			err = fmt.Errorf("%d of %d messages were lost", r.lost, l.Messages)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l.Name, err)
		}
	}
	return nil
}

// key is a random key of 32 bytes.
func key() string {
	var raw [32]byte
	_, _ = rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

// once runs a command of the gateway that ends by itself.
func once(ctx context.Context, env []string, binary string, out *string, args ...string) error {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), env...)
	raw, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if out != nil {
		*out = strings.TrimSpace(string(raw))
	}
	return nil
}

// bareProcess talks to the bare side.
type bareProcess struct {
	child   *child
	in      io.Writer
	answers *bufio.Scanner
	maxOpen int
}

func startBare(ctx context.Context, dir string, b bareSettings) (*bareProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	settings, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), bareEnv+"="+string(settings))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, os.Stderr
	c := &child{cmd: cmd, done: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	_, _ = inR.Close(), outW.Close()
	go func() { _ = cmd.Wait(); close(c.done) }()
	p := &bareProcess{child: c, in: inW, answers: bufio.NewScanner(outR)}
	ready, err := p.answer()
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("bare process: %w", err)
	}
	p.maxOpen = ready.MaxOpen
	return p, nil
}

func (p *bareProcess) answer() (loadDone, error) {
	if !p.answers.Scan() {
		return loadDone{}, errors.Join(p.answers.Err(), errors.New("it ended"))
	}
	var done loadDone
	err := json.Unmarshal(p.answers.Bytes(), &done)
	return done, err
}

func (p *bareProcess) send(l load) (posted, error) {
	if err := json.NewEncoder(p.in).Encode(l); err != nil {
		return posted{}, err
	}
	done, err := p.answer()
	if err == nil && done.Errors > 0 {
		err = fmt.Errorf("%d sends failed: %s", done.Errors, done.Error)
	}
	return posted{first: done.First}, err
}
