package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/wafleet/wafleet/internal/config"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wa"
)

type upCmd struct{ server }

// Run runs everything in one process.
func (c *upCmd) Run(ctx context.Context, p *program) error {
	if c.Simulator != "" {
		if _, err := c.address(); err != nil {
			return err
		}
	}
	return p.up(ctx, &c.Config, upOptions{command: "up", mode: c.mode(), simulation: &c.simulation})
}

// upOptions of program.up.
type upOptions struct {
	command    string
	mode       store.Mode
	simulation *simulation
	network    *wa.Network     // takes the place of simulation
	ready      func(u running) // called when every port is open and before anything is claimed
	quiet      bool            // print nothing: the caller does
	anyPort    bool            // where a port is taken, a free one does
}

// running is what is known of a started "up".
type running struct {
	URL      string // of the API
	OpsURL   string
	AdminKey string // of the first start, read from the data folder later; "" if it is not there any more
	Fresh    bool   // AdminKey was made now
}

// up runs every part in one process, until ctx ends.
func (p *program) up(ctx context.Context, cfg *config.Config, o upOptions) error {
	pr, err := p.open(ctx, cfg, openOptions{command: o.command, embedded: true, mode: o.mode, anyPort: o.anyPort})
	if err != nil {
		return err
	}
	defer pr.close()
	if err := pr.addOps(ctx); err != nil {
		return err
	}
	api, err := pr.addAPI(ctx)
	if err != nil {
		return err
	}
	network := o.network
	if network == nil {
		if network, err = o.simulation.network(ctx, pr.log); err != nil {
			return err
		}
	}
	pr.addWorker(network, !pr.store.Postgres())
	pr.addWebhooks()
	pr.addScheduler()

	u := running{URL: api.url(), OpsURL: pr.ops.url()}
	if u.AdminKey, u.Fresh, err = pr.adminKey(ctx); err != nil {
		return err
	}
	if !o.quiet {
		p.banner(pr, u)
	}
	if o.ready != nil {
		o.ready(u)
	}
	return pr.run(ctx)
}

// adminKey makes the first admin key of a database and keeps it in the data folder, or reads it from
// there.
func (pr *process) adminKey(ctx context.Context) (key string, fresh bool, err error) {
	path := adminKeyPath(&pr.cfg.Storage)
	secret, err := pr.newAdminKey(ctx)
	if err != nil {
		return "", false, err
	}
	if secret == "" {
		raw, err := os.ReadFile(path) //nolint:gosec // the operator names the folder
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", false, fmt.Errorf("read admin key: %w", err)
		}
		return strings.TrimSpace(string(raw)), false, nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", false, fmt.Errorf("replace admin key: %w", err)
	}
	if err := writeSecret(path, secret); err != nil {
		return "", false, fmt.Errorf("keep admin key: %w", err)
	}
	return secret, true, nil
}

// banner prints what a person needs now.
func (p *program) banner(pr *process, u running) {
	where := "PostgreSQL"
	if path := sqlitePath(&pr.cfg.Storage); path != "" {
		where = "SQLite in " + path
	}
	_, _ = fmt.Fprintf(p.stdout, "wafleet %s is up, on %s\n", pr.versions.Version, where)
	public := u.URL
	if pr.cfg.PublicURL != "" {
		public = strings.TrimSuffix(pr.cfg.PublicURL, "/")
	}
	_, _ = fmt.Fprintf(p.stdout, "  API    %s/api/v1   documentation %s/docs\n", public, public)
	_, _ = fmt.Fprintf(p.stdout, "  ops    %s/readyz   %s/metrics\n", u.OpsURL, u.OpsURL)
	switch path := adminKeyPath(&pr.cfg.Storage); {
	case u.Fresh:
		_, _ = fmt.Fprintf(p.stdout, "  admin key, shown this once: %s\n  It is kept in %s, which only you can read.\n", u.AdminKey, path)
	case u.AdminKey != "":
		_, _ = fmt.Fprintf(p.stdout, "  The admin key of the first start is kept in %s.\n", path)
	}
}

// newAdminKey makes an admin key if the database has no live one; "" if it has.
func (pr *process) newAdminKey(ctx context.Context) (string, error) {
	secret, err := pr.auth.Bootstrap(ctx)
	if err != nil {
		return "", fmt.Errorf("make the first admin key: %w", err)
	}
	return secret.Reveal(), nil
}
