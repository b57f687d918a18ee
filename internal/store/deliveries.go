package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.mau.fi/util/dbutil"

	"github.com/wafleet/wafleet/internal/fleet"
)

// A delivery is ready when it may be tried: it is unordered, or it is the first pending ordered one
// of its endpoint and stream. Whoever adds, ends or re-orders a pending delivery keeps that true
// while holding the stream's row, so a claim finds what it may try by an index however long the
// backlog behind it is.

const deliveryColumns = `d.n, d.id, d.endpoint_id, d.event_id, d.org_id, d.stream, d.ordered, d.replay, d.status, d.attempts,
	d.due_at, d.first_fail, d.last_status, d.last_error, d.created_at, d.finished_at`

// deliveryReturning is the same for RETURNING, where SQLite knows no alias.
var deliveryReturning = strings.ReplaceAll(deliveryColumns, "d.", "")

func deliveryFields(d *fleet.Delivery) []any {
	return []any{
		&d.N, &d.ID, &d.EndpointID, &d.EventID, &d.OrgID, &d.Stream, &d.Ordered, &d.Replay, &d.Status, &d.Attempts,
		at{&d.DueAt},
		at{&d.FirstFail},
		&d.LastStatus, &d.LastError,
		at{&d.CreatedAt},
		at{&d.FinishedAt},
	}
}

func scanDelivery(row dbutil.Scannable) (fleet.Delivery, error) {
	var d fleet.Delivery
	err := row.Scan(deliveryFields(&d)...)
	return d, err
}

// ClaimDeliveryQuery says who claims, how much and for how long.
type ClaimDeliveryQuery struct {
	Owner   string        // must be unique per process and boot
	Limit   int           // free slots
	LockFor time.Duration // longer than a try can take
	// Share bounds what one organization may hold of the caller's slots, Busy counts what each holds
	// now. Share 0 = no bound.
	Share int
	Busy  map[fleet.OrgID]int
}

// ClaimedDelivery is a delivery to try now: the lock is the caller's until it says how it went.
type ClaimedDelivery struct {
	fleet.Delivery
	Owner    string
	Endpoint fleet.Endpoint // with its live secrets
	Event    *fleet.Event   // nil when it was purged
}

// ClaimDeliveries locks deliveries that are due for the caller. It respects the order of streams,
// each endpoint's concurrency, its breaker (nothing while open, one try at a time until a success
// after it), and takes turns between organizations and endpoints. When nothing is due it takes no
// lock and writes nothing.
func (s *Store) ClaimDeliveries(ctx context.Context, q ClaimDeliveryQuery) ([]ClaimedDelivery, error) {
	if q.Limit <= 0 {
		return nil, nil
	}
	endpoints, err := s.dueEndpoints(ctx, q)
	if err != nil || len(endpoints) == 0 {
		return nil, err
	}
	var out []ClaimedDelivery
	err = s.InTx(ctx, func(ctx context.Context) error {
		// The endpoint rows make claims of one endpoint exclusive; others go on with other endpoints.
		// The claim is a statement of its own, so that it counts what was committed before this lock.
		held, err := column[fleet.EndpointID](ctx, s, `SELECT id FROM endpoints WHERE id IN (SELECT id FROM @ids:$1@ AS wanted) ORDER BY id`+s.holdEndpoint(" SKIP LOCKED"), idList(endpoints))
		if err != nil || len(held) == 0 {
			return err
		}
		out, err = s.claimOf(ctx, q, held)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim deliveries: %w", err)
	}
	if len(out) == 0 {
		return nil, nil
	}
	if err := s.fillClaimed(ctx, out); err != nil {
		return nil, fmt.Errorf("claim deliveries: %w", err)
	}
	return out, nil
}

// liveEndpoint: may be tried now. room is how many more tries it takes.
const (
	liveEndpoint = ` NOT e.disabled AND e.deleted_at = 0 AND e.open_until <= @now@ `
	endpointRoom = ` (CASE WHEN e.open_until > 0 THEN 1 ELSE e.max_concurrency END
		- (SELECT count(*) FROM deliveries b WHERE b.endpoint_id = e.id AND b.status = 'pending' AND b.locked_until > 0 AND b.locked_until > @now@)) `
	dueDelivery = ` d.status = 'pending' AND d.ready AND d.due_at <= @now@ AND d.locked_until <= @now@ `
)

// dueEndpoints looks, without locks, which endpoints have something to try and picks at most Limit of
// them: by turns between organizations, at random within one, so that nobody is always last.
func (s *Store) dueEndpoints(ctx context.Context, q ClaimDeliveryQuery) ([]fleet.EndpointID, error) {
	byOrg := map[fleet.OrgID][]fleet.EndpointID{}
	err := s.query(ctx, func(row dbutil.Scannable) error {
		var id fleet.EndpointID
		var org fleet.OrgID
		if err := row.Scan(&id, &org); err != nil {
			return err
		}
		if q.Share == 0 || q.Busy[org] < q.Share {
			byOrg[org] = append(byOrg[org], id)
		}
		return nil
	}, `SELECT e.id, coalesce(e.org_id, '') FROM endpoints e WHERE`+liveEndpoint+`
		AND (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND`+dueDelivery+` LIMIT 1) IS NOT NULL AND`+endpointRoom+`> 0`)
	if err != nil {
		return nil, fmt.Errorf("look for due deliveries: %w", err)
	}
	orgs := slices.Collect(maps.Keys(byOrg))
	for org, ids := range byOrg {
		rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] }) //nolint:gosec // takes turns, guards nothing
		byOrg[org] = ids
	}
	rand.Shuffle(len(orgs), func(i, j int) { orgs[i], orgs[j] = orgs[j], orgs[i] }) //nolint:gosec // takes turns, guards nothing
	var out []fleet.EndpointID
	for turn := 0; ; turn++ {
		before := len(out)
		for _, org := range orgs {
			if turn < len(byOrg[org]) && len(out) < q.Limit {
				out = append(out, byOrg[org][turn])
			}
		}
		if len(out) == before {
			return out, nil
		}
	}
}

// claimOf takes what is due of endpoints that the transaction holds. turn counts within an
// organization, its deliveries in flight first, and within it endpoint by endpoint.
func (s *Store) claimOf(ctx context.Context, q ClaimDeliveryQuery, held []fleet.EndpointID) ([]ClaimedDelivery, error) {
	busy, err := json.Marshal(busyArgs(q.Busy))
	if err != nil {
		return nil, fmt.Errorf("claim deliveries: %w", err)
	}
	due := `SELECT d.n, live.org, row_number() OVER (PARTITION BY d.endpoint_id ORDER BY d.due_at, d.n) AS k, live.room
		FROM live JOIN deliveries d ON d.endpoint_id = live.id AND` + dueDelivery
	if s.Postgres() { // reads no more of a long backlog than it may take
		due = `SELECT d.n, live.org, row_number() OVER (PARTITION BY live.id ORDER BY d.due_at, d.n) AS k, live.room
			FROM live CROSS JOIN LATERAL (SELECT d.n, d.due_at FROM deliveries d WHERE d.endpoint_id = live.id AND` + dueDelivery + `
				ORDER BY d.due_at, d.n LIMIT greatest(live.room, 0)) d`
	}
	var out []ClaimedDelivery
	err = s.query(ctx, func(row dbutil.Scannable) error {
		d, err := scanDelivery(row)
		out = append(out, ClaimedDelivery{Delivery: d, Owner: q.Owner})
		return err
	}, `WITH live AS (SELECT e.id, coalesce(e.org_id, '') AS org, `+endpointRoom+` AS room
			FROM endpoints e WHERE e.id IN (SELECT id FROM @ids:$1@ AS held) AND`+liveEndpoint+`),
		due AS (`+due+`),
		turns AS (SELECT due.n, row_number() OVER (PARTITION BY due.org ORDER BY due.k, due.n) + coalesce(busy.epoch, 0) AS turn
			FROM due LEFT JOIN @rows:$2(id text, epoch bigint)@ AS busy ON busy.id = due.org WHERE due.k <= due.room)
		UPDATE deliveries AS d SET locked_until = @now@ + CAST($3 AS BIGINT), locked_by = $4, attempts = attempts + 1
		WHERE d.n IN (SELECT n FROM turns WHERE CAST($5 AS BIGINT) = 0 OR turn <= CAST($5 AS BIGINT) ORDER BY turn, n LIMIT $6)
			AND d.status = 'pending' AND d.due_at <= @now@ AND d.locked_until <= @now@
		RETURNING `+deliveryReturning,
		idList(held), string(busy), q.LockFor.Milliseconds(), q.Owner, q.Share, q.Limit)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b ClaimedDelivery) int { return int(a.N - b.N) })
	return out, nil
}

// busyArgs writes counts per organization as the rows of a table of (id, epoch).
func busyArgs(busy map[fleet.OrgID]int) []termArg {
	out := make([]termArg, 0, len(busy))
	for org, n := range busy {
		out = append(out, termArg{fleet.SessionID(org), int64(n)})
	}
	return out
}

// fillClaimed adds endpoints, live secrets and events to what was claimed.
func (s *Store) fillClaimed(ctx context.Context, claimed []ClaimedDelivery) error {
	endpointIDs := make([]fleet.EndpointID, len(claimed))
	eventIDs := make([]fleet.EventID, len(claimed))
	for i, c := range claimed {
		endpointIDs[i], eventIDs[i] = c.EndpointID, c.EventID
	}
	endpoints := map[fleet.EndpointID]fleet.Endpoint{}
	err := s.query(ctx, func(row dbutil.Scannable) error {
		e, err := s.scanWithSecrets(row)
		endpoints[e.ID] = e
		return err
	}, `SELECT e.secret, CASE WHEN e.previous_secret_ends > @now@ THEN e.previous_secret END, e.previous_secret_ends, `+endpointColumns+`
		FROM endpoints e WHERE e.id IN (SELECT id FROM @ids:$1@ AS wanted)`, idList(endpointIDs))
	if err != nil {
		return fmt.Errorf("endpoints: %w", err)
	}
	events := map[fleet.EventID]*fleet.Event{}
	err = s.query(ctx, func(row dbutil.Scannable) error {
		ev, err := scanEvent(row)
		events[ev.ID] = &ev
		return err
	}, eventSelect+`WHERE id IN (SELECT id FROM @ids:$1@ AS wanted)`, idList(eventIDs))
	if err != nil {
		return fmt.Errorf("events: %w", err)
	}
	for i := range claimed {
		claimed[i].Endpoint, claimed[i].Event = endpoints[claimed[i].EndpointID], events[claimed[i].EventID]
	}
	return nil
}

func (s *Store) scanWithSecrets(row dbutil.Scannable) (fleet.Endpoint, error) {
	var e fleet.Endpoint
	var events string
	var current, previous []byte
	var ends time.Time
	if err := row.Scan(append([]any{&current, &previous, at{&ends}}, endpointFields(&e, &events)...)...); err != nil {
		return e, err
	}
	e.Events = splitKinds(events)
	for _, secret := range []struct {
		sealed []byte
		ends   time.Time
	}{{current, time.Time{}}, {previous, ends}} {
		raw, err := s.ring.Open(string(e.ID), secret.sealed)
		if err != nil {
			return e, fmt.Errorf("secret of endpoint %s: %w", e.ID, err)
		}
		if raw != nil {
			e.Secrets = append(e.Secrets, fleet.Secret{Value: secretText(raw), ExpiresAt: secret.ends})
		}
	}
	return e, nil
}

// DeliveryResult is what a try brought.
type DeliveryResult struct {
	Status int    // HTTP status, 0 if none came
	Error  string // for people; "" for a success
}

// FinishDelivery ends a claimed delivery as done, or as dead when dead is set, and lets the next one
// of its stream go. false: the lock was lost to somebody else meanwhile, and nothing was changed.
func (s *Store) FinishDelivery(ctx context.Context, c ClaimedDelivery, r DeliveryResult, dead bool) (bool, error) {
	status := fleet.DeliveryDone
	if dead {
		status = fleet.DeliveryDead
	}
	return s.settleDelivery(ctx, "finish", c, func(ctx context.Context) (int64, error) {
		return s.exec(ctx, `UPDATE deliveries SET status = $4, finished_at = @now@, locked_until = 0, locked_by = '', last_status = $5, last_error = $6
			WHERE n = $1 AND locked_by = $2 AND attempts = $3 AND status = 'pending'`,
			c.N, c.Owner, c.Attempts, status, r.Status, clean(r.Error))
	})
}

// Retry says how a delivery is to be tried again.
type Retry struct {
	Pause      time.Duration
	AsideAfter time.Duration
	Uncounted  bool // the try is not one of the delivery's: its endpoint takes nothing at all
}

// RetryDelivery gives a claimed delivery back to be tried again after a pause. When it has been
// failing for AsideAfter while its endpoint took others, it also steps aside: it becomes unordered and
// the next one of its stream goes on. false: the lock was lost meanwhile, and nothing was changed.
func (s *Store) RetryDelivery(ctx context.Context, c ClaimedDelivery, r DeliveryResult, again Retry) (bool, error) {
	tries := c.Attempts
	if again.Uncounted {
		tries--
	}
	return s.settleDelivery(ctx, "retry", c, func(ctx context.Context) (int64, error) {
		return s.exec(ctx, `UPDATE deliveries SET due_at = @now@ + CAST($4 AS BIGINT), locked_until = 0, locked_by = '', last_status = $5, last_error = $6,
				attempts = $8,
				first_fail = CASE WHEN first_fail = 0 THEN @now@ ELSE first_fail END,
				ordered = CASE WHEN ordered AND first_fail > 0 AND first_fail <= @now@ - CAST($7 AS BIGINT)
					AND EXISTS (SELECT 1 FROM endpoints e WHERE e.id = deliveries.endpoint_id AND e.last_success_at > deliveries.first_fail)
					THEN FALSE ELSE ordered END
			WHERE n = $1 AND locked_by = $2 AND attempts = $3 AND status = 'pending'`,
			c.N, c.Owner, c.Attempts, again.Pause.Milliseconds(), r.Status, clean(r.Error), again.AsideAfter.Milliseconds(), tries)
	})
}

// ReleaseDelivery gives a claimed delivery back untried: it is due again at once, and the claim does
// not count as a try.
func (s *Store) ReleaseDelivery(ctx context.Context, c ClaimedDelivery) (bool, error) {
	return s.settleDelivery(ctx, "release", c, func(ctx context.Context) (int64, error) {
		return s.exec(ctx, `UPDATE deliveries SET locked_until = 0, locked_by = '', attempts = attempts - 1
			WHERE n = $1 AND locked_by = $2 AND attempts = $3 AND status = 'pending'`, c.N, c.Owner, c.Attempts)
	})
}

func (s *Store) settleDelivery(ctx context.Context, verb string, c ClaimedDelivery, update func(ctx context.Context) (int64, error)) (bool, error) {
	var rows int64
	err := s.InTx(ctx, func(ctx context.Context) (err error) {
		if err := s.holdStream(ctx, c.Stream); err != nil {
			return err
		}
		if rows, err = update(ctx); err != nil || rows == 0 {
			return err
		}
		return s.promote(ctx, c.EndpointID, c.Stream)
	})
	if err != nil {
		return false, fmt.Errorf("%s delivery %s: %w", verb, c.ID, err)
	}
	return rows == 1, nil
}

func (s *Store) holdStream(ctx context.Context, stream string) error {
	var one int
	return notFound(s.row(ctx, `SELECT 1 FROM streams WHERE id = $1 @update@`, stream).Scan(&one))
}

// promote makes the first pending ordered delivery of a held stream ready.
func (s *Store) promote(ctx context.Context, endpoint fleet.EndpointID, stream string) error {
	_, err := s.exec(ctx, `UPDATE deliveries SET ready = TRUE WHERE NOT ready
		AND n = (SELECT min(p.n) FROM deliveries p WHERE p.endpoint_id = $1 AND p.stream = $2 AND p.status = 'pending' AND p.ordered)`, endpoint, stream)
	return err
}

// promoteAll does so for every stream of an endpoint: retention may have taken the first ones while
// the endpoint was disabled.
func (s *Store) promoteAll(ctx context.Context, endpoint fleet.EndpointID) error {
	_, err := column[string](ctx, s, `SELECT id FROM streams WHERE id IN (SELECT stream FROM deliveries WHERE endpoint_id = $1 AND status = 'pending' AND ordered) ORDER BY id @update@`, endpoint)
	if err != nil {
		return err
	}
	_, err = s.exec(ctx, `UPDATE deliveries SET ready = TRUE WHERE NOT ready AND n IN (SELECT min(p.n) FROM deliveries p
		WHERE p.endpoint_id = $1 AND p.status = 'pending' AND p.ordered GROUP BY p.stream)`, endpoint)
	return err
}

// DeliveryQuery selects deliveries for a list, newest first.
type DeliveryQuery struct {
	Org      fleet.OrgID // "" = operator: all
	Endpoint fleet.EndpointID
	Event    fleet.EventID
	Status   fleet.DeliveryStatus
	Before   int64 // cursor: N of the last one seen; 0 = from the newest
	Limit    int
}

// ListDeliveries lists deliveries. An organization sees those of its endpoints of organization scope.
func (s *Store) ListDeliveries(ctx context.Context, q DeliveryQuery) ([]fleet.Delivery, error) {
	out := []fleet.Delivery{}
	err := s.query(ctx, func(row dbutil.Scannable) error {
		d, err := scanDelivery(row)
		out = append(out, d)
		return err
	}, `SELECT `+deliveryColumns+` FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id
		WHERE (CAST($1 AS TEXT) = '' OR d.org_id = CAST($1 AS TEXT) AND e.org_id = CAST($1 AS TEXT) AND e.scope = 'organization')
		AND (CAST($2 AS TEXT) = '' OR d.endpoint_id = CAST($2 AS TEXT)) AND (CAST($3 AS TEXT) = '' OR d.event_id = CAST($3 AS TEXT))
		AND (CAST($4 AS TEXT) = '' OR d.status = CAST($4 AS TEXT)) AND (CAST($5 AS BIGINT) = 0 OR d.n < CAST($5 AS BIGINT))
		ORDER BY d.n DESC LIMIT $6`, q.Org, q.Endpoint, q.Event, q.Status, q.Before, q.Limit)
	if err != nil {
		return nil, fmt.Errorf("list deliveries: %w", err)
	}
	return out, nil
}

// ReplayDelivery owes the same event to the same endpoint once more: a new delivery with the same
// event id, outside the order of its stream. org "" is the operator. A disabled endpoint and an event
// that retention took are *fleet.CodedError around fleet.ErrConflict.
func (s *Store) ReplayDelivery(ctx context.Context, org fleet.OrgID, id fleet.DeliveryID) (fleet.Delivery, error) {
	var d fleet.Delivery
	err := s.InTx(ctx, func(ctx context.Context) error {
		var disabled, deleted, kept bool
		err := s.row(ctx, `SELECT e.disabled, e.deleted_at > 0, EXISTS (SELECT 1 FROM events v WHERE v.id = d.event_id), `+deliveryColumns+`
			FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id
			WHERE d.id = $2 AND (CAST($1 AS TEXT) = '' OR d.org_id = CAST($1 AS TEXT) AND e.org_id = CAST($1 AS TEXT) AND e.scope = 'organization')`, org, id).
			Scan(append([]any{&disabled, &deleted, &kept}, deliveryFields(&d)...)...)
		switch {
		case err != nil:
			return notFound(err)
		case disabled || deleted:
			return &fleet.CodedError{Code: "ENDPOINT_DISABLED", Detail: "the endpoint of this delivery is disabled or deleted: enable it first", Err: fleet.ErrConflict}
		case !kept:
			return &fleet.CodedError{Code: "EVENT_GONE", Detail: "the event is older than the retention time", Err: fleet.ErrConflict}
		}
		d, err = scanDelivery(s.row(ctx, `INSERT INTO deliveries (id, endpoint_id, event_id, org_id, stream, ordered, ready, replay, status, due_at, created_at)
			VALUES ($1, $2, $3, $4, $5, FALSE, TRUE, TRUE, 'pending', @now@, @now@) RETURNING `+deliveryReturning,
			fleet.NewDeliveryID(), d.EndpointID, d.EventID, d.OrgID, d.Stream))
		if err != nil {
			return unavailable(err)
		}
		return s.Audit(ctx, "delivery.replay", d.OrgID, string(d.ID), map[string]any{"eventId": d.EventID, "endpointId": d.EndpointID})
	})
	if err != nil {
		return fleet.Delivery{}, fmt.Errorf("replay delivery %q: %w", id, err)
	}
	return d, nil
}

// PurgeDeliveries deletes up to limit deliveries made before a time that are done or dead, or pending
// for an endpoint that is disabled or deleted. It returns how many are gone; fewer than limit means
// that none is left. What an endpoint is owed goes only while the endpoint is held: enabling it
// relies on the first ones of its streams.
func (s *Store) PurgeDeliveries(ctx context.Context, before time.Time, limit int) (int, error) {
	var n int64
	err := s.InTx(ctx, func(ctx context.Context) error {
		idle, err := column[fleet.EndpointID](ctx, s, `SELECT e.id FROM endpoints e WHERE (e.disabled OR e.deleted_at > 0)
			AND (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.status = 'pending' LIMIT 1) IS NOT NULL ORDER BY e.id`+s.holdEndpoint(""))
		if err != nil {
			return err
		}
		n, err = s.exec(ctx, `DELETE FROM deliveries WHERE n IN (SELECT d.n FROM deliveries d WHERE d.created_at < $1
			AND (d.status <> 'pending' OR d.endpoint_id IN (SELECT id FROM @ids:$3@ AS idle))
			ORDER BY d.created_at LIMIT $2)`, ms(before), limit, idList(idle))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("purge deliveries: %w", err)
	}
	return int(n), nil
}
