package pairing

import (
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/qrdraw"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

// bubble runs fn with a whole gateway on fake time.
func bubble(t *testing.T, fn func(t *testing.T, g *gateway)) {
	t.Helper()
	dbURL := storetest.SQLiteURL(t)
	var progress atomic.Int64
	defer testkit.Watchdog(t, 40*time.Second, &progress)()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, storetest.Open(t, dbURL), "http://wa.example.com")
		quit := make(chan struct{})
		go func() {
			for tick := time.NewTicker(time.Second); ; {
				select {
				case <-tick.C:
					progress.Add(1)
				case <-quit:
					tick.Stop()
					return
				}
			}
		}()
		g.start()
		fn(t, g)
		close(quit)
		g.close()
		time.Sleep(10 * time.Minute) // close timers and handshakes of whatsmeow run out
	})
}

// row is the session as it is now.
func (g *gateway) row(slug fleet.SessionSlug) fleet.Session {
	g.t.Helper()
	var id fleet.SessionID
	if err := g.st.DB().QueryRow(g.t.Context(), `SELECT id FROM sessions WHERE slug = $1`, slug).Scan(&id); err != nil {
		g.t.Fatal(err)
	}
	v, err := g.st.SessionByID(g.t.Context(), id)
	if err != nil {
		g.t.Fatal(err)
	}
	return v
}

// await lets the clock run until something is so, at most a minute.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 600 {
		if ok() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("not seen within a minute: %s", what)
}

func drawn(t *testing.T, text string) string {
	t.Helper()
	code, err := qrdraw.Encode(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(code.SVG())
}

func TestPageFollowsEveryCodeToItsEndAndGivesTheSlotBack(t *testing.T) {
	bubble(t, func(t *testing.T, g *gateway) {
		link, invite := g.mint(1)
		number := g.press(link+"/numbers", url.Values{})
		if want := link + "/numbers/org-a-01"; number != want {
			t.Fatalf("the press leads to %s, want %s", number, want)
		}
		v := g.watch(number)
		defer v.close()
		seen := map[string]bool{}
		begun := time.Now()
		for g.row("org-a-01").Observed != fleet.ObservedPairingExpired {
			if s := g.row("org-a-01"); s.Pairing.QR != "" && !seen[s.Pairing.QR] {
				seen[s.Pairing.QR] = true
				time.Sleep(time.Second)
				synctest.Wait()
				if !strings.Contains(v.now(), drawn(t, s.Pairing.QR)) {
					t.Errorf("a second after code %d was made the page does not show it", len(seen))
				}
			}
			if time.Since(begun) > 5*time.Minute {
				t.Fatal("the attempt never ends")
			}
			time.Sleep(500 * time.Millisecond)
		}
		if len(seen) != 6 {
			t.Errorf("%d codes were shown, want WhatsApp's 6", len(seen))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if page := v.now(); strings.Contains(page, "<path") && strings.Contains(page, `id="qr"`) || !strings.Contains(page, "The code has expired") {
			t.Errorf("after the end the page shows:\n%s", page)
		}
		if v.over() != "final" {
			t.Errorf("the events end with %q, want final", v.over())
		}
		time.Sleep(20 * time.Second) // the scheduler's turn
		if g.used(invite.ID) != 0 || len(g.slugs()) != 0 {
			t.Errorf("left behind: %d slots and the sessions %v, want none", g.used(invite.ID), g.slugs())
		}
		if page := g.get(number).body; !strings.Contains(page, "The code has expired") || strings.Contains(page, `id="qr"`) {
			t.Errorf("loaded later the page shows:\n%s", page)
		}
		// A second press works, from the page of the one that is over.
		if again := g.press(number+"/qr", url.Values{}); again != link+"/numbers/org-a-02" {
			t.Errorf("another press leads to %s, want the next number", again)
		}
	})
}

func TestAPhoneScansAndThePageSaysOnlyTheLastFourDigits(t *testing.T) {
	bubble(t, func(t *testing.T, g *gateway) {
		link, invite := g.mint(2)
		list := g.watch(link)
		defer list.close()
		number := g.press(link+"/numbers", url.Values{})
		v := g.watch(number)
		defer v.close()
		await(t, "a code", func() bool { return strings.Contains(v.now(), `id="qr"`) })
		if err := g.sim.Phone(number1).ScanQR(t.Context(), g.row("org-a-01").Pairing.QR); err != nil {
			t.Fatal(err)
		}
		await(t, "the end", func() bool { return v.over() == "final" })
		await(t, "the list to say so", func() bool { return strings.Contains(list.now(), "Connected") })
		for where, page := range map[string]string{"number": v.now(), "list": list.now(), "loaded": g.get(link).body + g.get(number).body} {
			if !strings.Contains(page, "0001") {
				t.Errorf("the page (%s) lacks the last four digits:\n%s", where, page)
			}
			for _, secret := range []string{number1, number1[:len(number1)-4], "w1/1", string(g.row("org-a-01").ID)} {
				if strings.Contains(page, secret) {
					t.Errorf("the page (%s) shows %q:\n%s", where, secret, page)
				}
			}
		}
		if g.used(invite.ID) != 1 {
			t.Errorf("used = %d, want 1", g.used(invite.ID))
		}
		if s := g.row("org-a-01"); s.InviteID != invite.ID || s.Phone != number1 {
			t.Errorf("the session remembers link %q and number %q", s.InviteID, s.Phone)
		}

		// The same number through the link once more: its phone has proven itself, so it may be told.
		second := g.press(link+"/numbers", url.Values{})
		w := g.watch(second)
		defer w.close()
		await(t, "a code", func() bool { return strings.Contains(w.now(), `id="qr"`) })
		if err := g.sim.Phone(number1).ScanQR(t.Context(), g.row("org-a-02").Pairing.QR); err != nil {
			t.Fatal(err)
		}
		await(t, "the refusal", func() bool { return strings.Contains(w.now(), "already connected") })
		time.Sleep(20 * time.Second)
		if g.used(invite.ID) != 1 {
			t.Errorf("used after a number that is in use = %d, want 1", g.used(invite.ID))
		}

		// Unlinked on the phone, it is linked again without another slot, and with that number only.
		if err := g.sim.Phone(number1).Unlink(1); err != nil {
			t.Fatal(err)
		}
		await(t, "the list to say so", func() bool { return strings.Contains(list.now(), "Connect again") })
		if again := g.press(number+"/qr", url.Values{}); again != number {
			t.Fatalf("linking again leads to %s, want %s", again, number)
		}
		x := g.watch(number)
		defer x.close()
		await(t, "a code", func() bool { return strings.Contains(x.now(), `id="qr"`) })
		if err := g.sim.Phone(number2).ScanQR(t.Context(), g.row("org-a-01").Pairing.QR); err != nil {
			t.Fatal(err)
		}
		await(t, "another number's refusal", func() bool { return strings.Contains(x.now(), "has another number") })
		x.close()
		g.press(number+"/qr", url.Values{})
		y := g.watch(number)
		defer y.close()
		await(t, "a code", func() bool { return strings.Contains(y.now(), `id="qr"`) })
		if err := g.sim.Phone(number1).ScanQR(t.Context(), g.row("org-a-01").Pairing.QR); err != nil {
			t.Fatal(err)
		}
		await(t, "the end", func() bool { return strings.Contains(y.now(), "Connected") })
		if g.used(invite.ID) != 1 {
			t.Errorf("used = %d, want 1", g.used(invite.ID))
		}
	})
}

func TestACodeIsTypedOnThePhone(t *testing.T) {
	bubble(t, func(t *testing.T, g *gateway) {
		link, invite := g.mint(1)
		number := g.press(link+"/numbers", url.Values{})
		if form := g.get(number + "/code"); !strings.Contains(form.body, `name="phone"`) || strings.Contains(form.body, "http-equiv") {
			t.Errorf("the form = %s, want a field and no reload that wipes it", form.body)
		}
		bad := g.do("POST", number+"/code", url.Values{"phone": {"11 9000"}})
		if bad.status != 422 || !strings.Contains(bad.body, `role="alert"`) {
			t.Errorf("a number without country code = %d, want 422 and the form again", bad.status)
		}
		g.press(number+"/code", url.Values{"phone": {"+55 11 9 0000-0001"}})
		v := g.watch(number)
		defer v.close()
		await(t, "a code", func() bool { return strings.Contains(v.now(), `id="code"`) })
		code := g.row("org-a-01").Pairing.Code
		halves := regexp.MustCompile(`<span>([0-9A-Z]{4})</span>`).FindAllStringSubmatch(v.now(), -1)
		if len(halves) != 2 || halves[0][1]+"-"+halves[1][1] != code {
			t.Fatalf("the page shows %v, want %s", halves, code)
		}
		if err := g.sim.Phone(number1).EnterCode(t.Context(), halves[0][1]+halves[1][1]); err != nil {
			t.Fatal(err)
		}
		await(t, "the end", func() bool { return v.over() == "final" && strings.Contains(v.now(), "0001") })
		if g.used(invite.ID) != 1 {
			t.Errorf("used = %d, want 1", g.used(invite.ID))
		}
	})
}

// wantNothingLeft holds that an attempt that came to nothing left neither a slot nor a session behind.
func (g *gateway) wantNothingLeft(id fleet.InviteID) {
	g.t.Helper()
	if g.used(id) != 0 || len(g.slugs()) != 0 {
		g.t.Errorf("left behind: %d slots and %v", g.used(id), g.slugs())
	}
}

func TestACodeThatNobodyTypesExpiresByItsDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, g *gateway) {
		link, invite := g.mint(1)
		number := g.press(link+"/numbers", url.Values{})
		g.press(number+"/code", url.Values{"phone": {"+" + number1}})
		v := g.watch(number)
		defer v.close()
		await(t, "a code", func() bool { return strings.Contains(v.now(), `id="code"`) })
		time.Sleep(4 * time.Minute)
		if page := v.now(); strings.Contains(page, `id="code"`) || v.over() != "final" {
			t.Errorf("four minutes later the page shows:\n%s", page)
		}
		g.wantNothingLeft(invite.ID)
	})
}

func TestAPasskeyThatNobodyHereCanGiveIsSaidSo(t *testing.T) {
	bubble(t, func(t *testing.T, g *gateway) {
		link, invite := g.mint(1)
		number := g.press(link+"/numbers", url.Values{})
		v := g.watch(number)
		defer v.close()
		await(t, "a code", func() bool { return strings.Contains(v.now(), `id="qr"`) })
		g.sim.Phone(number1).AskPasskey(true)
		if err := g.sim.Phone(number1).ScanQR(t.Context(), g.row("org-a-01").Pairing.QR); err != nil {
			t.Fatal(err)
		}
		await(t, "the passkey", func() bool { return v.over() == "final" && strings.Contains(v.now(), "asks for a passkey") })
		time.Sleep(20 * time.Second)
		g.wantNothingLeft(invite.ID)
	})
}

func TestCancellingEndsThePairingAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, g *gateway) {
		link, invite := g.mint(1)
		number := g.press(link+"/numbers", url.Values{})
		v := g.watch(number)
		defer v.close()
		await(t, "a code", func() bool { return strings.Contains(v.now(), `id="qr"`) })
		qr := g.row("org-a-01").Pairing.QR
		if back := g.press(number+"/cancel", url.Values{}); back != link {
			t.Errorf("cancelling leads to %s, want the list", back)
		}
		await(t, "the page to say so", func() bool { return v.over() == "final" && !strings.Contains(v.now(), `id="qr"`) })
		time.Sleep(3 * time.Second)
		if err := g.sim.Phone(number1).ScanQR(t.Context(), qr); err == nil {
			t.Error("a phone could scan a code that was cancelled 3 s ago")
		}
		g.wantNothingLeft(invite.ID)
	})
}

func TestARevokedLinkEndsOnEveryOpenPage(t *testing.T) {
	bubble(t, func(t *testing.T, g *gateway) {
		link, invite := g.mint(1)
		number := g.press(link+"/numbers", url.Values{})
		list, v := g.watch(link), g.watch(number)
		defer list.close()
		defer v.close()
		await(t, "a code", func() bool { return strings.Contains(v.now(), `id="qr"`) })
		if _, _, err := g.st.RevokeInvite(t.Context(), invite.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		want := []string{"over", "over"}
		if diff := cmp.Diff(want, []string{list.over(), v.over()}); diff != "" {
			t.Errorf("a second after the revocation the pages end with (-want +got):\n%s", diff)
		}
		for _, page := range []string{list.now(), v.now()} {
			if strings.Contains(page, `id="qr"`) || !strings.Contains(page, "no longer valid") {
				t.Errorf("the page shows:\n%s", page)
			}
		}
	})
}
