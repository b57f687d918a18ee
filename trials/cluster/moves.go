package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/wasim"
)

// Downs says of every session that was connected at a moment and logged in again under another epoch after it, how long
// no connection of it was logged in at WhatsApp: from the end of the last one before the login.
func Downs(log []wasim.Entry, since time.Time) map[string]time.Duration {
	ended, epoch, out := map[string]time.Time{}, map[string]int64{}, map[string]time.Duration{}
	for _, e := range log {
		switch e.Kind {
		case wasim.KindClose:
			ended[e.SessionID] = e.At
		case wasim.KindLogin:
			if old := epoch[e.SessionID]; old != 0 && e.Epoch != old && e.At.After(since) && out[e.SessionID] == 0 {
				out[e.SessionID] = max(e.At.Sub(ended[e.SessionID]), 1)
			}
			epoch[e.SessionID] = e.Epoch
		}
	}
	return out
}

// FirstLogins says how long after a moment each session logged in for the first time, on any worker but one ("" = on any).
func FirstLogins(log []wasim.Entry, since time.Time, but string) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, e := range log {
		if e.Kind == wasim.KindLogin && e.At.After(since) && out[e.SessionID] == 0 && (but == "" || !strings.HasPrefix(e.Worker, but+"/")) {
			out[e.SessionID] = e.At.Sub(since)
		}
	}
	return out
}

// PeakHandshakes is how many connections were between their dial and their login, or their end, at the same time, at
// most, of those that were dialled after a moment.
func PeakHandshakes(log []wasim.Entry, since time.Time) (peak int) {
	open := map[int64]bool{}
	for _, e := range log {
		switch {
		case e.At.Before(since) || e.Conn == 0:
		case e.Kind == wasim.KindDial && e.Error == 0:
			open[e.Conn] = true
			peak = max(peak, len(open))
		case e.Kind == wasim.KindLogin || e.Kind == wasim.KindClose || e.Kind == wasim.KindFailure:
			delete(open, e.Conn)
		}
	}
	return peak
}

// Longest is the longest of some times.
func Longest(of map[string]time.Duration) (most time.Duration) {
	for _, d := range of {
		most = max(most, d)
	}
	return most
}

// Median is the middle one of some times.
func Median(of map[string]time.Duration) time.Duration {
	var all []time.Duration
	for _, d := range of {
		all = append(all, d)
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// AwaitBeat waits until a worker has renewed its leases just now.
func (c *Cluster) AwaitBeat(ctx context.Context, worker string) error {
	look := func() (at int64, err error) {
		return at, c.DB.QueryRowContext(ctx, `SELECT coalesce(max(expires_at), 0) FROM leases WHERE owner LIKE $1`, worker+"/%").Scan(&at)
	}
	before, err := look()
	if err != nil {
		return err
	}
	return Until(ctx, time.Minute, func() error {
		now, err := look()
		if err == nil && now == before {
			err = fmt.Errorf("%s does not beat", worker)
		}
		return err
	})
}
