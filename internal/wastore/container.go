package wastore

import (
	"context"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.mau.fi/util/dbutil"
	"go.mau.fi/whatsmeow/store/sqlstore"
	waLog "go.mau.fi/whatsmeow/util/log"

	"github.com/wafleet/wafleet/internal/plant"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
)

// Options of New.
type Options struct {
	Store      *store.Store
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: not exported
	// Merged is told, after the commit, of contacts that became one because WhatsApp told whose LID one of them is;
	// nil: nobody needs to know.
	Merged func(ctx context.Context, met []store.Met)
}

// Container is whatsmeow's tables as one process sees them. It holds what is true for every
// session; what belongs to one session is behind its Fence.
type Container struct {
	store    *store.Store
	db       *dbutil.Database
	ring     *seal.Ring
	raw      *sqlstore.Container
	lids     *lidMap
	log      *slog.Logger
	metrics  *metrics
	merged   func(ctx context.Context, met []store.Met)
	postgres bool
}

// New returns the process's container, which from now on writes the keys of the store's claims. It touches no table.
func New(o Options) *Container {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	db := o.Store.DB()
	c := &Container{
		store: o.Store, db: db, ring: o.Store.Ring(),
		// Its log lines carry phone numbers, and say nothing that an error does not.
		raw:      sqlstore.NewWithWrappedDB(db, waLog.Noop),
		lids:     newLIDMap(o.Store),
		log:      o.Log,
		metrics:  newMetrics(o.Registerer),
		merged:   o.Merged,
		postgres: o.Store.Postgres(),
	}
	o.Store.WriteKeysWith(c.writeKeys)
	return c
}

// query is one statement in both dialects. It is written for PostgreSQL; SQLite needs neither the
// row locks nor the casts that make PostgreSQL's parameters typed.
type query struct{ postgres, sqlite string }

var forSQLite = strings.NewReplacer("::text", "", "::bytea", "", "::bigint", "", " FOR SHARE", "")

func newQuery(text string) query { return query{text, forSQLite.Replace(text)} }

// fenceRow is the row a fenced statement must find: $1 session, $2 owner, $3 epoch. FOR SHARE
// conflicts with the claim's update and FOR KEY SHARE would not: a claim waits for this write or
// this write finds nothing.
var fenceRow = func() string {
	if plant.NoFence {
		return `SELECT 1 WHERE $1::text<>'' AND $2::text<>'' AND $3::bigint>0`
	}
	return `SELECT 1 FROM leases WHERE session_id=$1 AND owner=$2 AND epoch=$3 FOR SHARE`
}()

// fencedQuery puts the fence in front of a statement that selects from f.
func fencedQuery(text string) query { return newQuery(`WITH f AS (` + fenceRow + `) ` + text) }

func (c *Container) text(q query) string {
	if c.postgres {
		return q.postgres
	}
	return q.sqlite
}
