package worker

import (
	"slices"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wasim"
)

// address queues a text as the API does: to somebody as far as the organization knows them.
func (w *world) address(s fleet.Session, to, text string, change ...func(*fleet.Message)) fleet.MessageID {
	w.t.Helper()
	r, err := fleet.ParseRecipient(to)
	if err != nil {
		w.t.Fatal(err)
	}
	m := fleet.Message{
		OrgID: s.OrgID, SessionID: s.ID, ContactKey: r.ContactKey, To: to, ToJID: r.JID, Kind: "text", Text: text, Unresolved: true,
	}
	known, err := w.st.Recipient(w.t.Context(), s.OrgID, r)
	if err != nil {
		w.t.Fatal(err)
	}
	if known != nil {
		m.ContactKey, m.ConversationID = known.Key, known.ConversationID
		if known.JID != "" && known.LID != "" {
			m.ToJID, m.Unresolved = known.JID, false
		}
	}
	for _, c := range change {
		c(&m)
	}
	m, err = w.st.CreateMessage(w.t.Context(), m, fleet.DefaultTTL)
	if err != nil {
		w.t.Fatal(err)
	}
	return m.ID
}

func (w *world) contact(to string) store.Known {
	w.t.Helper()
	r, err := fleet.ParseRecipient(to)
	if err != nil {
		w.t.Fatal(err)
	}
	known, err := w.st.Recipient(w.t.Context(), w.org, r)
	if err != nil || known == nil {
		w.t.Fatalf("Recipient(%q) = %v, %v, want somebody", to, known, err)
	}
	return *known
}

func (w *world) pause(id fleet.SessionID, on bool) {
	w.t.Helper()
	if _, err := w.st.DB().Exec(w.t.Context(), `UPDATE sessions SET paused=$2 WHERE id=$1`, id, on); err != nil {
		w.t.Fatal(err)
	}
}

func TestWhatsAppDecidesWhereANumberGoes(t *testing.T) {
	const short, long = "551100000301", "5511900000301" // one line; the server knows it without the 9
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(short)
		first := w.address(s, long, "first")
		second := w.address(s, "+"+short, "second")
		w.awaitStatus(first, fleet.StatusDelivered)
		w.awaitStatus(second, fleet.StatusDelivered)
		if got := w.texts(short); !slices.Equal(got, []string{"first", "second"}) {
			t.Errorf("the phone shows %q, want first and second", got)
		}
		m := w.message(first)
		if c := w.contact(long); m.ToJID != short+"@s.whatsapp.net" || m.To != long || c.Phone != short || c.LID == "" || c.ID != w.contact(c.LID+"@lid").ID {
			t.Errorf("the message went to %s for %s, the contact is %+v; want the server's digits, the caller's and the LID", m.ToJID, m.To, c)
		}
		if m.ConversationID != w.message(second).ConversationID {
			t.Error("the two forms are in two conversations")
		}
		// A person that is known costs no round trip, whatever they are written as.
		requests := w.sim.Stats().Requests
		for _, to := range []string{long, short, w.contact(long).LID + "@lid", string(w.contact(long).ID)} {
			w.awaitStatus(w.address(s, to, "again"), fleet.StatusDelivered)
		}
		if n := w.sim.Stats().Requests - requests; n > 1 { // a keep-alive may fall in between
			t.Errorf("%d requests for a person that is known, want none", n)
		}
	})
}

func TestANumberWithoutAnAccountFailsBeforeAnyFrame(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		w.sim.Phone(person1)
		nobody := w.address(s, "5511900000399", "anybody there?")
		somebody := w.address(s, person1, "hello")
		w.awaitStatus(nobody, fleet.StatusFailed)
		w.awaitStatus(somebody, fleet.StatusDelivered)
		if m := w.message(nobody); m.ErrorCode != fleet.CodeNotOnWhatsApp || m.Attempts != 0 || len(w.frames(m.WAID)) != 0 {
			t.Errorf("message = %+v with %d frames, want %s before any", m, len(w.frames(m.WAID)), fleet.CodeNotOnWhatsApp)
		}
		if c := w.contact("5511900000399"); !c.Absent || c.CheckedAt.IsZero() {
			t.Errorf("contact = %+v, want known to be absent", c)
		}
	})
}

// A person opts out on one number. Nothing reaches them any more, on any number, under any name, whenever it was queued.
func TestNothingReachesWhoOptedOut(t *testing.T) {
	const long, short = "5511900000302", "551100000302"
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		one, two := w.paired(number1), w.paired(number2)
		phone := w.sim.Phone(long)

		// Before the STOP: one that waits for its time, one that waits on a paused number, and one that is tried again.
		scheduled := w.address(two, long, "scheduled", func(m *fleet.Message) { m.DueAt = time.Now().Add(3 * time.Minute); m.SendAt = m.DueAt })
		paused := w.paired("5511900000003")
		w.pause(paused.ID, true)
		queued := w.address(paused, short, "queued")
		w.sim.SetFault(wasim.Scope{Session: number2}, wasim.Fault{KeyFetch: 503})
		retried := w.address(two, long, "retried")
		w.await("a try that came to nothing", func() bool { m := w.message(retried); return m.Attempts > 0 && m.Status == fleet.StatusQueued })
		w.sim.SetFault(wasim.Scope{Session: number2}, wasim.Fault{})

		// The STOP comes from a LID that says nothing of a number.
		phone.HideNumber(true)
		if _, err := phone.SendText(t.Context(), number1, "Parar!"); err != nil {
			t.Fatal(err)
		}
		w.await("the opt-out", func() bool { return w.contact(phone.LID().String()).OptedOut })

		after := map[string]fleet.MessageID{
			"through the other number": w.address(two, long, "other number"),
			"through the same number":  w.address(one, long, "same number"),
			"a phone variant":          w.address(two, short, "variant"),
			"the LID":                  w.address(two, phone.LID().String(), "lid"),
			"scheduled":                scheduled,
			"queued":                   queued,
			"retried":                  retried,
		}
		w.pause(paused.ID, false)
		for name, id := range after {
			w.awaitFor(5*time.Minute, "end of the message: "+name, func() bool { return w.message(id).Status.Settled() })
			m := w.message(id)
			if m.Status != fleet.StatusSuppressed || m.ErrorCode != fleet.CodeOptedOut || len(w.frames(m.WAID)) != 0 {
				t.Errorf("%s: %s %s with %d frames, want suppressed without any", name, m.Status, m.ErrorCode, len(w.frames(m.WAID)))
			}
		}
		if got := w.texts(long); len(got) != 0 {
			t.Errorf("the person reads %q, want nothing", got)
		}
		told := w.events(fleet.EventMessageSuppressed)
		if len(told) != len(after) {
			t.Errorf("%d message.suppressed events, want %d", len(told), len(after))
		}

		// START to another number lets messages through again.
		if _, err := phone.SendText(t.Context(), number2, "START"); err != nil {
			t.Fatal(err)
		}
		w.await("the end of the opt-out", func() bool { return !w.contact(long).OptedOut })
		w.awaitStatus(w.address(one, long, "welcome back"), fleet.StatusDelivered)
	})
}

func TestWhoWritesFromALIDIsAContactThatGetsItsNumberLater(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		phone := w.sim.Phone(person1)
		phone.HideNumber(true)
		if _, err := phone.SendText(t.Context(), number1, "guess who"); err != nil {
			t.Fatal(err)
		}
		w.await("the message", func() bool { return w.came() == 1 })
		if m := w.inbound()[0]; m.SenderPhone != "" || m.ContactID == "" || m.ConversationID == "" || m.ContactID != w.contact(m.SenderLID+"@lid").ID {
			t.Fatalf("inbound = %+v, want a contact with a LID and no number", m)
		}
		first := w.inbound()[0]
		w.awaitStatus(w.address(s, string(first.ContactID), "an answer"), fleet.StatusDelivered)

		phone.HideNumber(false)
		if _, err := phone.SendText(t.Context(), number1, "it is me"); err != nil {
			t.Fatal(err)
		}
		w.await("the second message", func() bool { return w.came() == 2 })
		if m := w.inbound()[1]; m.SenderPhone != person1 || m.ContactID != first.ContactID || m.ConversationID != first.ConversationID {
			t.Errorf("inbound = %+v, want the same contact in the same conversation, with its number", m)
		}
		if told := w.events(fleet.EventContactUpdated); len(told) != 1 || told[0].Data.Contact != first.ContactID {
			t.Errorf("contact.updated was told as %+v, want once of the contact", told)
		}
	})
}

func TestAnOptOutIsConfirmedOnceAndNothingElseIsSent(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		_, err := w.st.UpdateOrganization(t.Context(), w.org, store.OrgChange{People: func(p *fleet.PeopleRules) { p.Confirmation = "You will hear no more from us." }})
		if err != nil {
			t.Fatal(err)
		}
		w.person(person2)
		phone := w.sim.Phone(person1)
		phone.AutoReply(func(r wasim.Received) string { return "STOP" })
		w.budget(s.Slug, fleet.Budget{PerMinute: 2, PerHour: 100, PerDay: 100})
		o := w.api(0)
		w.becomes(w.accepted(o, person1).ID, fleet.StatusDelivered)
		w.becomes(w.accepted(o, person2).ID, fleet.StatusDelivered)
		w.await("the opt-out", func() bool { return w.contact(person1).OptedOut })
		// It takes budget as any other message does, and waits for it.
		if n, err := o.Dispatch(t.Context(), 10); err != nil || n != 0 {
			t.Errorf("Dispatch with the minute used up = %d, %v, want nothing", n, err)
		}
		w.sleep(65 * time.Second)
		if n, err := o.Dispatch(t.Context(), 10); err != nil || n != 1 {
			t.Errorf("Dispatch a minute later = %d, %v, want the confirmation", n, err)
		}
		w.await("the confirmation", func() bool { return len(w.texts(person1)) == 2 })
		if e, err := o.Capacity(t.Context(), w.org); err != nil || e.Sessions[0].Used.PerMinute != 1 {
			t.Errorf("capacity = %+v, %v, want one of the minute used by the confirmation", e.Sessions, err)
		}
		// The lane has no room for it either, waits for that without asking all the time, and then ends the message.
		w.budget(s.Slug, fleet.Budget{PerMinute: 1, PerHour: 100, PerDay: 100})
		w.awaitStatus(w.address(s, person1, "one more thing"), fleet.StatusSuppressed)
		w.sleep(time.Minute)
		if n, err := o.Dispatch(t.Context(), 10); err != nil || n != 0 {
			t.Errorf("Dispatch = %d, %v, want no second confirmation", n, err)
		}
		// The confirmation was answered with STOP again, and that is not confirmed.
		if got := w.texts(person1); !slices.Equal(got, []string{"hello", "You will hear no more from us."}) {
			t.Errorf("the person reads %q, want hello and one confirmation", got)
		}
	})
}

func TestALIDThatComesWithAnotherNumbersHistoryMergesContactsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.start("w1")
		s := w.paired(number1)
		phone := w.sim.Phone(person1)
		phone.HideNumber(true)
		if _, err := phone.SendText(t.Context(), number1, "STOP"); err != nil {
			t.Fatal(err)
		}
		lid := phone.LID().String()
		w.await("the opt-out", func() bool { return w.came() == 1 && w.contact(lid).OptedOut })
		byLID := w.contact(lid)
		queued := w.address(s, person1, "hello", func(m *fleet.Message) { m.DueAt = time.Now().Add(time.Hour); m.SendAt = m.DueAt })
		byNumber := w.contact(person1)
		if byNumber.ID == byLID.ID || byNumber.OptedOut {
			t.Fatalf("contacts %+v and %+v, want two that nobody knows to be one", byLID, byNumber)
		}
		w.sim.Phone(number2).SetContact(person1, "Somebody")
		w.paired(number2)
		one := w.contact(person1)
		if one.ID != byLID.ID || one.ID != w.contact(lid).ID || !one.OptedOut || one.Key != person1 {
			t.Errorf("contact = %+v, want the older one with number, LID and opt-out", one)
		}
		if m := w.message(queued); m.ConversationID != byLID.ConversationID {
			t.Errorf("the message that waits is in %s, want %s", m.ConversationID, byLID.ConversationID)
		}
		told := w.events(fleet.EventContactUpdated)
		if len(told) != 1 || told[0].Data.Contact != byLID.ID || !slices.Equal(told[0].Data.MergedContacts, []fleet.ContactID{byNumber.ID}) {
			t.Errorf("contact.updated was told as %+v, want once, of the merge", told)
		}
		// Whom the person wrote to is whom they hear from, under the name that counts now.
		to, err := w.ledger.Pin(t.Context(), w.org, person1, "org-a-02", time.Hour)
		if err != nil || to != s.Slug {
			t.Errorf("the person is pinned to %s (%v), want %s", to, err, s.Slug)
		}
	})
}
