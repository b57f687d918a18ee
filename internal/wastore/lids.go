package wastore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
	"go.mau.fi/util/dbutil"
	wmstore "go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/types"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// lidMap is which LID stands for which phone number: facts about WhatsApp, shared by all sessions
// and all processes. whatsmeow's own holds a mutex while it asks the database and remembers for ever
// that a mapping was missing, which another process may have written since.
type lidMap struct {
	db      *dbutil.Database
	store   *store.Store
	version atomic.Uint64 // goes up with every mapping written here
	toLID   cache[string, string]
	toPN    cache[string, string]
}

// lidsMax bounds the map's memory to some tens of megabytes.
const lidsMax = 200_000

func newLIDMap(s *store.Store) *lidMap {
	m := &lidMap{db: s.DB(), store: s}
	m.toLID.max, m.toPN.max = lidsMax, lidsMax
	return m
}

// lookup returns the other user part, "" if there is none. Misses are not remembered.
func (m *lidMap) lookup(ctx context.Context, c *cache[string, string], text, user string) (string, error) {
	if have, ok := c.get(user); ok {
		return have, nil
	}
	version := c.reading()
	var other string
	err := m.db.QueryRow(ctx, text, user).Scan(&other)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	c.fill(user, other, version)
	return other, nil
}

// other returns the LID of a phone number, or the phone number of a LID; empty if it is not known.
func (m *lidMap) other(ctx context.Context, jid types.JID) (types.JID, error) {
	c, text, server := &m.toLID, `SELECT lid FROM whatsmeow_lid_map WHERE pn=$1`, types.HiddenUserServer
	if jid.Server == types.HiddenUserServer {
		c, text, server = &m.toPN, `SELECT pn FROM whatsmeow_lid_map WHERE lid=$1`, types.DefaultUserServer
	}
	user, err := m.lookup(ctx, c, text, jid.User)
	if err != nil || user == "" {
		return types.JID{}, err
	}
	return types.JID{User: user, Device: jid.Device, Server: server}, nil
}

// many fills the cache for many phone numbers at once and returns what is known of them.
func (m *lidMap) many(ctx context.Context, pns []string) (map[string]string, error) {
	out := make(map[string]string, len(pns))
	var missing []string
	for _, pn := range pns {
		if lid, ok := m.toLID.get(pn); ok {
			out[pn] = lid
		} else if !slices.Contains(missing, pn) {
			missing = append(missing, pn)
		}
	}
	if len(missing) == 0 {
		return out, nil
	}
	list, err := json.Marshal(missing)
	if err != nil {
		return nil, err
	}
	text := `SELECT lid, pn FROM whatsmeow_lid_map WHERE pn IN (SELECT value FROM json_each($1))`
	if m.db.Dialect == dbutil.Postgres {
		text = `SELECT lid, pn FROM whatsmeow_lid_map WHERE pn IN (SELECT v FROM json_array_elements_text(($1::text)::json) AS t(v))`
	}
	version := m.toLID.reading()
	rows, err := m.db.Query(ctx, text, string(list))
	err = dbutil.NewRowIterWithError(rows, func(row dbutil.Scannable) (pair [2]string, err error) {
		err = row.Scan(&pair[0], &pair[1])
		return pair, err
	}, err).Iter(func(pair [2]string) (bool, error) {
		out[pair[1]] = pair[0]
		m.toLID.fill(pair[1], pair[0], version)
		return true, nil
	})
	return out, err
}

// put writes the mappings that are not stored like this already, in one order for all processes, and makes one
// contact of what organizations know by both names. It returns the contacts that go by another match key now.
func (m *lidMap) put(ctx context.Context, mappings []wmstore.LIDMapping) (met []store.Met, err error) {
	pns := make([]string, len(mappings))
	for i, p := range mappings {
		pns[i] = p.PN.User
	}
	known, err := m.many(ctx, pns)
	if err != nil {
		return nil, err
	}
	fresh := slices.DeleteFunc(slices.Clone(mappings), func(p wmstore.LIDMapping) bool { return known[p.PN.User] == p.LID.User })
	if len(fresh) == 0 {
		return nil, nil
	}
	slices.SortStableFunc(fresh, func(a, b wmstore.LIDMapping) int { return strings.Compare(a.LID.User, b.LID.User) })
	people := make([]fleet.Person, len(fresh))
	for i, p := range fresh {
		people[i] = fleet.Person{Phone: p.PN.User, LID: p.LID.User}
	}
	toLID, toPN := make([]uint64, len(fresh)), make([]uint64, len(fresh))
	for i, p := range fresh {
		toLID[i], toPN[i] = m.toLID.change(p.PN.User), m.toPN.change(p.LID.User)
	}
	// Two processes that learn of one person at once collide on a unique column or on a row lock.
	var moved int64
	for try := 0; ; try++ {
		moved = 0
		err = m.db.DoTxn(ctx, nil, func(ctx context.Context) (err error) {
			for _, p := range fresh {
				n, err := m.putOne(ctx, p.LID.User, p.PN.User)
				if err != nil {
					return err
				}
				moved += n
			}
			met, err = m.store.Learn(ctx, people)
			return err
		})
		if err == nil || try == 2 || !collided(err) {
			break
		}
	}
	if err != nil {
		return nil, store.TxError(ctx, err)
	}
	for i, p := range fresh {
		m.toLID.changed(p.PN.User, p.LID.User, toLID[i])
		m.toPN.changed(p.LID.User, p.PN.User, toPN[i])
	}
	if moved > 0 { // rare: a name went from one person to another, and old entries may still say so
		m.toLID.clear()
		m.toPN.clear()
	}
	m.version.Add(1)
	return met, nil
}

// putOne writes one mapping and returns how many others it replaced.
func (m *lidMap) putOne(ctx context.Context, lid, pn string) (int64, error) {
	moved, err := store.Exec(ctx, m.db, `DELETE FROM whatsmeow_lid_map WHERE (pn=$2 AND lid<>$1) OR (lid=$1 AND pn<>$2)`, lid, pn)
	if err != nil {
		return 0, err
	}
	_, err = m.db.Exec(ctx, `INSERT INTO whatsmeow_lid_map (lid, pn) VALUES ($1, $2) ON CONFLICT (lid) DO NOTHING`, lid, pn)
	return moved, err
}

func collided(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "23505" || pg.Code == "40P01" || pg.Code == "40001")
}

// lidStore is the map as one term's clients use it: its errors end what they happened under, and a
// term that is over uses it no more. Its writes carry no fence.
type lidStore struct{ f *Fence }

var _ wmstore.LIDStore = (*lidStore)(nil)

func (s *lidStore) PutLIDMapping(ctx context.Context, lid, pn types.JID) error {
	if lid.Server != types.HiddenUserServer || pn.Server != types.DefaultUserServer {
		return fmt.Errorf("put LID mapping: servers %q and %q are not those of a LID and a phone number", lid.Server, pn.Server)
	}
	return s.PutManyLIDMappings(ctx, []wmstore.LIDMapping{{LID: lid, PN: pn}})
}

func (s *lidStore) PutManyLIDMappings(ctx context.Context, mappings []wmstore.LIDMapping) error {
	valid := slices.DeleteFunc(slices.Clone(mappings), func(p wmstore.LIDMapping) bool {
		return p.LID.Server != types.HiddenUserServer || p.PN.Server != types.DefaultUserServer || p.LID.User == "" || p.PN.User == ""
	})
	if err := s.f.check(ctx); err != nil {
		return err
	}
	if len(valid) == 0 {
		return nil
	}
	met, err := s.f.c.lids.put(ctx, valid)
	if err != nil {
		return s.f.fail(ctx, err)
	}
	if len(met) > 0 && s.f.c.merged != nil {
		s.f.committed(ctx, func() { s.f.c.merged(context.WithoutCancel(ctx), met) })
	}
	return nil
}

func (s *lidStore) GetPNForLID(ctx context.Context, lid types.JID) (types.JID, error) {
	if lid.Server != types.HiddenUserServer {
		return types.JID{}, fmt.Errorf("phone number of a LID: server %q is not that of LIDs", lid.Server)
	}
	return read(ctx, s.f, func(ctx context.Context) (types.JID, error) { return s.f.c.lids.other(ctx, lid) })
}

func (s *lidStore) GetLIDForPN(ctx context.Context, pn types.JID) (types.JID, error) {
	if pn.Server != types.DefaultUserServer {
		return types.JID{}, fmt.Errorf("LID of a phone number: server %q is not that of phone numbers", pn.Server)
	}
	return read(ctx, s.f, func(ctx context.Context) (types.JID, error) { return s.f.c.lids.other(ctx, pn) })
}

func (s *lidStore) GetManyLIDsForPNs(ctx context.Context, pns []types.JID) (map[types.JID]types.JID, error) {
	return read(ctx, s.f, func(ctx context.Context) (map[types.JID]types.JID, error) {
		var users []string
		for _, pn := range pns {
			if pn.Server == types.DefaultUserServer {
				users = append(users, pn.User)
			}
		}
		lids, err := s.f.c.lids.many(ctx, users)
		if err != nil {
			return nil, err
		}
		out := make(map[types.JID]types.JID, len(pns))
		for _, pn := range pns {
			if lid := lids[pn.User]; lid != "" && pn.Server == types.DefaultUserServer {
				out[pn] = types.JID{User: lid, Device: pn.Device, Server: types.HiddenUserServer}
			}
		}
		return out, nil
	})
}
