package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"text/tabwriter"
	"time"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/config"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wastore"
)

type migrateCmd struct {
	config.Storage
	config.Logging
	LeaseTTL time.Duration `setting:"LEASE_TTL" default:"30s" group:"worker" help:"Bounds how long a frozen process may hold a lock: set for the database role."`
}

// Run brings the schema to this version. It needs no key: a migration opens no body.
func (c *migrateCmd) Run(ctx context.Context, p *program) error {
	log := newLogger(p.stderr, &c.Logging)
	if sqlitePath(&c.Storage) != "" && c.DatabaseURL == "" {
		if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
			return fmt.Errorf("make DATA_DIR: %w", err)
		}
	}
	if path := sqlitePath(&c.Storage); path != "" {
		release, err := lockDatabase(path)
		if err != nil {
			return err
		}
		defer release()
	}
	ring, err := seal.NewRing(seal.NewKey())
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, store.Options{URL: databaseURL(&c.Storage), PoolMax: 2, Ring: ring})
	if err != nil {
		return err
	}
	defer s.Close() //nolint:errcheck // everything is committed
	if err := s.Migrate(ctx, wastore.Upgrade(s)); err != nil {
		return err
	}
	if err := s.EnsureTimeouts(ctx, c.LeaseTTL); err != nil {
		log.WarnContext(ctx, "database timeouts could not be set; let the owner of the role do it", slog.Any("err", err))
	}
	_, err = fmt.Fprintln(p.stdout, "The database is at this version.")
	return err
}

// keyTool is what the commands for keys take. They may run beside "up".
type keyTool struct {
	config.Storage
	config.Keys
	config.Logging
}

// with opens the database and runs fn.
func (c *keyTool) with(ctx context.Context, p *program, fn func(ctx context.Context, s *store.Store, a *auth.Auth) error) error {
	if _, err := folderKeys(&c.Storage, &c.Keys, false); err != nil {
		return err
	}
	ring, lookup, err := keys(&c.Keys)
	if err != nil {
		return err
	}
	if path := sqlitePath(&c.Storage); path != "" { // opening would make an empty one
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("there is no database yet: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	s, err := store.Open(ctx, store.Options{URL: databaseURL(&c.Storage), PoolMax: 2, Ring: ring})
	if err != nil {
		return err
	}
	defer s.Close() //nolint:errcheck // everything is committed
	if err := s.CheckVersion(ctx); err != nil {
		return err
	}
	log := newLogger(p.stderr, &c.Logging)
	b, err := toolBus(&c.Storage, log) //nolint:contextcheck // it lives until Close
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // nothing waits in it
	return fn(store.AsActor(ctx, "wafleet keys"), s, auth.New(auth.Options{Store: s, Bus: b, Lookup: lookup, Log: log}))
}

// toolBus is the bus of a short command. Without Redis nobody hears it, and other processes notice when
// they look.
func toolBus(c *config.Storage, log *slog.Logger) (bus.Bus, error) {
	if c.RedisURL == "" {
		return bus.NewLocal(), nil
	}
	b, err := bus.NewRedis(bus.RedisOptions{URL: c.RedisURL.Reveal(), Prefix: c.RedisPrefix, Log: log})
	if err != nil {
		return nil, fmt.Errorf("REDIS_URL: %w", err)
	}
	return b, nil
}

type keysCreateCmd struct {
	keyTool
	Admin bool   `xor:"who" help:"A key for operators: every organization."`
	Org   string `xor:"who" placeholder:"ORG" help:"A key for one organization."`
	Label string `placeholder:"TEXT" help:"What the key is for."`
}

// Run makes a key.
func (c *keysCreateCmd) Run(ctx context.Context, p *program) error {
	return c.with(ctx, p, func(ctx context.Context, s *store.Store, a *auth.Auth) error {
		_, lookup, err := keys(&c.Keys)
		if err != nil {
			return err
		}
		if err := s.SettleLookup(ctx, lookup); err != nil {
			return err
		}
		secret, key, err := a.Create(ctx, auth.NewKey{Admin: c.Admin, Org: fleet.OrgID(c.Org), Label: c.Label})
		if errors.Is(err, fleet.ErrNotFound) {
			return fmt.Errorf("there is no organization %q: make it with POST /api/admin/organizations", c.Org)
		}
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(p.stderr, "%s, shown this once:\n", key.ID)
		_, err = fmt.Fprintln(p.stdout, secret.Reveal())
		return err
	})
}

type keysListCmd struct {
	keyTool
	Org string `placeholder:"ORG" help:"Only keys of this organization."`
}

// Run lists keys.
func (c *keysListCmd) Run(ctx context.Context, p *program) error {
	return c.with(ctx, p, func(ctx context.Context, s *store.Store, _ *auth.Auth) error {
		const page = 500
		w := tabwriter.NewWriter(p.stdout, 0, 8, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, "ID\tFOR\tSTATE\tBEGINS WITH\tMADE\tLABEL")
		q := store.KeyQuery{Org: fleet.OrgID(c.Org), Limit: page}
		for {
			list, err := s.ListKeys(ctx, q)
			if err != nil {
				return err
			}
			for _, k := range list {
				who, state := string(k.OrgID), "live"
				if k.Admin {
					who = "(admin)"
				}
				if !k.RevokedAt.IsZero() {
					state = "revoked"
				}
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, who, state, k.Prefix, k.CreatedAt.Format(time.RFC3339), k.Label)
			}
			if len(list) < page {
				return w.Flush()
			}
			q.After = list[len(list)-1].ID
		}
	})
}

type keysRevokeCmd struct {
	keyTool
	ID string `arg:"" placeholder:"KEY_ID" help:"The key's id, key_…, as keys list shows it."`
}

// Run ends a key.
func (c *keysRevokeCmd) Run(ctx context.Context, p *program) error {
	return c.with(ctx, p, func(ctx context.Context, _ *store.Store, a *auth.Auth) error {
		k, err := a.Revoke(ctx, fleet.KeyID(c.ID))
		if errors.Is(err, fleet.ErrNotFound) {
			return fmt.Errorf("there is no key %q: see wafleet keys list", c.ID)
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.stdout, "%s is revoked; running processes refuse it within 10 seconds.\n", k.ID)
		return err
	})
}
