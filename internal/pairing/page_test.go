package pairing

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/httpapi"
	"github.com/wafleet/wafleet/internal/store"
)

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// verbs are what a text has filled in; the languages must agree on them.
var verbs = regexp.MustCompile(`%[a-z]`)

func TestEveryTextOfThePageIsInEveryLanguage(t *testing.T) {
	keys := map[string]bool{}
	for _, v := range everyView(frame{locale: &locale{Lang: "xx"}, Title: "Organization A", Home: "/pair/x"}) { // a text that is missing shows its key
		for _, m := range regexp.MustCompile(`(?:>|aria-label=")([a-z][a-z0-9_.]*) ?["<]`).FindAllStringSubmatch(string(v.page()), -1) {
			keys[m[1]] = true
		}
	}
	for _, end := range []fleet.InviteEnd{
		fleet.InviteEndExpired, fleet.InviteEndNumberInUse, fleet.InviteEndPasskey, fleet.InviteEndFailed,
		fleet.InviteEndInterrupted, fleet.InviteEndUnavailable, fleet.InviteEndCancelled,
	} {
		keys["over."+string(end)], keys["why."+string(end)] = true, true
	}
	for _, state := range []string{"connected", "reconnecting", "waiting", "linking", "unlinked", "restricted", "attention", "stopped"} {
		keys["state."+state] = true
	}
	for _, why := range []string{"unknown", "expired", "revoked", "over", "limited", "broken", "forged"} {
		keys["fail."+why], keys["fail."+why+".do"] = true, true
	}
	keys["why.other_number"], keys["problem.phone_invalid"], keys["language"] = true, true, true
	keys["notice.invite_full"], keys["notice.session_stopped"] = true, true
	for _, l := range locales {
		for key := range keys {
			if l.text[key] == "" {
				t.Errorf("%s lacks %q", l.Lang, key)
			}
			if diff := cmp.Diff(verbs.FindAllString(locales[0].text[key], -1), verbs.FindAllString(l.text[key], -1)); diff != "" {
				t.Errorf("%s fills %q in differently:\n%s", l.Lang, key, diff)
			}
		}
		for key := range l.text {
			if !keys[key] {
				t.Errorf("%s has %q, which nothing shows", l.Lang, key)
			}
		}
	}
}

// everyView is one of each thing that a visitor can see, but for the reasons of an end.
func everyView(f frame) []view {
	all := []view{
		&codeView{frame: f, ID: "org-a-01"}, &codeView{frame: f, ID: "org-a-01", Last4: "0001"},
		&linkView{frame: f, Max: 2}, &linkView{frame: f, Full: true, Rows: []row{{ID: "org-a-01", State: "waiting", Open: true}, {ID: "org-a-02", State: "unlinked", Last4: "0001", Relink: true}}},
	}
	for _, at := range []phase{phaseStarting, phaseScan, phaseType, phaseLinking, phaseDone, phaseUnlinked, phaseGone, phaseOver} {
		for _, last4 := range []string{"", "0001"} {
			v := numberView{frame: f, ID: "org-a-01", Phase: at, Last4: last4, Code: []string{"ABCD", "EFGH"}, Left: true, Relink: last4 != ""}
			if at == phaseOver {
				v.Why = string(fleet.InviteEndExpired)
			}
			all = append(all, &v)
		}
	}
	return all
}

func TestNothingThatSomebodyWroteIsReadAsMarkup(t *testing.T) {
	const hostile = `<script>"'&`
	f := frame{locale: locales[0], Title: hostile, Home: "/pair/" + hostile, Here: "/pair/" + hostile, Locales: locales}
	views := append(everyView(f), &failView{f, hostile}, &linkView{frame: f, Notice: hostile, Rows: []row{{ID: hostile, State: hostile, Last4: hostile, Open: true}}},
		&codeView{frame: f, ID: hostile, Problem: hostile}, &numberView{frame: f, ID: hostile, Phase: phaseType, Code: []string{hostile, hostile}})
	for _, v := range views {
		page := string(v.page())
		if n := strings.Count(page, "<script"); n != 3 || strings.Contains(page, `'&"`) || strings.Contains(page, `"'`) {
			t.Errorf("%T has %d scripts, want the three of its frame, and no quote of the title:\n%s", v, n, page)
		}
	}
}

func TestLanguageFollowsTheBrowserAndTheSwitch(t *testing.T) {
	g := plainGateway(t)
	link, _ := g.mint(2)
	for accept, want := range map[string]string{
		"": "en", "de-DE,de;q=0.9": "en", "pt-BR,pt;q=0.9,en;q=0.8": "pt", "pt-PT": "pt", "es-419,es;q=0.9": "es", "fr;q=0.9,es;q=0.5": "es", "nonsense;;;q": "en",
	} {
		a := g.get(link, header("Accept-Language", accept))
		if !strings.Contains(a.body, `<html lang="`+want+`">`) || !strings.Contains(a.body, localeNamed(want).text["link.title"]) {
			t.Errorf("Accept-Language %q gives another language than %s:\n%.200s", accept, want, a.body)
		}
	}
	a := g.get(link+"?lang=pt", header("Accept-Language", "es"))
	cookie := a.header.Get("Set-Cookie")
	if !strings.Contains(a.body, `<html lang="pt">`) || !strings.Contains(cookie, "pair_lang=pt") || !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Lax") {
		t.Errorf("the switch: cookie %q, page %.100s", cookie, a.body)
	}
	a = g.get(link, header("Accept-Language", "es"), header("Cookie", "pair_lang=pt"))
	if !strings.Contains(a.body, `<html lang="pt">`) || a.header.Get("Set-Cookie") != "" {
		t.Errorf("the choice is not kept: %.100s", a.body)
	}
	if a := g.get(link+"?lang=xx", header("Cookie", "pair_lang=xx")); !strings.Contains(a.body, `<html lang="en">`) || a.header.Get("Set-Cookie") != "" {
		t.Errorf("an unknown language: %.100s", a.body)
	}
}

func TestALinkThatOpensNothingSaysWhyAndNothingElse(t *testing.T) {
	g := plainGateway(t)
	link, invite := g.mint(2)
	expired, old := g.mint(2)
	g.press(expired+"/numbers", url.Values{})
	g.sql(`UPDATE pairing_invites SET expires_at = 1 WHERE id = $1`, old.ID)
	if _, _, err := g.st.RevokeInvite(t.Context(), invite.ID); err != nil {
		t.Fatal(err)
	}
	before := g.slugs()
	for _, tt := range []struct {
		name, link string
		status     int
		says       string
	}{
		{"unknown", "/pair/wfp_" + strings.Repeat("a", 58), 404, "This link does not work"},
		{"malformed", "/pair/x", 404, "This link does not work"},
		{"an API key", "/pair/wfk_" + strings.Repeat("a", 58), 404, "This link does not work"},
		{"revoked", link, 410, "This link was withdrawn"},
		{"expired", expired, 410, "This link has expired"},
	} {
		for _, req := range [][2]string{
			{"GET", ""},
			{"GET", "/events"},
			{"POST", "/numbers"},
			{"GET", "/numbers/org-a-01"},
			{"GET", "/numbers/org-a-01/events"},
			{"GET", "/numbers/org-a-01/code"},
			{"POST", "/numbers/org-a-01/code"},
			{"POST", "/numbers/org-a-01/qr"},
			{"POST", "/numbers/org-a-01/cancel"},
		} {
			a := g.do(req[0], tt.link+req[1], nil)
			if a.status != tt.status || !strings.Contains(a.body, tt.says) {
				t.Errorf("%s: %s %s = %d, want %d %q", tt.name, req[0], req[1], a.status, tt.status, tt.says)
			}
			if strings.Contains(a.body, "Organization A") || strings.Contains(a.body, "org-a") && !strings.Contains(tt.link+req[1], "org-a") {
				t.Errorf("%s: %s %s tells whose link it was:\n%s", tt.name, req[0], req[1], a.body)
			}
		}
	}
	if diff := cmp.Diff(before, g.slugs()); diff != "" {
		t.Errorf("sessions changed (-before +after):\n%s", diff)
	}
}

func TestAPageShowsOnlyWhatItsHolderOwns(t *testing.T) {
	g := plainGateway(t)
	link, mine := g.mint(5)
	other, _ := g.mint(5)
	g.press(other+"/numbers", url.Values{})
	if _, err := g.st.CreateSession(t.Context(), store.NewSession{Org: "org-a", Label: "by hand"}); err != nil {
		t.Fatal(err)
	}
	g.press(link+"/numbers", url.Values{})
	g.sql(`UPDATE sessions SET paired_at = 1, device_jid = 'x', phone = $2 WHERE invite_id = $1`, mine.ID, number1)
	page := g.get(link).body
	if !strings.Contains(page, "org-a-03") || !strings.Contains(page, "0001") {
		t.Errorf("the page lacks its own number:\n%s", page)
	}
	for _, foreign := range []string{"org-a-01", "org-a-02", "by hand", number1, "90000"} {
		if strings.Contains(page, foreign) {
			t.Errorf("the page shows %q", foreign)
		}
	}
	for _, path := range []string{"/numbers/org-a-01", "/numbers/org-a-02", "/numbers/nothing", "/numbers/%25", "/numbers/org-a-01/code"} {
		if a := g.get(link + path); a.status != 303 || a.location() != link {
			t.Errorf("GET %s = %d to %q, want back to the list", path, a.status, a.location())
		}
	}
	// Somebody else's label is text, whatever it says.
	if _, err := g.st.UpdateOrganization(t.Context(), "org-a", store.OrgChange{Label: new(`<script>alert("x")</script>`)}); err != nil {
		t.Fatal(err)
	}
	if page := g.get(link).body; strings.Contains(page, "<script>") || !strings.Contains(page, "&lt;script&gt;") {
		t.Error("the label is not escaped")
	}
}

func TestPressesBeyondTheLastSlotAreToldSo(t *testing.T) {
	g := plainGateway(t)
	link, invite := g.mint(1)
	var wg sync.WaitGroup
	var mu sync.Mutex
	answers := map[int]int{}
	for range 6 {
		wg.Go(func() {
			a := g.do("POST", link+"/numbers", url.Values{})
			mu.Lock()
			defer mu.Unlock()
			answers[a.status]++
			if a.status == http.StatusConflict && !strings.Contains(a.body, "Someone else has just taken the last place") {
				t.Errorf("the loser reads:\n%s", a.body)
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(map[int]int{303: 1, 409: 5}, answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]fleet.SessionSlug{"org-a-01"}, g.slugs()); diff != "" || g.used(invite.ID) != 1 {
		t.Errorf("sessions (-want +got):\n%s", diff)
	}
	page := g.get(link).body
	if strings.Contains(page, "Add a number") || !strings.Contains(page, "This link has no place left") {
		t.Errorf("a full link still offers another:\n%s", page)
	}
	// Nobody took the attempt up; the next press finds its slot free.
	g.sql(`UPDATE commands SET expires_at = 1`)
	if page := g.get(link).body; !strings.Contains(page, "Add a number") {
		t.Errorf("a slot that is due back is not offered:\n%s", page)
	}
	if to := g.press(link+"/numbers", url.Values{}); to != link+"/numbers/org-a-02" {
		t.Errorf("the press leads to %s", to)
	}
	if why := g.get(link + "/numbers/org-a-01").body; !strings.Contains(why, "did not answer in time") {
		t.Errorf("the attempt that nobody took up says:\n%s", why)
	}
}

func TestNothingChangesWithoutAFormOfOurOwn(t *testing.T) {
	g := plainGateway(t)
	link, _ := g.mint(2)
	g.press(link+"/numbers", url.Values{})
	before := g.slugs()
	for _, path := range []string{link, link + "/numbers/org-a-01", link + "/numbers/org-a-01/code"} {
		g.get(path)
	}
	for name, edit := range map[string][]func(*http.Request){
		"another site":             {header("Sec-Fetch-Site", "cross-site")},
		"another site of our host": {header("Sec-Fetch-Site", "same-site")},
		"another origin":           {header("Origin", "https://evil.example.com")},
		"a sandboxed frame":        {header("Origin", "null")},
	} {
		a := g.do("POST", link+"/numbers", url.Values{}, edit...)
		if a.status != http.StatusForbidden || !strings.Contains(a.body, "somewhere else") {
			t.Errorf("a form of %s = %d", name, a.status)
		}
	}
	if diff := cmp.Diff(before, g.slugs()); diff != "" {
		t.Errorf("sessions changed (-before +after):\n%s", diff)
	}
	for name, edit := range map[string][]func(*http.Request){
		"our page":                      {header("Sec-Fetch-Site", "same-origin"), header("Origin", "http://wa.example.com")},
		"our page, before Sec-Fetch":    {header("Origin", "http://wa.example.com")},
		"a proxy that changes the host": {header("Origin", "http://wa.example.com"), func(r *http.Request) { r.Host = "10.0.0.7:8080" }},
	} {
		if a := g.do("POST", link+"/numbers/org-a-01/qr", url.Values{}, edit...); a.status != http.StatusSeeOther {
			t.Errorf("a form of %s = %d", name, a.status)
		}
	}
	if a := g.do("POST", link+"/numbers", url.Values{"phone": {strings.Repeat("1", 10_000)}}); a.status >= 500 {
		t.Errorf("a large form = %d", a.status)
	}
}

func TestPagesAreClosedToEverythingButTheirOwnFiles(t *testing.T) {
	g := plainGateway(t)
	link, _ := g.mint(2)
	token := strings.TrimPrefix(link, pathPrefix)
	number := g.press(link+"/numbers", url.Values{})
	for _, path := range []string{link, number, number + "/code", "/pair/x", "/pair/x/y/z"} {
		a := g.get(path)
		for name, want := range map[string]string{
			"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "X-Robots-Tag": "noindex, nofollow, noarchive",
			"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
		} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s: %s = %q, want %q", path, name, got, want)
			}
		}
		if regexp.MustCompile(`(?i)\sstyle=|\son[a-z]+=|<style|<script[^>]*>[^<]|https?://[^w]`).MatchString(a.body) {
			t.Errorf("%s has inline code, or reaches out:\n%s", path, a.body)
		}
		for _, m := range regexp.MustCompile(`(?:src|href)="([^"?]+)`).FindAllStringSubmatch(a.body, -1) {
			if got := g.get(m[1]); got.status != http.StatusOK || !strings.HasPrefix(m[1], "/") {
				if got.status != http.StatusNotFound || !strings.HasPrefix(path, "/pair/x") { // its language links lead to itself
					t.Errorf("%s needs %s, which is %d", path, m[1], got.status)
				}
			} else if strings.HasPrefix(m[1], assetPrefix) && !strings.Contains(got.header.Get("Cache-Control"), "immutable") {
				t.Errorf("%s may not be kept", m[1])
			}
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
		t.Errorf("policy = %q", policy)
	}
	if log := g.log.String(); strings.Contains(log, token[4:30]) || !strings.Contains(log, "route=/pair/{token}/numbers/{id}") {
		t.Error("the log holds the token, or not the route")
	}
	if a := g.get(assetPrefix + "000000000000/pair.css"); a.status != http.StatusNotFound {
		t.Errorf("a file under another hash = %d, want 404", a.status)
	}
}

func TestAPageBehindAProxyKeepsItsPathAndHost(t *testing.T) {
	g := plainGateway(t)
	link, _ := g.mint(2)
	p := New(Options{Store: g.st, Auth: g.auth, Bus: g.bus, Log: g.page.log, PublicURL: "https://example.com/wa/"})
	api := httpapi.BehindProxies([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, p)
	do := func(method, path string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		r.RemoteAddr = "10.0.0.2:1234"
		for _, e := range edit {
			e(r)
		}
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		return w
	}
	w := do("GET", link+"?lang=es")
	if body := w.Body.String(); !strings.Contains(body, `action="/wa`+link+`/numbers"`) || !strings.Contains(body, `href="/wa`+assetPrefix) || !strings.Contains(body, `sse-connect="/wa`+link) {
		t.Errorf("links leave the path out:\n%s", body)
	}
	if c := w.Header().Get("Set-Cookie"); !strings.Contains(c, "Path=/wa/pair/") || !strings.Contains(c, "Secure") {
		t.Errorf("cookie = %q", c)
	}
	w = do("POST", link+"/numbers", header("Origin", "https://example.com"))
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/wa"+link+"/numbers/org-a-01" {
		t.Errorf("POST = %d to %q", w.Code, w.Header().Get("Location"))
	}
	// Each visitor behind the proxy has a limit of its own.
	status := map[string]map[int]int{}
	for _, visitor := range []string{"192.0.2.1", "192.0.2.2"} {
		status[visitor] = map[int]int{}
		for range 130 {
			status[visitor][do("GET", "/pair/x", header("X-Forwarded-For", visitor)).Code]++
		}
	}
	for visitor, codes := range status {
		if codes[404] < 110 || codes[429] == 0 {
			t.Errorf("%s: answers %v, want its own limit", visitor, codes)
		}
	}
}

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(10*time.Second, 2)
		l.size = 3
		take := func(key string, want bool, wantWait time.Duration) {
			t.Helper()
			if wait, ok := l.take(key); ok != want || wait != wantWait {
				t.Errorf("take(%s) = %v, %v, want %v, %v", key, wait, ok, wantWait, want)
			}
		}
		take("a", true, 0)
		take("a", true, 0)
		take("a", false, 10*time.Second)
		take("b", true, 0)
		time.Sleep(4 * time.Second)
		take("a", false, 6*time.Second)
		time.Sleep(6 * time.Second)
		take("a", true, 0)
		take("a", false, 10*time.Second)
		take("c", true, 0)
		time.Sleep(10 * time.Second) // b and c are full again, a is not
		take("d", true, 0)
		if got := slices.Sorted(maps.Keys(l.buckets)); !slices.Equal(got, []string{"a", "d"}) {
			t.Errorf("buckets kept = %v, want a and d", got)
		}
	})
}

func TestPhoneDigits(t *testing.T) {
	for typed, want := range map[string]string{
		"+55 11 9 0000-0001": "5511900000001", "5511900000001": "5511900000001", "0055 (11) 9.0000.0001": "5511900000001", " +5511900000001 ": "5511900000001",
		"": "", "11": "", "+55 11 9 0000 0001 x": "", "011900000001": "", "55+11900000001": "", "٥٥١١٩٠٠٠٠٠٠٠١": "", "12345678901234567890": "",
	} {
		got, ok := phoneDigits(typed)
		if ok != (want != "") || ok && got != want {
			t.Errorf("phoneDigits(%q) = %q, %v, want %q", typed, got, ok, want)
		}
	}
}

func TestPhaseOf(t *testing.T) {
	now := time.Now()
	base := func(edit ...func(*fleet.InviteNumber)) *fleet.InviteNumber {
		n := &fleet.InviteNumber{Session: fleet.Session{
			Desired: fleet.DesiredRunning, Observed: fleet.ObservedPairing, Epoch: 2, LeaseEpoch: 2, LeaseLive: true,
			Pairing: fleet.Pairing{Method: fleet.PairQR, QR: "x", ExpiresAt: now.Add(time.Second)},
		}, Pair: fleet.Command{Status: fleet.CommandDone, ExpiresAt: now.Add(time.Minute)}}
		for _, e := range edit {
			e(n)
		}
		return n
	}
	linked := func(n *fleet.InviteNumber) { n.DeviceJID = "x" }
	paired := func(n *fleet.InviteNumber) { n.PairedAt = now }
	revoked := func(n *fleet.InviteNumber) { n.RevokedAt = now }
	for _, tt := range []struct {
		name string
		n    *fleet.InviteNumber
		want phase
	}{
		{"a QR", base(), phaseScan},
		{"a code", base(func(n *fleet.InviteNumber) { n.Pairing.Method = fleet.PairCode }), phaseType},
		{"a QR whose time is over", base(func(n *fleet.InviteNumber) { n.Pairing.ExpiresAt = now }), phaseStarting},
		{"a QR of an owner that is gone", base(func(n *fleet.InviteNumber) { n.LeaseLive = false }), phaseStarting},
		{"a QR of the owner before", base(func(n *fleet.InviteNumber) { n.LeaseEpoch = 3 }), phaseStarting},
		{"another pairing was asked for", base(func(n *fleet.InviteNumber) { n.Pair.Status = fleet.CommandPending }), phaseStarting},
		{"it was asked for too long ago", base(func(n *fleet.InviteNumber) { n.Pair.Status = fleet.CommandPending; n.Over = true }), phaseOver},
		{"it gave its slot back", base(func(n *fleet.InviteNumber) { n.End = fleet.InviteEndExpired }), phaseOver},
		{"the operator deleted it", base(func(n *fleet.InviteNumber) { n.Desired = fleet.DesiredDeleted }), phaseGone},
		{"the phone said yes", base(linked), phaseLinking},
		{"the first login was complete", base(linked, paired), phaseDone},
		{"it was unlinked", base(linked, paired, revoked, func(n *fleet.InviteNumber) { n.Observed = fleet.ObservedLoggedOut }), phaseUnlinked},
		{"it is being linked again", base(linked, paired, revoked), phaseScan},
	} {
		if got := phaseOf(tt.n, now); got != tt.want {
			t.Errorf("%s: phaseOf = %s, want %s", tt.name, got, tt.want)
		}
	}
}
