package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"time"
)

// RefusedError is an HTTP answer of 400 or more.
type RefusedError struct {
	Status     int
	Code       string        // of the problem, "" if it told none
	RetryAfter time.Duration // of the header, 0 if it has none
	text       string
}

// Error says what was asked and what came.
func (r *RefusedError) Error() string { return r.text }

// callTime bounds one HTTP exchange.
const callTime = 30 * time.Second

// Call does one HTTP exchange in JSON. key is sent as bearer unless it is ""; out may be nil. A refusal is a *RefusedError.
func Call(ctx context.Context, method, url, key string, header http.Header, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, &body)
	if err != nil {
		return err
	}
	maps.Copy(req.Header, header)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it is read
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(resp.Body); err != nil {
		return fmt.Errorf("%s %s: %w", method, url, err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		var problem struct {
			Code string `json:"code"`
		}
		_ = json.Unmarshal(answer.Bytes(), &problem)
		after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return &RefusedError{
			resp.StatusCode, problem.Code, time.Duration(after) * time.Second,
			fmt.Sprintf("%s %s: %s %s", method, url, resp.Status, bytes.TrimSpace(answer.Bytes())),
		}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer.Bytes(), out); err != nil {
		return fmt.Errorf("%s %s: %w", method, url, err)
	}
	return nil
}

// api calls the gateway's API.
func (c *Cluster) api(ctx context.Context, method, path, key string, in, out any) error {
	return Call(ctx, method, c.API+path, key, nil, in, out)
}

// simulator calls the simulator's control API.
func (c *Cluster) simulator(ctx context.Context, method, path string, in, out any) error {
	return Call(ctx, method, c.Sim+path, "", nil, in, out)
}
