package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	people      = 64 // who is written to
	circle      = 8  // of them by one session
	clients     = 32 // closed-loop HTTP clients of the gateway
	pool        = 16 // database connections of each side
	pairsAtOnce = 8
	pairLimit   = 2 * time.Minute
	sendLimit   = 30 * time.Second
	callLimit   = 30 * time.Second
)

// load is one run of sends: message k goes from session k mod Sessions to one of the people of its circle.
type load struct {
	Name     string `json:"name"` // what the texts begin with
	Sessions int    `json:"sessions"`
	Messages int    `json:"messages"`
}

// session says who sends message k.
func (l load) session(k int) int { return k % l.Sessions }

// recipient says who gets message k, in digits.
func (l load) recipient(k int) string {
	return number(5000 + (l.session(k)*circle+k/l.Sessions%circle)%people)
}

// text is what message k says: no two messages say the same.
func (l load) text(k int) string {
	return fmt.Sprintf("%s/%d Your order is on its way and will be with you tomorrow.", l.Name, k)
}

// owns reports whether a text belongs to the load.
func (l load) owns(text string) bool { return strings.HasPrefix(text, l.Name+"/") }

// number is a telephone number that belongs to nobody.
func number(n int) string { return fmt.Sprintf("55119%08d", n) }

// callError is a refusal.
type callError struct {
	status int
	text   string
}

func (e *callError) Error() string { return e.text }

// call calls a JSON API. A refusal is a *callError.
func call(ctx context.Context, method, url, key string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s %s: %w", method, url, err)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, url, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := web.Do(req)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, url, err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is read to its end
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, url, err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return &callError{resp.StatusCode, fmt.Sprintf("%s %s: %s %s", method, url, resp.Status, bytes.TrimSpace(raw))}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, url, err)
	}
	return nil
}

// web keeps a connection for every client.
var web = &http.Client{Transport: &http.Transport{MaxIdleConns: 2 * clients, MaxIdleConnsPerHost: 2 * clients}}

// scan lets the phone of a number scan a QR code.
func scan(ctx context.Context, simulator, number, code string) error {
	if err := call(ctx, http.MethodPost, simulator+"/sim/phones", "", map[string]string{"pn": number}, nil); err != nil {
		return err
	}
	return call(ctx, http.MethodPost, simulator+"/sim/phones/"+number+"/scan", "", map[string]string{"qr": code}, nil)
}

// until looks ten times a second.
func until(ctx context.Context, what string, ok func() (bool, error)) error {
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		done, err := ok()
		if err != nil || done {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s: %w", what, context.Cause(ctx))
		}
	}
}
