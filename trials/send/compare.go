package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wafleet/wafleet/trials/cluster"
)

const sqlite = "sqlite"

// setting is everything that runs for one database: both sides and the simulator between them.
type setting struct {
	database  string
	simulator string
	gateway   *gateway
	bare      *bareProcess
	admin     *pgx.Conn // nil on SQLite

	gatewayMeter, bareMeter, simMeter meter

	grounds []ground // of the gateway's processes

	env   []string // of the gateway's processes
	run   func(name string, args ...string) (*cluster.Process, error)
	stops []func()
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
	dir, remove, err := cluster.Folder("send")
	if err != nil {
		return err
	}
	defer remove()
	binary, err := cluster.Build(ctx, dir, o.tags...)
	if err != nil {
		return err
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
	if err := os.Mkdir(dir, 0o711); err != nil { //nolint:gosec // the servers' user passes through
		return nil, err
	}
	s := &setting{database: database, env: o.settings}
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
	_, _ = fmt.Fprintf(os.Stdout, "\n%s: %d sessions on each side are paired and warm after %.0f s\n", database, most, time.Since(begun).Seconds())
	var verdicts []verdict
	for _, sessions := range o.sessions {
		var bares, gateways []result
		for round := range o.rounds {
			l := load{Name: fmt.Sprintf("bare-%d-%d", sessions, round), Sessions: sessions, Messages: o.messages}
			b, err := s.measure(ctx, l, &s.bareMeter, s.bare.send)
			if err != nil {
				return nil, fmt.Errorf("bare: %w", err)
			}
			l.Name = fmt.Sprintf("gateway-%d-%d", sessions, round)
			g, err := s.measure(ctx, l, &s.gatewayMeter, s.gateway.post)
			if err != nil {
				return nil, fmt.Errorf("gateway: %w", err)
			}
			bares, gateways = append(bares, b), append(gateways, g)
			_, _ = fmt.Fprintf(os.Stdout, "  %2d sessions, round %d: bare %5.0f/s, gateway %5.0f/s\n", sessions, round+1, b.rate, g.rate)
		}
		v := judge(database, sessions, bares, gateways)
		v.print()
		verdicts = append(verdicts, v)
	}
	return verdicts, nil
}

// measure runs one load and says what it took.
func (s *setting) measure(ctx context.Context, l load, m *meter, send func(context.Context, load) (posted, error)) (result, error) {
	if s.admin != nil { // so that none comes by itself
		if _, err := s.admin.Exec(ctx, `CHECKPOINT`); err != nil {
			return result{}, err
		}
	}
	mark, err := oracle{s.simulator}.mark(ctx)
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
		p, err := send(ctx, l)
		done <- sent{p, err}
	}()
	d, err := oracle{s.simulator}.await(ctx, mark, l)
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
	after, err := m.still(ctx) // what is yet to be written belongs to this load
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
