package poolimport

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// Encodings says what forms of keys and hashes are read, for people.
const Encodings = "the lookup key: 64 hex digits, base64 of 32 bytes, or 32 raw bytes; a key's lookup hash: HMAC-SHA256 of the whole key under it, as hex, base64 or Binary; its verify hash: an argon2id PHC string ($argon2id$v=19$…)"

// Organization is a pool that becomes an organization.
type Organization struct {
	fleet.Organization
	Pool     string // its id there
	Exists   bool
	Sessions []Session // in the pool's order
	Keys     []Key
}

// Session is a session that comes along.
type Session struct {
	Slug     fleet.SessionSlug
	From     string // its id there
	Label    string
	Phone    string // digits; "" = not known
	Paused   bool
	Budget   fleet.Budget
	WarmupAt time.Time // zero = its number is warmed up
	Exists   bool
}

// Key is an API key that comes along.
type Key struct {
	fleet.APIKey
	Exists bool
}

// Plan is what an import would do.
type Plan struct {
	Counts        map[string]int // documents by collection
	Organizations []Organization
	Problems      []string // what can't be taken over, and why
	Notes         []string // what is not as it was
}

// planner builds a plan.
type planner struct {
	Plan
	store    *store.Store
	sessions map[string]*document // by id there
	owner    map[string]string    // session → pool that has it
	slugs    map[string]string    // slug here → id there
	numbers  map[string]bool      // phone numbers in the plan
}

// MakePlan compares an export with the database. It changes nothing.
func MakePlan(ctx context.Context, s *store.Store, e *Export) (*Plan, error) {
	p := &planner{store: s, sessions: map[string]*document{}, owner: map[string]string{}, slugs: map[string]string{}, numbers: map[string]bool{}}
	p.Counts = map[string]int{}
	for _, name := range collections {
		p.Counts[name] = len(e.docs[name])
	}
	for i := range e.docs["sessions"] {
		d := &e.docs["sessions"][i]
		if id := d.text("sessionId", "id", "_id"); id == "" {
			p.problem(d, "has no sessionId")
		} else {
			p.sessions[id] = d
		}
	}
	for i := range e.docs["session_pools"] {
		if err := p.pool(ctx, &e.docs["session_pools"][i]); err != nil {
			return nil, err
		}
	}
	for id, d := range p.sessions {
		if p.owner[id] == "" {
			p.problem(d, "session %q is in no pool: an organization is needed for it, so make it by hand if it is still wanted", id)
		}
	}
	for i := range e.docs["api_keys"] {
		if err := p.key(ctx, &e.docs["api_keys"][i]); err != nil {
			return nil, err
		}
	}
	slices.Sort(p.Problems)
	return &p.Plan, nil
}

func (p *planner) problem(d *document, format string, args ...any) {
	p.Problems = append(p.Problems, d.where()+": "+fmt.Sprintf(format, args...))
}

func (p *planner) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// slug is an id as it can be here.
func (p *planner) slug(kind, id string, limit int) (string, bool) {
	s := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r == '_' || r == ' ' || r == '.' || r == ':':
			return '-'
		default:
			return r
		}
	}, id), "-")
	for strings.Contains(s, "--") {
		s = strings.ReplaceAll(s, "--", "-")
	}
	if !fleet.ValidSlug(s) || len(s) > limit {
		return "", false
	}
	if s != id {
		p.note("%s %q is %q here", kind, id, s)
	}
	return s, true
}

func (p *planner) pool(ctx context.Context, d *document) error {
	pool := d.text("poolId", "orgId", "slug", "_id")
	if pool == "" {
		p.problem(d, "has no poolId")
		return nil
	}
	slug, ok := p.slug("pool", pool, fleet.MaxOrgID)
	if !ok {
		p.problem(d, "poolId %q can't be an organization's id: 1 to %d lower-case letters, digits and single hyphens", pool, fleet.MaxOrgID)
		return nil
	}
	if slices.ContainsFunc(p.Organizations, func(o Organization) bool { return o.ID == fleet.OrgID(slug) }) {
		p.problem(d, "another pool is organization %q already", slug)
		return nil
	}
	o := Organization{Pool: pool, Organization: fleet.Organization{ID: fleet.OrgID(slug), Label: d.text("label", "name"), Strategy: fleet.StrategyWeighted}}
	if o.Label == "" {
		o.Label = pool
	}
	switch strategy := fleet.Strategy(strings.ReplaceAll(d.text("strategy"), "_", "-")); {
	case strategy.Valid():
		o.Strategy = strategy
	case strategy != "":
		p.note("strategy %q of pool %q is not known here: weighted is used", strategy, pool)
	}
	switch _, err := p.store.GetOrganization(ctx, o.ID); {
	case err == nil:
		o.Exists = true
	case !errors.Is(err, fleet.ErrNotFound):
		return err
	}
	for _, id := range d.list("sessionIds", "sessions", "members") {
		s, ok, err := p.session(ctx, d, &o, id)
		if err != nil {
			return err
		}
		if ok {
			o.Sessions = append(o.Sessions, s)
		}
	}
	p.Organizations = append(p.Organizations, o)
	return nil
}

func (p *planner) session(ctx context.Context, pool *document, o *Organization, id string) (Session, bool, error) {
	d := p.sessions[id]
	switch {
	case id == "":
		p.problem(pool, "names a session without an id")
		return Session{}, false, nil
	case d == nil:
		p.problem(pool, "session %q is in the pool and not in sessions.json", id)
		return Session{}, false, nil
	case p.owner[id] == o.Pool:
		return Session{}, false, nil // named twice
	case p.owner[id] != "":
		p.problem(pool, "session %q is in pool %q already: a number belongs to one organization", id, p.owner[id])
		return Session{}, false, nil
	}
	p.owner[id] = o.Pool
	slug, ok := p.slug("session", id, 63)
	if !ok {
		p.problem(d, "sessionId %q can't be a session's id: 1 to 63 lower-case letters, digits and single hyphens", id)
		return Session{}, false, nil
	}
	if other := p.slugs[slug]; other != "" {
		p.problem(d, "sessions %q and %q would both be %q", other, id, slug)
		return Session{}, false, nil
	}
	p.slugs[slug] = id
	s := Session{
		Slug: fleet.SessionSlug(slug), From: id, Label: d.text("label", "name"), Phone: phone(d), Paused: d.flag("paused"),
		Budget: fleet.NoBudget, WarmupAt: d.time("warmupStartedAt"),
	}
	for name, part := range map[string]*int{"perMinute": &s.Budget.PerMinute, "perHour": &s.Budget.PerHour, "perDay": &s.Budget.PerDay} {
		if n, ok := d.number("budget", name); ok && n <= fleet.MaxBudget {
			*part = n
		}
	}
	have, taken, err := p.store.SlugOwner(ctx, s.Slug)
	switch {
	case err != nil:
		return s, false, err
	case taken && have != o.ID:
		p.problem(d, "session %q exists here already, in organization %q or deleted", slug, have)
		return s, false, nil
	}
	s.Exists = taken
	if s.Phone != "" && !taken {
		other, err := p.store.NumberOwner(ctx, s.Phone)
		if err != nil {
			return s, false, err
		}
		if p.numbers[s.Phone] || other != "" {
			p.note("session %q has the number of another session: it arrives without one", id)
			s.Phone = ""
		}
		p.numbers[s.Phone] = s.Phone != ""
	}
	return s, true, nil
}

// phone is a session's number in digits, wherever the old gateway put it.
func phone(d *document) string {
	text := d.text("phone", "phoneNumber", "number", "e164", "jid")
	if me, ok := d.fields["me"].(map[string]any); ok && text == "" {
		inner := document{fields: me}
		text = inner.text("id", "jid")
	}
	text, _, _ = strings.Cut(text, "@")
	text, _, _ = strings.Cut(text, ":") // the device
	text = strings.TrimPrefix(strings.NewReplacer(" ", "", "-", "", "(", "", ")", "").Replace(text), "+")
	if len(text) < 8 || len(text) > 15 || strings.Trim(text, "0123456789") != "" {
		return ""
	}
	return text
}

func (p *planner) key(ctx context.Context, d *document) error {
	name := d.text("label", "name", "keyId", "_id")
	switch {
	case d.flag("revoked", "disabled") || !d.time("revokedAt", "disabledAt").IsZero() || d.fields["active"] == false:
		p.note("key %q (%s) is revoked and stays behind", name, d.where())
		return nil
	case d.flag("admin", "isAdmin"):
		p.problem(d, "key %q is an administrator's: make one here with wafleet keys create --admin", name)
		return nil
	}
	pool := d.text("poolId", "orgId")
	i := slices.IndexFunc(p.Organizations, func(o Organization) bool { return o.Pool == pool })
	switch {
	case pool == "":
		p.problem(d, "key %q is bound to one session and to no pool: make a key for the organization and hand it over", name)
		return nil
	case i < 0:
		p.problem(d, "key %q belongs to pool %q, which is not in session_pools.json or can't be taken over", name, pool)
		return nil
	}
	lookup, ok := hash(d.fields["lookupHash"])
	if !ok {
		lookup, ok = hash(d.fields["lookup_hash"])
	}
	if !ok {
		p.problem(d, "key %q has no lookup hash that can be read", name)
		return nil
	}
	verify := d.text("verifyHash", "verify_hash", "hash")
	if !strings.HasPrefix(verify, "$argon2id$v=19$") {
		p.problem(d, "key %q has no argon2id hash", name)
		return nil
	}
	k := Key{APIKey: fleet.APIKey{
		OrgID: p.Organizations[i].ID, Label: d.text("label", "name"), Prefix: d.text("prefix", "keyPrefix"), LookupHash: lookup, VerifyHash: verify,
	}}
	if len(k.Prefix) > 12 {
		k.Prefix = k.Prefix[:12]
	}
	have, err := p.store.KeysByLookup(ctx, [][]byte{lookup})
	if err != nil {
		return err
	}
	k.Exists = len(have) > 0
	same := func(other Key) bool { return string(other.LookupHash) == string(lookup) }
	for _, o := range p.Organizations {
		if slices.ContainsFunc(o.Keys, same) {
			p.problem(d, "key %q is in the file twice", name)
			return nil
		}
	}
	p.Organizations[i].Keys = append(p.Organizations[i].Keys, k)
	return nil
}

// hash reads 32 bytes as hex, base64 or Binary.
func hash(v any) ([]byte, bool) {
	if b, ok := v.([]byte); ok {
		if len(b) == 32 {
			return b, true
		}
		v = string(b) // the text of one, stored as bytes
	}
	s, ok := v.(string)
	if !ok {
		return nil, false
	}
	for _, decode := range []func(string) ([]byte, error){
		hex.DecodeString, base64.StdEncoding.DecodeString, base64.RawStdEncoding.DecodeString, base64.URLEncoding.DecodeString, base64.RawURLEncoding.DecodeString,
	} {
		if b, err := decode(s); err == nil && len(b) == 32 {
			return b, true
		}
	}
	return nil, false
}
