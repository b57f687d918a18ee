package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

const (
	people    = 64 // who is written to
	sendLimit = 30 * time.Second
)

// rate is what the API did.
type rate struct {
	rate, p50MS, p99MS, cpuMS float64
}

// web keeps a connection for every client.
var web = &http.Client{Transport: &http.Transport{MaxIdleConns: clients, MaxIdleConnsPerHost: clients}}

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
				if _, err := send(ctx, c, key, k); err != nil {
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

// send has one message accepted and returns its id.
func send(ctx context.Context, c *cluster.Cluster, key string, k int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	body, err := json.Marshal(map[string]string{
		"to": fmt.Sprintf("+55119%08d", 5000+k%people), "text": fmt.Sprintf("%d Your order is on its way and will be with you tomorrow.", k),
	})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.API+"/api/v1/messages", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+c.Numbers[0].Key)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := web.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // it is read to its end
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusAccepted {
		return "", fmt.Errorf("%s %s", resp.Status, raw)
	}
	var message struct {
		ID string `json:"messageId"`
	}
	return message.ID, json.Unmarshal(raw, &message)
}
