package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/store"
)

// HeaderOrdered is "false" on a delivery that does not keep its place: it stepped aside, or is a
// replay.
const HeaderOrdered = "Wafleet-Ordered"

const userAgent = "wafleet-webhook/1"

// maxError bounds what is kept of an error, in code points.
const maxError = 300

// answer is what one request brought.
type answer struct {
	status     int
	retryAfter time.Duration
	err        error
}

// deliver makes one try and writes down how it went. ctx ends when the grace of a shutdown is over.
func (w *Worker) deliver(ctx context.Context, c store.ClaimedDelivery) {
	log := w.o.Log.With(slog.String("delivery_id", string(c.ID)), slog.String("event_id", string(c.EventID)),
		slog.String("endpoint_id", string(c.EndpointID)), slog.String("org_id", string(c.OrgID)), slog.Int("try", c.Attempts))
	body, err := w.body(ctx, c)
	var got answer
	if err == nil {
		got = w.post(ctx, c, body)
	}
	aborted := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	var result string
	switch {
	case err != nil && !aborted:
		result, err = w.unrendered(ctx, log, c, err)
	case aborted && (err != nil || got.err != nil):
		result, err = w.finish(ctx, resultReleased, func() (bool, error) { return w.o.Store.ReleaseDelivery(ctx, c) })
	case got.err == nil && got.status >= 200 && got.status <= 299, plant.AnyAnswer:
		result, err = w.succeeded(ctx, c, got)
	default:
		result, err = w.failed(ctx, log, c, got)
	}
	if err != nil {
		w.metrics.errors.Inc()
		log.WarnContext(ctx, "result of delivery not stored; it is delivered again when its lock runs out", slog.Any("err", err))
		return
	}
	w.metrics.tries.WithLabelValues(result).Inc()
}

// body renders the event from the rows that it refers to.
func (w *Worker) body(ctx context.Context, c store.ClaimedDelivery) ([]byte, error) {
	if c.Event == nil {
		return nil, errGone
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	subject, err := w.o.Store.EventSubject(ctx, *c.Event)
	if err != nil {
		return nil, err
	}
	return render(*c.Event, c.Endpoint.Scope, subject)
}

// post sends the request. Of the answer only status and Retry-After count; the rest of it is read, up
// to MaxAnswer bytes, so that the connection can be used again.
func (w *Worker) post(ctx context.Context, c store.ClaimedDelivery, body []byte) answer {
	ctx, cancel := context.WithTimeout(ctx, TryTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Endpoint.URL, bytes.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", userAgent)
	if !c.Ordered {
		req.Header.Set(HeaderOrdered, "false")
	}
	start := time.Now()
	if err := Sign(req.Header, c.Endpoint.Secrets, string(c.EventID), start, body); err != nil {
		return answer{err: err}
	}
	defer func() { w.metrics.seconds.Observe(time.Since(start).Seconds()) }()
	resp, err := w.o.Client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }() // the status has decided
	_, _ = io.CopyN(io.Discard, resp.Body, MaxAnswer)
	return answer{status: resp.StatusCode, retryAfter: retryAfter(resp.StatusCode, resp.Header, time.Now())}
}

// finish reports result, or that the lock was lost before it could be written. A database that is away for
// a moment is asked again, as long as ctx allows: what was delivered would be delivered once more.
func (*Worker) finish(ctx context.Context, result string, write func() (bool, error)) (string, error) {
	for pause := settleAgain; ; pause *= 2 {
		ok, err := write()
		switch {
		case err == nil && !ok:
			return resultLost, nil
		case err == nil || !errors.Is(err, fleet.ErrUnavailable):
			return result, err
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return result, err
		}
	}
}

func (w *Worker) succeeded(ctx context.Context, c store.ClaimedDelivery, got answer) (string, error) {
	result, err := w.finish(ctx, resultDone, func() (bool, error) {
		return w.o.Store.FinishDelivery(ctx, c, store.DeliveryResult{Status: got.status}, false)
	})
	if err != nil {
		return result, err
	}
	return result, w.o.Store.EndpointSuccess(ctx, c.EndpointID)
}

// failed counts the failure against the endpoint, then decides about the delivery. In this order,
// because giving it back first would let another try of an endpoint begin whose breaker is about to
// open.
func (w *Worker) failed(ctx context.Context, log *slog.Logger, c store.ClaimedDelivery, got answer) (string, error) {
	r := store.DeliveryResult{Status: got.status}
	if got.err != nil {
		r.Error = clip(plainError(got.err), maxError)
	} else {
		r.Error = fmt.Sprintf("HTTP %d", got.status)
	}
	if got.status == http.StatusGone {
		result, err := w.giveUp(ctx, log, c, r)
		if err != nil {
			return result, err
		}
		return result, w.disable(ctx, log, c.EndpointID, store.DisabledGone)
	}
	since, down, err := w.o.Store.EndpointFailure(ctx, c.EndpointID, breakerPause)
	if err != nil {
		return "", err
	}
	if down > 0 {
		w.lookIn(down)
	}
	result, err := w.again(ctx, log, c, r, got.retryAfter, down)
	if err == nil && time.Since(since) >= DisableAfter {
		err = w.disable(ctx, log, c.EndpointID, store.DisabledFailing)
	}
	return result, err
}

// unrendered handles a delivery whose body can't be made: for good when its content is gone, later
// otherwise. The endpoint has no part in it.
func (w *Worker) unrendered(ctx context.Context, log *slog.Logger, c store.ClaimedDelivery, cause error) (string, error) {
	r := store.DeliveryResult{Error: "the event could not be rendered"}
	if errors.Is(cause, errGone) {
		r.Error = errGone.Error()
		return w.giveUp(ctx, log, c, r)
	}
	log.ErrorContext(ctx, "event not rendered", slog.Any("err", cause))
	return w.again(ctx, log, c, r, 0, 0)
}

// again gives a delivery back to be tried later. down is for how long its endpoint is left alone: a try
// that failed together with the others says nothing about this one, so it is not counted, and the
// delivery is due when the endpoint may be asked again.
func (w *Worker) again(ctx context.Context, log *slog.Logger, c store.ClaimedDelivery, r store.DeliveryResult, retryAfter, down time.Duration) (string, error) {
	f := failure{tries: c.Attempts, retryAfter: retryAfter, down: down, ordered: c.Ordered}
	if f.last(time.Since(c.CreatedAt)) {
		return w.giveUp(ctx, log, c, r)
	}
	if !c.FirstFail.IsZero() {
		f.blocking = time.Since(c.FirstFail)
	}
	pause := f.pause(rand.Float64()) //nolint:gosec // spreads load, guards nothing
	log.InfoContext(ctx, "delivery failed, trying again", slog.Int("http_status", r.Status), slog.String("err", r.Error), slog.Duration("pause", pause))
	return w.finish(ctx, resultRetry, func() (bool, error) {
		return w.o.Store.RetryDelivery(ctx, c, r, store.Retry{Pause: pause, AsideAfter: StepAside, Uncounted: down > 0})
	})
}

func (w *Worker) giveUp(ctx context.Context, log *slog.Logger, c store.ClaimedDelivery, r store.DeliveryResult) (string, error) {
	log.WarnContext(ctx, "delivery given up; it can be replayed", slog.Int("http_status", r.Status), slog.String("err", r.Error))
	return w.finish(ctx, resultDead, func() (bool, error) { return w.o.Store.FinishDelivery(ctx, c, r, true) })
}

func (w *Worker) disable(ctx context.Context, log *slog.Logger, id fleet.EndpointID, why string) error {
	changed, err := w.o.Store.DisableEndpoint(ctx, id, why)
	if changed {
		w.metrics.disabled.Inc()
		log.WarnContext(ctx, "endpoint disabled", slog.String("reason", why))
	}
	return err
}
