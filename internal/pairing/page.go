package pairing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// Where the page is.
const (
	pathPrefix  = "/pair/"
	assetPrefix = "/assets/pair/"
)

// Options of New.
type Options struct {
	Store *store.Store
	Auth  *auth.Auth
	Bus   bus.Bus
	Log   *slog.Logger
	// PublicURL is where visitors reach the API: its path goes before every link, its host is ours when
	// a browser says which page a form was on.
	PublicURL string
}

// Page serves the pages of pairing links.
type Page struct {
	store    *store.Store
	auth     *auth.Auth
	bus      bus.Bus
	log      *slog.Logger
	base     string // path of PublicURL, without a slash at its end
	secure   bool   // visitors come over https
	handler  http.Handler
	watchers watchers

	visits  *limiter // requests, by address
	presses *limiter // pairings asked for, by link
	codes   *limiter // codes for a phone, by link: each makes a phone ring
	streams *slots   // live pages, by link
}

// New builds the page. It panics if PublicURL is not a URL, which the settings have checked.
func New(o Options) *Page {
	p := &Page{
		store: o.Store, auth: o.Auth, bus: o.Bus, log: o.Log,
		watchers: watchers{set: map[*watcher]struct{}{}},
		visits:   newLimiter(500*time.Millisecond, 120),
		presses:  newLimiter(20*time.Second, 12),
		codes:    newLimiter(time.Minute, 5),
		streams:  newSlots(20),
	}
	public, err := url.Parse(o.PublicURL)
	if err != nil {
		panic(fmt.Errorf("PUBLIC_URL: %w", err))
	}
	p.base, p.secure = strings.TrimSuffix(public.Path, "/"), public.Scheme == "https"

	// Forms are sent from our own pages only: browsers say so by Sec-Fetch-Site or Origin.
	forgery := http.NewCrossOriginProtection()
	if public.Host != "" {
		if err := forgery.AddTrustedOrigin(public.Scheme + "://" + public.Host); err != nil {
			panic(fmt.Errorf("PUBLIC_URL: %w", err))
		}
	}
	forgery.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.failed(w, r, http.StatusForbidden, "forged", 0)
	}))
	mux := http.NewServeMux()
	for pattern, handle := range map[string]func(http.ResponseWriter, *http.Request, fleet.Invite){
		"GET /pair/{token}":                      p.link,
		"GET /pair/{token}/events":               p.linkEvents,
		"POST /pair/{token}/numbers":             p.add,
		"GET /pair/{token}/numbers/{id}":         p.number,
		"GET /pair/{token}/numbers/{id}/events":  p.numberEvents,
		"GET /pair/{token}/numbers/{id}/code":    p.codeForm,
		"POST /pair/{token}/numbers/{id}/code":   p.askCode,
		"POST /pair/{token}/numbers/{id}/qr":     p.askQR,
		"POST /pair/{token}/numbers/{id}/cancel": p.cancel,
	} {
		mux.Handle(pattern, p.opened(handle))
	}
	mux.HandleFunc("GET "+assetPrefix+"{hash}/{file}", serveAsset)
	mux.HandleFunc(pathPrefix, func(w http.ResponseWriter, r *http.Request) { p.failed(w, r, http.StatusNotFound, "unknown", 0) })
	p.handler = p.guarded(forgery.Handler(mux))
	return p
}

// Paths are the prefixes of what the page serves.
func Paths() []string { return []string{pathPrefix, assetPrefix} }

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.handler.ServeHTTP(w, r) }

// policy lets a page load what is ours and send forms to us, and nothing else. There is no inline code
// and no inline style.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// maxForm bounds a form's body; the only field is a phone number.
const maxForm = 4 << 10

func (p *Page) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Robots-Tag", "noindex, nofollow, noarchive")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=()")
		h.Set("Cache-Control", "no-store")
		if !strings.HasPrefix(r.URL.Path, assetPrefix) {
			if wait, ok := p.visits.take(visitor(r)); !ok {
				p.failed(w, r, http.StatusTooManyRequests, "limited", wait)
				return
			}
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		next.ServeHTTP(w, r)
	})
}

// opened lets requests past whose token opens a live link.
func (p *Page) opened(next func(http.ResponseWriter, *http.Request, fleet.Invite)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i, err := p.auth.Invite(r.Context(), r.PathValue("token"))
		switch {
		case errors.Is(err, auth.ErrUnauthorized):
			p.failed(w, r, http.StatusNotFound, "unknown", 0)
		case err != nil:
			p.broken(w, r, err)
		case i.State() != fleet.InviteLive:
			p.failed(w, r, http.StatusGone, string(i.State()), 0)
		default:
			next(w, r.WithContext(store.AsActor(r.Context(), string(i.ID))), i)
		}
	})
}

// frame is what every page has around it.
type frame struct {
	*locale
	Title   string // the organization's label
	Home    string // path of the link's page, "" where there is none
	Here    string // path of this page
	Assets  string
	Locales []*locale
	Reload  int // seconds after which a page without scripts loads itself again; 0 = not
}

// T is a text in the page's language.
func (f frame) T(key string, args ...any) string { return f.say(key, args...) }

func (p *Page) frame(r *http.Request) frame {
	f := frame{locale: localeOf(r), Assets: p.base + assetPrefix + assetHash, Locales: locales, Here: p.base + r.URL.EscapedPath()}
	if r.Method == http.MethodPost { // another language is asked for by GET, which the path of a form has not
		f.Here = p.base + pathPrefix + r.PathValue("token")
	}
	return f
}

// framed is the frame of a page behind a token.
func (p *Page) framed(r *http.Request, i fleet.Invite) (frame, error) {
	f := p.frame(r)
	o, err := p.store.GetOrganization(r.Context(), i.OrgID)
	if err != nil {
		return f, err
	}
	f.Title, f.Home = o.Label, p.base+pathPrefix+r.PathValue("token")
	return f, nil
}

// show writes a whole page.
func (p *Page) show(w http.ResponseWriter, r *http.Request, status int, v view) {
	p.keepLanguage(w, r)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Vary", "Accept-Language, Cookie")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, string(v.page())) //nolint:gosec // fill made it safe; and the visitor may be gone
}

// failView is a page that says why there is nothing to see.
type failView struct {
	frame
	Why string // key of its texts: "expired" has fail.expired and fail.expired.do
}

func (p *Page) failed(w http.ResponseWriter, r *http.Request, status int, why string, wait time.Duration) {
	if wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
	p.show(w, r, status, &failView{p.frame(r), why})
}

// broken answers an error that is not the visitor's.
func (p *Page) broken(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		return // nobody is there to read it
	}
	status := http.StatusInternalServerError
	if errors.Is(err, fleet.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		status = http.StatusServiceUnavailable
	}
	p.log.WarnContext(r.Context(), "pairing page failed", slog.Int("status", status), slog.Any("err", err))
	p.failed(w, r, status, "broken", 5*time.Second)
}

// linkOf reads what the page of a link shows, and which sessions to follow for it.
func (p *Page) linkOf(r *http.Request, i fleet.Invite) (*linkView, []fleet.SessionID, error) {
	f, err := p.framed(r, i)
	if err != nil {
		return nil, nil, err
	}
	numbers, err := p.store.InviteNumbers(r.Context(), i.ID)
	if err != nil {
		return nil, nil, err
	}
	v := &linkView{frame: f, Used: i.Used, Max: i.MaxSessions}
	var ids []fleet.SessionID
	now := time.Now()
	for n := range slices.Values(numbers) {
		if at := phaseOf(&n, now); at == phaseOver || at == phaseGone {
			if n.End == "" && n.Over {
				v.Used-- // due back: the next press takes it
			}
			continue
		}
		v.Rows = append(v.Rows, rowOf(&n, now))
		ids = append(ids, n.ID)
	}
	v.Full = v.Used >= v.Max
	if v.busy() {
		v.Reload = 5
	}
	return v, ids, nil
}

func (p *Page) link(w http.ResponseWriter, r *http.Request, i fleet.Invite) {
	v, _, err := p.linkOf(r, i)
	if err != nil {
		p.broken(w, r, err)
		return
	}
	p.show(w, r, http.StatusOK, v)
}

// numberOf reads what the page of one number shows. fleet.ErrNotFound: this link has no such number.
func (p *Page) numberOf(r *http.Request, i fleet.Invite) (*numberView, fleet.SessionID, error) {
	f, err := p.framed(r, i)
	if err != nil {
		return nil, "", err
	}
	n, err := p.store.InviteNumber(r.Context(), i.ID, fleet.SessionSlug(r.PathValue("id")))
	if err != nil {
		return nil, "", err
	}
	v := &numberView{frame: f, ID: n.Slug, Phase: phaseOf(&n, time.Now()), Left: i.Used < i.MaxSessions || n.Over, Relink: n.Ever()}
	if n.Ever() {
		v.Last4 = last4(n.Phone)
	}
	switch v.Phase {
	case phaseScan:
		v.Expires = n.Pairing.ExpiresAt
		if v.QR, err = picture(n.Pairing.QR); err != nil {
			return nil, "", err
		}
	case phaseType:
		v.Expires = n.Pairing.ExpiresAt
		v.Code = strings.SplitN(n.Pairing.Code, "-", 2)
	case phaseOver:
		v.Why = string(n.Why())
	case phaseUnlinked:
		v.Why = whyNotAgain(&n)
	case phaseStarting, phaseLinking, phaseDone, phaseGone: // there is nothing more to say
	}
	if !v.Phase.final() {
		v.Reload = 3
	}
	return v, n.ID, nil
}

// whyNotAgain says how the last try to link a number again ended; "" = nobody tried.
func whyNotAgain(n *fleet.InviteNumber) string {
	switch n.Reason {
	case fleet.ReasonNumberInUse:
		return "other_number"
	case fleet.ReasonPasskey:
		return string(fleet.InviteEndPasskey)
	case "pair_expired":
		return string(fleet.InviteEndExpired)
	case "pair_failed":
		return string(fleet.InviteEndFailed)
	}
	if n.Pair.Status == fleet.CommandPending || n.Pair.Status == fleet.CommandExpired {
		return string(fleet.InviteEndUnavailable)
	}
	return ""
}

func (p *Page) number(w http.ResponseWriter, r *http.Request, i fleet.Invite) {
	v, _, err := p.numberOf(r, i)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		p.toLink(w, r)
	case err != nil:
		p.broken(w, r, err)
	default:
		p.show(w, r, http.StatusOK, v)
	}
}

// toLink leads back to the page of the link.
func (p *Page) toLink(w http.ResponseWriter, r *http.Request) {
	http.Redirect(w, r, p.base+pathPrefix+r.PathValue("token"), http.StatusSeeOther) //nolint:gosec // behind our own path, and the token was checked
}

func (p *Page) toNumber(w http.ResponseWriter, r *http.Request, id fleet.SessionSlug) {
	http.Redirect(w, r, p.base+pathPrefix+r.PathValue("token")+"/numbers/"+string(id), http.StatusSeeOther) //nolint:gosec // as above
}
