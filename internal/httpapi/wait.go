package httpapi

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

const (
	maxWait      = 30 * time.Second // longest Prefer: wait
	waitPoll     = time.Second      // how late a lost nudge can make an answer
	waitPollTime = 5 * time.Second  // deadline of one poll
	waitListen   = 5 * time.Second  // between tries to subscribe
)

// waiters lets requests wait for the end of messages with one subscription and one batched poll per
// process, however many requests wait. Make it with newWaiters, then run it once; without a running
// run a wait just takes its time.
type waiters struct {
	store *store.Store
	bus   bus.Bus
	log   *slog.Logger
	wake  chan struct{} // one slot: some message in due should be looked at
	done  chan struct{} // closed when run ends: nobody will be told any more

	mu      sync.Mutex // held for map work only, never across anything that waits
	waiting map[fleet.MessageID]map[chan fleet.Message]struct{}
	due     map[fleet.MessageID]struct{} // nudged since the last look
}

func newWaiters(s *store.Store, b bus.Bus, log *slog.Logger) *waiters {
	return &waiters{
		store: s, bus: b, log: log, wake: make(chan struct{}, 1), done: make(chan struct{}),
		waiting: map[fleet.MessageID]map[chan fleet.Message]struct{}{}, due: map[fleet.MessageID]struct{}{},
	}
}

// wait returns the message as soon as it is settled. False: it was not within d, or the caller or
// this process is going.
func (w *waiters) wait(ctx context.Context, id fleet.MessageID, d time.Duration) (fleet.Message, bool) {
	told := make(chan fleet.Message, 1)
	w.mu.Lock()
	if w.waiting[id] == nil {
		w.waiting[id] = map[chan fleet.Message]struct{}{}
	}
	w.waiting[id][told] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.waiting[id], told); len(w.waiting[id]) == 0 {
			delete(w.waiting, id)
		}
	}()
	w.nudged(id) // it may be settled already
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case m := <-told:
		return m, true
	case <-limit.C:
	case <-ctx.Done():
	case <-w.done:
	}
	return fleet.Message{}, false
}

// nudged notes that a message should be looked at, if anybody waits for it. It does not block.
func (w *waiters) nudged(id fleet.MessageID) {
	w.mu.Lock()
	_, wanted := w.waiting[id]
	if wanted {
		w.due[id] = struct{}{}
	}
	w.mu.Unlock()
	if !wanted {
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run looks at nudged messages at once and at all that are waited for each second, until ctx ends.
func (w *waiters) run(ctx context.Context) {
	defer close(w.done)
	tick := time.NewTicker(waitPoll)
	defer tick.Stop()
	stop := w.listen(ctx)
	defer func() {
		if stop != nil {
			stop()
		}
	}()
	tried := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
			w.look(ctx, w.take(false))
		case <-tick.C:
			w.look(ctx, w.take(true))
			if stop == nil && time.Since(tried) >= waitListen {
				stop, tried = w.listen(ctx), time.Now()
			}
		}
	}
}

// listen subscribes to what is told of messages; a failure costs a second per answer, not more.
func (w *waiters) listen(ctx context.Context) (stop func()) {
	stop, err := w.bus.Subscribe(ctx, func(_, payload string) { w.nudged(fleet.MessageID(payload)) }, bus.TopicMessage)
	if err != nil {
		w.log.WarnContext(ctx, "waiting requests poll only", slog.Any("err", err))
		return nil
	}
	return stop
}

// take returns the ids to look at: all that are waited for, or those nudged since the last look.
func (w *waiters) take(all bool) []fleet.MessageID {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []fleet.MessageID
	for id := range w.waiting {
		if _, due := w.due[id]; due || all {
			ids = append(ids, id)
		}
	}
	clear(w.due)
	return ids
}

// look reads the messages with one statement and tells those who wait for the settled ones.
func (w *waiters) look(ctx context.Context, ids []fleet.MessageID) {
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, waitPollTime)
	defer cancel()
	messages, err := w.store.MessagesByID(ctx, ids)
	if err != nil {
		w.log.WarnContext(ctx, "could not look at waited-for messages", slog.Int("messages", len(ids)), slog.Any("err", err))
		return // the next tick looks again
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range messages {
		if !m.Status.Settled() {
			continue
		}
		for told := range w.waiting[m.ID] {
			select {
			case told <- m: // one slot each, and told once is enough
			default:
			}
		}
	}
}

// preferWait reads the wait preference of RFC 7240 from all Prefer headers: how long, capped at
// maxWait. False: there is none that can be honoured; such a preference is ignored, as the RFC says.
func preferWait(headers []string) (time.Duration, bool) {
	for preference := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		token, _, _ := strings.Cut(preference, ";") // parameters of a preference mean nothing here
		name, value, ok := strings.Cut(token, "=")
		if !ok || !strings.EqualFold(strings.TrimSpace(name), "wait") {
			continue
		}
		n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 31)
		if err != nil || n == 0 {
			return 0, false // the first one counts
		}
		return min(time.Duration(n)*time.Second, maxWait), true
	}
	return 0, false
}
