package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// The goals.
const (
	speedPostgres = 1.0
	speedSQLite   = 0.8
	speedAim      = 1.5
	costGate      = 2.0
	costAim       = 1.3
)

// verdict is the comparison on one database with one number of sessions.
type verdict struct {
	database      string
	sessions      int
	bare, gateway result // medians
	speed, cost   float64
	lost, doubled int
	barelyLost    int
}

func judge(database string, sessions int, bares, gateways []result) verdict {
	v := verdict{database: database, sessions: sessions}
	var speeds, costs []float64
	for i := range bares {
		b, g := bares[i], gateways[i]
		speeds = append(speeds, g.rate/b.rate)
		costs = append(costs, perMessage(g)/perMessage(b))
		v.lost, v.doubled, v.barelyLost = v.lost+g.lost, v.doubled+g.doubled, v.barelyLost+b.lost
	}
	v.speed, v.cost = median(speeds), median(costs)
	byRate := func(a, b result) int { return int(a.rate - b.rate) }
	v.bare, v.gateway = slices.MaxFunc(bares, byRate), slices.MaxFunc(gateways, byRate)
	return v
}

func perMessage(r result) float64 { return r.cost.total().Seconds() * 1000 / float64(r.messages) }

func median(of []float64) float64 {
	slices.Sort(of)
	n := len(of)
	return (of[(n-1)/2] + of[n/2]) / 2
}

func (v *verdict) goal() float64 {
	if v.database == sqlite {
		return speedSQLite
	}
	return speedPostgres
}

func (v *verdict) short() bool {
	return v.speed < v.goal() || v.lost+v.doubled > 0 || v.database == postgres && v.cost > costGate
}

// print shows what a message costs on either side.
func (v *verdict) print() {
	_, _ = fmt.Fprintf(os.Stdout, "\n  %s, %d sessions: gateway %.2f× bare (goal ≥ %.1f×), CPU %.2f× bare (goal ≤ %.1f×, aim %.1f×)\n",
		v.database, v.sessions, v.speed, v.goal(), v.cost, costGate, costAim)
	_, _ = fmt.Fprintf(os.Stdout, "    %-28s %10s %10s\n", "per message", "bare", "gateway")
	line := func(name, format string, of func(r result) float64) {
		_, _ = fmt.Fprintf(os.Stdout, "    %-28s %10s %10s\n", name, fmt.Sprintf(format, of(v.bare)), fmt.Sprintf(format, of(v.gateway)))
	}
	line("messages/s", "%.0f", func(r result) float64 { return r.rate })
	line("CPU ms", "%.2f", perMessage)
	var names []string
	for _, r := range []result{v.bare, v.gateway} {
		for name := range r.cost.cpu {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	for _, name := range names {
		line("  of it "+name, "%.2f", func(r result) float64 { return r.cost.cpu[name].Seconds() * 1000 / float64(r.messages) })
	}
	line("CPU ms of the simulator", "%.2f", func(r result) float64 { return r.simulator.Seconds() * 1000 / float64(r.messages) })
	if v.database == postgres {
		per := func(n int64, r result) float64 { return float64(n) / float64(r.messages) }
		line("statements", "%.2f", func(r result) float64 { return per(r.cost.roundTrips(), r) })
		line("writing transactions", "%.2f", func(r result) float64 { return per(r.cost.writes, r) })
		line("WAL bytes", "%.0f", func(r result) float64 { return per(r.cost.wal, r) })
	}
	_, _ = fmt.Fprintf(os.Stdout, "    POST p50 %s, p99 %s\n", v.gateway.posted.p50.Round(100*time.Microsecond), v.gateway.posted.p99.Round(100*time.Microsecond))
	if v.lost+v.doubled+v.barelyLost > 0 {
		_, _ = fmt.Fprintf(os.Stdout, "    lost: gateway %d, bare %d; doubled by the gateway: %d\n", v.lost, v.barelyLost, v.doubled)
	}
	for _, side := range []struct {
		name string
		result
	}{{"bare", v.bare}, {"gateway", v.gateway}} {
		for _, text := range side.cost.dearest(14) {
			s := side.cost.statements[text]
			_, _ = fmt.Fprintf(os.Stdout, "    %-8s %6.3f calls %7.3f ms  %.110s\n", side.name, float64(s.calls)/float64(side.messages), s.time.Seconds()*1000/float64(side.messages), text)
		}
	}
}

// conclude prints the figures on the last line and says whether they reach the goals.
func conclude(verdicts []verdict) error {
	var speeds, costs []string
	short := false
	for _, v := range verdicts {
		speeds = append(speeds, fmt.Sprintf("%s/%d %.2f×", v.database, v.sessions, v.speed))
		if v.database == postgres {
			costs = append(costs, fmt.Sprintf("%d: %.2f×", v.sessions, v.cost))
		}
		short = short || v.short()
	}
	_, _ = fmt.Fprintf(os.Stdout, "\nbench-send: gateway/bare %s (goals: %s ≥ %.1f×, %s ≥ %.1f×; aim %.1f× at 16); CPU per message %s (goal ≤ %.1f×, aim %.1f×)\n",
		strings.Join(speeds, ", "), postgres, speedPostgres, sqlite, speedSQLite, speedAim, strings.Join(costs, ", "), costGate, costAim)
	if short {
		return cluster.ErrShort
	}
	return nil
}
