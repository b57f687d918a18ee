package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// gateway is the product as its users see it: an API, and one organization with a key for every session.
type gateway struct {
	api, admin string
	simulator  string
	keys       []string
}

// posted is what the clients saw of a load.
type posted struct {
	first    time.Time // the first POST
	p50, p99 time.Duration
}

// pair makes an organization, a key and a session for every number and links them through the simulator.
func (g *gateway) pair(ctx context.Context, numbers []string) error {
	g.keys = make([]string, len(numbers))
	errs := make([]error, len(numbers))
	slots := make(chan struct{}, pairsAtOnce)
	var all sync.WaitGroup
	for i, n := range numbers {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			g.keys[i], errs[i] = g.pairOne(ctx, fmt.Sprintf("org-%03d", i), n)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (g *gateway) pairOne(ctx context.Context, org, number string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, pairLimit)
	defer cancel()
	post := func(path string, in, out any) error {
		return cluster.Call(ctx, http.MethodPost, g.api+path, g.admin, nil, in, out)
	}
	var key struct {
		Key string `json:"key"`
	}
	slug := org + "-01"
	session := "/api/admin/sessions/" + slug
	for _, step := range []func() error{
		func() error {
			return post("/api/admin/organizations", map[string]string{"orgId": org, "label": "Organization"}, nil)
		},
		func() error { return post("/api/admin/keys", map[string]string{"orgId": org, "label": "trial"}, &key) },
		func() error {
			return post("/api/admin/sessions", map[string]string{"orgId": org, "sessionId": slug}, nil)
		},
		func() error {
			return cluster.Call(ctx, http.MethodPatch, g.api+session, g.admin, nil, cluster.Unbounded, nil)
		},
		func() error { return post(session+"/pair", map[string]string{"method": "qr"}, nil) },
	} {
		if err := step(); err != nil {
			return "", err
		}
	}
	var shown struct {
		QR string `json:"qr"`
	}
	err := cluster.Until(ctx, pairLimit, func() error {
		err := cluster.Call(ctx, http.MethodGet, g.api+session+"/qr", g.admin, nil, nil, &shown)
		if err == nil && shown.QR == "" {
			err = errors.New("no QR code")
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if err := scan(ctx, g.simulator, number, shown.QR); err != nil {
		return "", err
	}
	return key.Key, cluster.Until(ctx, pairLimit, func() error {
		var s cluster.Session
		err := cluster.Call(ctx, http.MethodGet, g.api+session, g.admin, nil, nil, &s)
		if err == nil && (!s.Connected || s.PairedAt == "") {
			err = fmt.Errorf("%s is %s", slug, s.State)
		}
		return err
	})
}

// post does one load with closed-loop clients: each waits for its 202 and goes on. Any other answer ends the trial.
func (g *gateway) post(ctx context.Context, l load) (posted, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	took := make([]time.Duration, l.Messages)
	var next atomic.Int64
	var all sync.WaitGroup
	p := posted{first: time.Now()}
	for range clients {
		all.Go(func() {
			wire, err := cluster.DialWire(ctx, g.api)
			if err != nil {
				cancel(err)
				return
			}
			defer wire.Close()
			for ctx.Err() == nil {
				k := int(next.Add(1)) - 1
				if k >= l.Messages {
					return
				}
				start := time.Now()
				if err := send(wire, g.keys[l.session(k)], l.recipient(k), l.text(k)); err != nil {
					cancel(fmt.Errorf("message %d was not accepted: %w", k, err))
					return
				}
				took[k] = time.Since(start)
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return p, err
	}
	slices.Sort(took)
	p.p50, p.p99 = took[len(took)/2], took[len(took)*99/100]
	return p, nil
}

// send has one message accepted.
func send(wire *cluster.Wire, key, to, text string) error {
	body, err := json.Marshal(map[string]string{"to": "+" + to, "text": text})
	if err != nil {
		return err
	}
	status, answer, err := wire.Post("/api/v1/messages", key, "", body)
	if err == nil && status != http.StatusAccepted {
		err = fmt.Errorf("%d %s", status, answer)
	}
	return err
}
