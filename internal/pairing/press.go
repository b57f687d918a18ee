package pairing

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
)

// takeUp is how long a worker has to show the first code; then the page says that it doesn't work now.
const takeUp = 90 * time.Second

// pairCommand asks for a pairing; phone "" = by QR.
func pairCommand(phone string) fleet.Command {
	payload := fleet.PairPayload{Method: fleet.PairQR, Phone: phone}
	if phone != "" {
		payload.Method = fleet.PairCode
	}
	b, err := json.Marshal(payload)
	if err != nil {
		panic(err) // two strings
	}
	return fleet.Command{Kind: fleet.CommandPair, Payload: string(b), ExpiresAt: time.Now().Add(takeUp)}
}

// add is the press of "Add a number".
func (p *Page) add(w http.ResponseWriter, r *http.Request, i fleet.Invite) {
	if p.pressedTooOften(w, r, i) {
		return
	}
	p.addAnother(w, r, i, "")
}

// addAnother provisions the next session and leads to its page.
func (p *Page) addAnother(w http.ResponseWriter, r *http.Request, i fleet.Invite, phone string) {
	ctx := r.Context()
	ended, err := p.store.ReleaseInviteSlots(ctx, i.ID, 100) // what came to nothing gives its slot back first
	if err != nil {
		p.broken(w, r, err)
		return
	}
	for _, s := range ended {
		p.nudge(ctx, s)
	}
	s, err := p.store.AddThroughInvite(ctx, i.ID, pairCommand(phone))
	if err != nil {
		p.refused(w, r, i, err)
		return
	}
	p.nudge(ctx, s)
	p.toNumber(w, r, s.Slug)
}

// askQR asks for another QR for a number of this link.
func (p *Page) askQR(w http.ResponseWriter, r *http.Request, i fleet.Invite) {
	if !p.pressedTooOften(w, r, i) {
		p.again(w, r, i, "")
	}
}

// askCode asks for a code to type on the phone.
func (p *Page) askCode(w http.ResponseWriter, r *http.Request, i fleet.Invite) {
	phone, ok := phoneDigits(r.PostFormValue("phone"))
	if !ok {
		p.codeFormWith(w, r, i, http.StatusUnprocessableEntity, "phone_invalid")
		return
	}
	if wait, ok := p.codes.take(string(i.ID)); !ok {
		p.failed(w, r, http.StatusTooManyRequests, "limited", wait)
		return
	}
	// Whether the number is known here is not asked now: only who holds its phone may learn that.
	p.again(w, r, i, phone)
}

// again asks for another pairing of the number in the path. If it gave its slot back meanwhile, the press
// means another one.
func (p *Page) again(w http.ResponseWriter, r *http.Request, i fleet.Invite, phone string) {
	s, err := p.store.PairThroughInvite(r.Context(), i.ID, fleet.SessionSlug(r.PathValue("id")), pairCommand(phone))
	switch {
	case err == nil:
		p.nudge(r.Context(), s)
		p.toNumber(w, r, s.Slug)
	case errors.Is(err, fleet.ErrNotFound):
		p.addAnother(w, r, i, phone)
	default:
		p.refused(w, r, i, err)
	}
}

// cancel ends an attempt.
func (p *Page) cancel(w http.ResponseWriter, r *http.Request, i fleet.Invite) {
	s, err := p.store.CancelThroughInvite(r.Context(), i.ID, fleet.SessionSlug(r.PathValue("id")))
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		p.broken(w, r, err)
		return
	}
	if err == nil {
		p.nudge(r.Context(), s)
	}
	p.toLink(w, r)
}

// refused answers a press that came too late.
func (p *Page) refused(w http.ResponseWriter, r *http.Request, i fleet.Invite, err error) {
	coded, ok := errors.AsType[*fleet.CodedError](err)
	if !ok {
		p.broken(w, r, err)
		return
	}
	switch coded.Code {
	case "INVITE_OVER":
		p.failed(w, r, http.StatusGone, "over", 0)
	case "ALREADY_PAIRED":
		p.toNumber(w, r, fleet.SessionSlug(r.PathValue("id")))
	default: // full, or stopped by the operator meanwhile
		now, aerr := p.auth.Invite(r.Context(), r.PathValue("token"))
		if aerr != nil {
			now = i
		}
		v, _, verr := p.linkOf(r, now)
		if verr != nil {
			p.broken(w, r, verr)
			return
		}
		v.Here, v.Notice = v.Home, strings.ToLower(coded.Code)
		p.show(w, r, http.StatusConflict, v)
	}
}

func (p *Page) pressedTooOften(w http.ResponseWriter, r *http.Request, i fleet.Invite) bool {
	wait, ok := p.presses.take(string(i.ID))
	if !ok {
		p.failed(w, r, http.StatusTooManyRequests, "limited", wait)
	}
	return !ok
}

// nudge tells who owns the session, or who might, to look at its rows now.
func (p *Page) nudge(ctx context.Context, s fleet.Session) {
	topic := bus.TopicUnassigned
	if owner := s.OwnerID(); owner != "" {
		topic = bus.TopicControl(owner)
	}
	for _, topic := range []string{topic, bus.TopicSession} {
		if err := p.bus.Publish(ctx, topic, string(s.ID)); err != nil {
			p.log.WarnContext(ctx, "nudge was not published, the row is found by polling", slog.String("topic", topic), slog.Any("err", err))
		}
	}
}

// codeView is the form for linking by phone number.
type codeView struct {
	frame
	ID      fleet.SessionSlug
	Last4   string // of the number that must be linked again
	Problem string // key of a text
}

func (p *Page) codeForm(w http.ResponseWriter, r *http.Request, i fleet.Invite) {
	p.codeFormWith(w, r, i, http.StatusOK, "")
}

func (p *Page) codeFormWith(w http.ResponseWriter, r *http.Request, i fleet.Invite, status int, problem string) {
	v, _, err := p.numberOf(r, i)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		p.toLink(w, r)
	case err != nil:
		p.broken(w, r, err)
	case v.Phase == phaseDone || v.Phase == phaseLinking || v.Phase == phaseGone:
		p.toNumber(w, r, v.ID)
	default:
		v.Reload = 0 // it would wipe what is being typed
		p.show(w, r, status, &codeView{v.frame, v.ID, v.Last4, problem})
	}
}

// phoneDigits reads a number as people type it, with its country code.
func phoneDigits(typed string) (string, bool) {
	var b strings.Builder
	for _, c := range strings.TrimSpace(typed) {
		switch {
		case c >= '0' && c <= '9':
			b.WriteRune(c)
		case strings.ContainsRune(" -.()/\u00a0", c), c == '+' && b.Len() == 0:
		default:
			return "", false
		}
	}
	digits := strings.TrimPrefix(b.String(), "00") // how many write the plus
	return digits, len(digits) >= 8 && len(digits) <= 15 && digits[0] != '0'
}
