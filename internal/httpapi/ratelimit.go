package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

const (
	leftKept = time.Second // how old what an answer says of the budget may be
	leftTime = 500 * time.Millisecond
	leftMost = 10_000 // organizations that are remembered
)

// left is what all numbers of an organization together had left when they were last asked, less what was taken since.
type left struct {
	limit, remaining int
	asked            time.Time
}

// budgets remembers it, so that a send doesn't ask for it each time.
type budgets struct {
	mu sync.Mutex // never held while anything waits
	of map[fleet.OrgID]left
}

// take notes that so many messages were taken and returns what is left, if that is known well enough.
func (b *budgets) take(org fleet.OrgID, messages int) (left, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, ok := b.of[org]
	if !ok || time.Since(l.asked) >= leftKept {
		return left{}, false
	}
	l.remaining = max(0, l.remaining-messages)
	b.of[org] = l
	return l, true
}

func (b *budgets) set(org fleet.OrgID, l left) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil || len(b.of) >= leftMost {
		b.of = map[fleet.OrgID]left{}
	}
	b.of[org] = l
}

// budgetLeft is what the headers say of a send that has taken so many messages, 1 or, refused, 0. It is about the
// organization and names no number. A message that was taken stays taken when this can't be told: then it is empty.
func (d *deps) budgetLeft(ctx context.Context, org fleet.OrgID, taken int) (limit, remaining string) {
	l, ok := d.budgets.take(org, taken)
	if !ok {
		ctx, cancel := context.WithTimeout(ctx, leftTime)
		defer cancel()
		l.asked = time.Now()
		e, err := d.outbound.Capacity(ctx, org)
		if err != nil {
			d.log.DebugContext(ctx, "what is left of a budget is not known", slog.String("org_id", string(org)), slog.Any("err", err))
			return "", ""
		}
		l.limit, l.remaining = sumOf(e).left()
		d.budgets.set(org, l)
	}
	return strconv.Itoa(l.limit), strconv.Itoa(l.remaining)
}

// limitOf is what the header of a refused send says; "" where the refusal is not about a limit.
func (d *deps) limitOf(ctx context.Context, org fleet.OrgID, err error) string {
	if !errors.Is(err, fleet.ErrLimited) {
		return ""
	}
	limit, _ := d.budgetLeft(ctx, org, 0)
	return limit
}
