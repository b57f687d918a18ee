package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

const people = 64 // who is written to

// rate is what the API did.
type rate struct {
	rate, p50MS, p99MS, cpuMS float64
}

// post sends messages with closed-loop clients: each waits for its 202 and goes on. Any other answer ends the trial.
func post(ctx context.Context, c *cluster.Cluster, keyed bool, messages int) (rate, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took := make([]time.Duration, messages)
	before, err := c.Process("api").CPU()
	if err != nil {
		return rate{}, err
	}
	start := time.Now()
	var next atomic.Int64
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			wire, err := cluster.DialWire(ctx, c.API)
			if err != nil {
				cancel(err)
				return
			}
			defer wire.Close()
			for ctx.Err() == nil {
				k := int(next.Add(1)) - 1
				if k >= messages {
					return
				}
				key := ""
				if keyed {
					key = fmt.Sprintf("load-%d", k)
				}
				begin := time.Now()
				if err := send(wire, c.Numbers[0].Key, key, k); err != nil {
					cancel(fmt.Errorf("message %d was not accepted: %w", k, err))
					return
				}
				took[k] = time.Since(begin)
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return rate{}, err
	}
	whole := time.Since(start)
	after, err := c.Process("api").CPU()
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	return rate{
		float64(messages) / whole.Seconds(), ms(took[messages/2]), ms(took[messages*99/100]), ms(after-before) / float64(messages),
	}, err
}

// send has one message accepted.
func send(wire *cluster.Wire, key, idempotency string, k int) error {
	body, err := json.Marshal(map[string]string{
		"to": fmt.Sprintf("+55119%08d", 5000+k%people), "text": fmt.Sprintf("%d Your order is on its way and will be with you tomorrow.", k),
	})
	if err != nil {
		return err
	}
	header := ""
	if idempotency != "" {
		header = "Idempotency-Key: " + idempotency + "\r\n"
	}
	status, answer, err := wire.Post("/api/v1/messages", key, header, body)
	if err == nil && status != http.StatusAccepted {
		err = fmt.Errorf("%d %s", status, answer)
	}
	return err
}
