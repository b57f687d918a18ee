package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/trials/cluster"
)

// talk is a cluster under traffic, and what its clients were answered.
type talk struct {
	*cluster.Cluster
	v *verdict

	mu      sync.Mutex
	refused map[string]int // since the last phase began, by what was answered
	wrong   map[string]int // of these, what is neither acceptance nor 503 with Retry-After
}

// begin pairs numbers and lets them talk.
func begin(ctx context.Context, c *cluster.Cluster, sessions int, v *verdict) (*talk, error) {
	t := &talk{Cluster: c, v: v, refused: map[string]int{}, wrong: map[string]int{}}
	c.Refused = t.answered
	if err := c.Pair(ctx, sessions); err != nil {
		return nil, err
	}
	return t, c.Talk(ctx, "before", 2)
}

// answered counts one request that was not accepted.
func (t *talk) answered(err error) {
	name, fine := "no answer: ", false
	if refusal, ok := errors.AsType[*cluster.RefusedError](err); ok {
		name = fmt.Sprintf("%d %s, Retry-After %s", refusal.Status, refusal.Code, refusal.RetryAfter)
		fine = refusal.Status == http.StatusServiceUnavailable && refusal.RetryAfter > 0 ||
			refusal.Status == http.StatusConflict && refusal.Code == "IDEMPOTENCY_IN_PROGRESS" // its first request still runs
	} else {
		name += err.Error()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused[name]++
	if !fine {
		t.wrong[name]++
	}
}

// look reads with a key that is right, as clients do, until stopped: it is answered, or asked to come again.
func (t *talk) look(ctx context.Context, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		n := t.Numbers[i%len(t.Numbers)]
		path, key := "/api/v1/organization", n.Key
		if i%2 == 1 {
			path, key = "/api/admin/sessions/"+n.Slug, t.Admin
		}
		if err := cluster.Call(ctx, http.MethodGet, t.API+path, key, nil, nil, nil); err != nil && ctx.Err() == nil {
			t.answered(err)
		}
		if cluster.Pause(ctx, 100*time.Millisecond) != nil {
			return
		}
	}
}

// outage lets everybody talk while something happens and for a moment after it, and waits until all has settled.
// refusals: clients must have been refused, or the outage was none.
func (t *talk) outage(ctx context.Context, name string, refusals bool, happen func(context.Context) error) error {
	clear(t.refused)
	stop, looked := make(chan struct{}), make(chan struct{})
	go func() { defer close(looked); t.look(ctx, stop) }()
	storm := t.Storm(ctx, name, pause)
	began := time.Now()
	err := errors.Join(cluster.Pause(ctx, time.Second), happen(ctx))
	took := time.Since(began)
	if err == nil {
		err = cluster.Pause(ctx, 2*time.Second)
	}
	err = errors.Join(err, storm.End())
	close(stop)
	<-looked
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := t.Settle(ctx, settle); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := t.AwaitConnected(ctx, time.Minute); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, count := range t.refused {
		n += count
	}
	t.v.Outages++
	t.v.Refused += n
	fmt.Printf("%-44s %4.0f s, settled %3.0f s later; answers: %v\n", name, took.Seconds(), (time.Since(began) - took).Seconds(), t.refused)
	if refusals && n == 0 {
		return fmt.Errorf("%s: no client noticed it, so it proves nothing", name)
	}
	return nil
}

// end audits the cluster and counts what is wrong.
func (t *talk) end(ctx context.Context) error {
	report, err := t.Audit(ctx)
	if err != nil {
		return err
	}
	fmt.Println(report)
	t.v.of(report)
	t.mu.Lock()
	for name, count := range t.wrong {
		fmt.Printf("wrong answer, %d times: %s\n", count, name)
		t.v.Wrong += count
	}
	t.mu.Unlock()
	pairs, err := t.Log(ctx, 0, "&kind="+wasim.KindPair)
	if err != nil {
		return err
	}
	logouts, err := t.Log(ctx, 0, "&kind="+wasim.KindLogout)
	if err != nil {
		return err
	}
	t.v.Logouts += len(pairs) - len(t.Numbers) + len(logouts)
	for _, name := range t.Names() {
		select {
		case <-t.Process(name).Done():
			fmt.Printf("%s ended by itself (log: %s)\n", name, t.Process(name).LogPath())
			t.v.Ended++
		default:
		}
	}
	return t.Stop()
}
