package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/alexedwards/argon2id"
	"github.com/maypok86/otter/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
)

const (
	// cacheFor is how long a checked key is trusted without another look at its row.
	cacheFor = 10 * time.Second
	// lookEvery is how often it is asked whether keys have changed, for the case that a nudge was lost.
	lookEvery = time.Second
	// provenFor is how long a process remembers that a key and a stored hash belong together. That can't
	// become wrong, so it only bounds what is kept of keys that nobody presents any more.
	provenFor = time.Hour
	// cacheSize bounds the memory; keys beyond it are only checked more often.
	cacheSize = 10_000
	// checkTimeout bounds one look at the row. It is not the caller's deadline: several requests
	// with one key wait for the same look.
	checkTimeout = 5 * time.Second
)

// cost of the argon2id hash. The secret has 256 random bits, so no dictionary helps; this only has
// to make a stolen table with a stolen LOOKUP_KEY unattractive, and is paid once per key and process.
var cost = &argon2id.Params{Memory: 19 * 1024, Iterations: 2, Parallelism: 1, SaltLength: 16, KeyLength: 32}

// ErrUnauthorized says that there is no live key. Malformed, unknown and revoked keys are not told apart.
var ErrUnauthorized = errors.New("no valid API key")

// Options of New.
type Options struct {
	Store      *store.Store
	Bus        bus.Bus
	Lookup     *seal.Lookup
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil = no metrics
}

// Auth checks keys. It is safe for use by several goroutines.
type Auth struct {
	store   *store.Store
	bus     bus.Bus
	lookup  *seal.Lookup
	log     *slog.Logger
	metrics *metrics
	cache   *otter.Cache[cacheKey, fleet.Principal]
	proven  *otter.Cache[[sha256.Size]byte, string] // the argon2id hash that a key was proven against, by the key's hash
	changes atomic.Uint64                           // counts revocations heard of
}

// cacheKey holds a hash, so that a memory dump of the cache holds no keys. A change of keys moves on
// to new entries, so that a look which began before the change can't be trusted after it.
type cacheKey struct {
	hash    [sha256.Size]byte
	changes uint64
}

// New returns an Auth with an empty cache.
func New(o Options) *Auth {
	return &Auth{
		store: o.Store, bus: o.Bus, lookup: o.Lookup, log: o.Log, metrics: newMetrics(o.Registerer),
		cache: otter.Must(&otter.Options[cacheKey, fleet.Principal]{
			MaximumSize:      cacheSize,
			ExpiryCalculator: otter.ExpiryWriting[cacheKey, fleet.Principal](cacheFor),
			Logger:           &otter.NoopLogger{},
		}),
		proven: otter.Must(&otter.Options[[sha256.Size]byte, string]{
			MaximumSize:      cacheSize,
			ExpiryCalculator: otter.ExpiryWriting[[sha256.Size]byte, string](provenFor),
			Logger:           &otter.NoopLogger{},
		}),
	}
}

// Run drops what is cached whenever keys change, until the context ends: at once when a nudge tells of it, and else within a second.
func (a *Auth) Run(ctx context.Context) error {
	stop, err := a.bus.Subscribe(ctx, func(string, string) { a.forget() }, bus.TopicKeys)
	if err != nil {
		return fmt.Errorf("listen for key changes: %w", err)
	}
	defer stop()
	defer a.cache.StopAllGoroutines()
	defer a.proven.StopAllGoroutines()
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for known := int64(-1); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		lctx, cancel := context.WithTimeout(ctx, lookEvery)
		n, err := a.store.KeyChanges(lctx)
		cancel()
		if err != nil { // then keys are checked when they were not for 10 s
			a.log.DebugContext(ctx, "could not ask whether keys have changed", slog.Any("err", err))
			continue
		}
		if n != known {
			a.forget()
		}
		known = n
	}
}

// forget makes every cached answer unreachable.
func (a *Auth) forget() { a.changes.Add(1) }

// Authenticate says who a presented key speaks for. The error is ErrUnauthorized, or wraps
// fleet.ErrUnavailable when the database can't be asked.
func (a *Auth) Authenticate(ctx context.Context, presented string) (fleet.Principal, error) {
	secret, err := Parse(presented)
	if err != nil && a.lookup.Rotated() {
		secret, err = parseForeign(presented)
	}
	if err != nil {
		a.metrics.requests.WithLabelValues("malformed").Inc()
		return fleet.Principal{}, ErrUnauthorized
	}
	key := cacheKey{sha256.Sum256([]byte(secret.text)), a.changes.Load()}
	p, err := a.cache.Get(ctx, key, otter.LoaderFunc[cacheKey, fleet.Principal](
		func(ctx context.Context, _ cacheKey) (fleet.Principal, error) {
			// The first caller may hang up while others wait for this very look.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
			defer cancel()
			return a.check(ctx, secret, key.hash)
		}))
	switch {
	case err == nil:
		a.metrics.requests.WithLabelValues("ok").Inc()
		return p, nil
	case errors.Is(err, ErrUnauthorized):
		a.metrics.requests.WithLabelValues("refused").Inc()
		return fleet.Principal{}, ErrUnauthorized
	default:
		a.metrics.requests.WithLabelValues("error").Inc()
		return fleet.Principal{}, fmt.Errorf("authenticate: %w", err)
	}
}

// check looks the key up and proves it. Only a key whose HMAC is in the table costs an argon2id, and
// only the first time: with a hundred organizations, once per 10 s was a tenth of a processor.
func (a *Auth) check(ctx context.Context, secret Secret, hash [sha256.Size]byte) (fleet.Principal, error) {
	keys, err := a.store.KeysByLookup(ctx, a.lookup.Hashes(secret.text))
	if err != nil {
		return fleet.Principal{}, err
	}
	for _, k := range keys {
		if !k.RevokedAt.IsZero() || k.Admin != secret.Admin() {
			continue
		}
		ok, err := a.prove(secret, hash, k.VerifyHash)
		if err != nil {
			return fleet.Principal{}, fmt.Errorf("verify key %s: %w", k.ID, err)
		}
		if ok {
			p := fleet.Principal{KeyID: k.ID, Admin: k.Admin, OrgID: k.OrgID, ProjectID: k.ProjectID}
			if !p.Admin {
				e, _, err := a.store.Entitlements(ctx, p.ProjectID)
				if err != nil {
					return fleet.Principal{}, err
				}
				p.Requests = e.Requests
			}
			return p, nil
		}
	}
	return fleet.Principal{}, ErrUnauthorized
}
