package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// stateUnowned is shown when nobody holds the session: what was observed last is history then.
const stateUnowned = "unowned"

// Session is one WhatsApp number as the operator sees it.
type Session struct {
	SessionID fleet.SessionSlug `json:"sessionId" example:"org-a-01"`
	OrgID     fleet.OrgID       `json:"orgId" example:"org-a"`
	Label     string            `json:"label"`
	Desired   fleet.Desired     `json:"desired" enum:"running,stopped" doc:"What the operator wants."`
	Paused    bool              `json:"paused" doc:"The router skips it; receiving goes on."`

	State string `json:"state" doc:"What its owner sees now: needs_pairing, pairing, pairing_expired, connecting, connected, reconnecting, unavailable, conflict, logged_out, locked, temp_banned, banned, client_outdated, failed; or unowned: no worker holds it, and observed says what was seen last." example:"connected"`

	Observed  fleet.Observed `json:"observed" doc:"What an owner saw last, be it this one or one before."`
	Connected bool           `json:"connected" doc:"It has a live owner, and that one hears from WhatsApp: a connection that is silent for about a minute is ended."`
	Since     *time.Time     `json:"since,omitempty" doc:"Since when observed is what it is."`
	Reason    string         `json:"reason,omitempty" doc:"Machine word for the last end of a connection." example:"replaced"`
	WACode    int            `json:"waCode,omitempty" doc:"WhatsApp's code for it." example:"440"`
	LastError string         `json:"lastError,omitempty" doc:"The same for people."`
	Attempts  int            `json:"attempts,omitempty" doc:"Failed connects in a row."`
	RetryAt   *time.Time     `json:"retryAt,omitempty" doc:"When the next connect is due."`
	Until     *time.Time     `json:"until,omitempty" doc:"End of a temporary ban."`

	Attached       bool      `json:"attached" doc:"It is in its organization's list; one that was removed receives and never sends."`
	Budget         Budget    `json:"budget" doc:"What it may send when warmed up."`
	NewChatsPerDay int       `json:"newChatsPerDay" doc:"First messages to people who never wrote to it."`
	Now            BudgetNow `json:"budgetNow" doc:"The same at its age: a new number begins with a tenth and has all of it after 14 days."`
	Rate
	WarmupAt   *time.Time   `json:"warmupStartedAt,omitempty" doc:"When its number was first paired; missing: warmed up."`
	Restricted *Restriction `json:"restricted,omitempty" doc:"What WhatsApp does not let it do now."`

	Phone    string     `json:"phone,omitempty" example:"+5511900000001"`
	PushName string     `json:"pushName,omitempty"`
	Paired   bool       `json:"paired" doc:"It has a login that may be used."`
	PairedAt *time.Time `json:"pairedAt,omitempty" doc:"First completed pairing."`
	Pairing  *Pairing   `json:"pairing,omitempty" doc:"The pairing under way, if there is one."`

	InviteID fleet.InviteID `json:"inviteId,omitempty" doc:"The pairing link that added it; missing: an operator did."`

	Worker     string    `json:"worker,omitempty" doc:"Who owns it now."`
	Epoch      int64     `json:"epoch" doc:"Goes up with every owner."`
	Generation int64     `json:"generation" doc:"Goes up with every connection."`
	CreatedAt  time.Time `json:"createdAt"`
}

// Budget is what one number may send.
type Budget struct {
	PerMinute int `json:"perMinute" doc:"In any 60 seconds." example:"20"`
	PerHour   int `json:"perHour" doc:"In any hour." example:"200"`
	PerDay    int `json:"perDay" doc:"In any 24 hours." example:"1000"`
}

// BudgetNow is what one number may send at its age.
type BudgetNow struct {
	Budget
	NewChatsPerDay int `json:"newChatsPerDay" example:"50"`
}

// BudgetChange sets a budget. What is missing is the default.
type BudgetChange struct {
	PerMinute *int `json:"perMinute,omitempty" minimum:"0" maximum:"10000000" example:"20"`
	PerHour   *int `json:"perHour,omitempty" minimum:"0" maximum:"10000000" example:"200"`
	PerDay    *int `json:"perDay,omitempty" minimum:"0" maximum:"10000000" example:"1000"`
}

func (b *BudgetChange) budget() *fleet.Budget {
	if b == nil {
		return nil
	}
	part := func(p *int) int {
		if p == nil {
			return -1
		}
		return *p
	}
	return &fleet.Budget{PerMinute: part(b.PerMinute), PerHour: part(b.PerHour), PerDay: part(b.PerDay)}
}

// Restriction is what WhatsApp holds against a number. It concerns people who did not write to it lately.
type Restriction struct {
	StrangersUntil *time.Time `json:"strangersUntil,omitempty" doc:"It does not write to them before."`
	NewChatsUntil  *time.Time `json:"newChatsUntil,omitempty" doc:"It opens no new chats before."`
}

// Pairing is what a person needs to link the phone.
type Pairing struct {
	Method    string     `json:"method" enum:"qr,code"`
	QR        string     `json:"qr,omitempty" doc:"Text of the QR code to scan; only in the answer of …/qr."`
	Code      string     `json:"code,omitempty" doc:"The eight characters to type on the phone." example:"ABCD-EFGH"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty" doc:"When this code ends; a QR is replaced by a fresh one then."`
	EndsAt    *time.Time `json:"endsAt,omitempty" doc:"When the whole attempt ends."`
}

// future is a time that has not come yet, else nil.
func future(t, now time.Time) *time.Time {
	if !t.After(now) {
		return nil
	}
	return when(t)
}

func sessionView(s fleet.Session) Session {
	v := Session{
		SessionID: s.Slug, OrgID: s.OrgID, Label: s.Label, Desired: s.Desired, Paused: s.Paused,
		State: sessionState(&s), Observed: s.Observed, Since: when(s.ObservedSince),
		Reason: s.Reason, WACode: s.ReasonCode, LastError: s.LastError, Attempts: s.Attempts,
		RetryAt: when(s.RetryAt), Until: when(s.Until),
		PushName: s.PushName, Paired: s.CanLogin(), PairedAt: when(s.PairedAt), InviteID: s.InviteID,
		Epoch: s.LeaseEpoch, Generation: s.Generation, CreatedAt: *when(s.CreatedAt),
		Attached: !s.Detached, Rate: rateView(s.Rate), WarmupAt: when(s.WarmupAt),
	}
	now := time.Now()
	budget, share := s.Budget.Or(fleet.DefaultBudget), s.EffectiveBudget(now)
	v.Budget, v.NewChatsPerDay = Budget{budget.PerMinute, budget.PerHour, budget.PerDay}, budget.NewChatsPerDay
	v.Now = BudgetNow{Budget{share.PerMinute, share.PerHour, share.PerDay}, share.NewChatsPerDay}
	if r := (Restriction{future(s.ColdUntil, now), future(s.CappedUntil, now)}); r != (Restriction{}) {
		v.Restricted = &r
	}
	v.Connected = v.State == string(fleet.ObservedConnected)
	if s.Phone != "" {
		v.Phone = "+" + s.Phone
	}
	if s.LeaseLive {
		v.Worker = s.LeaseOwner
	}
	if p := s.Pairing; p.Method != "" && s.LeaseLive {
		v.Pairing = &Pairing{Method: p.Method, Code: p.Code, ExpiresAt: when(p.ExpiresAt), EndsAt: when(p.EndsAt)}
	}
	return v
}

// sessionState is what may be said of a session now: the row and a live lease of the owner who
// wrote it. A new owner that has not spoken yet inherits facts (banned, logged out), but no
// connection.
func sessionState(s *fleet.Session) string {
	switch {
	case !s.LeaseLive:
		return stateUnowned
	case s.Epoch == s.LeaseEpoch:
		return string(s.Observed)
	}
	switch s.Observed {
	case fleet.ObservedConnected, fleet.ObservedReconnecting, fleet.ObservedUnavailable:
		return string(fleet.ObservedConnecting)
	case fleet.ObservedPairing:
		return string(fleet.ObservedNeedsPairing)
	default:
		return string(s.Observed)
	}
}

// SessionPath names a session in a path.
type SessionPath struct {
	SessionID fleet.SessionSlug `path:"sessionId" doc:"The session." example:"org-a-01"`
}

func registerSessions(api huma.API, d *deps) {
	tags := []string{"Sessions"}
	huma.Register(api, huma.Operation{
		OperationID: "create-session", Method: http.MethodPost, Path: "/api/admin/sessions", Tags: tags,
		Summary: "Create a session", DefaultStatus: http.StatusCreated, Security: adminSecurity,
		Description: "Adds a session to the end of an organization's list. It wants to run and needs pairing next.",
	}, func(ctx context.Context, in *struct {
		Body struct {
			OrgID     fleet.OrgID       `json:"orgId" example:"org-a"`
			Label     string            `json:"label,omitempty"`
			SessionID fleet.SessionSlug `json:"sessionId,omitempty" doc:"Its name for ever; default: the organization's next, org-a-01." maxLength:"63"`
		}
	},
	) (*reply[Session], error) {
		b := in.Body
		if b.SessionID != "" && !fleet.ValidSlug(string(b.SessionID)) {
			return nil, invalid("SESSION_ID_INVALID", "sessionId", "must be 1 to 63 lower-case letters, digits and single inner hyphens")
		}
		if err := checkLabel(b.Label); err != nil {
			return nil, err
		}
		s, err := d.store.CreateSession(ctx, store.NewSession{Org: b.OrgID, Slug: b.SessionID, Label: b.Label})
		if err != nil {
			return nil, err
		}
		d.nudge(ctx, s)
		return &reply[Session]{sessionView(s)}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "list-sessions", Method: http.MethodGet, Path: "/api/admin/sessions", Tags: tags,
		Summary: "List sessions", Security: adminSecurity,
	}, func(ctx context.Context, in *struct {
		Paging
		OrgID fleet.OrgID `query:"orgId" doc:"Only those of one organization."`
	},
	) (*reply[Page[Session]], error) {
		rows, err := d.store.ListSessions(ctx, store.SessionQuery{Org: in.OrgID, After: fleet.SessionSlug(in.Cursor), Limit: in.Limit + 1})
		if err != nil {
			return nil, err
		}
		return &reply[Page[Session]]{pageOf(rows, in.Limit, sessionView, func(s fleet.Session) string { return string(s.Slug) })}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "get-session", Method: http.MethodGet, Path: "/api/admin/sessions/{sessionId}", Tags: tags,
		Summary: "Get a session", Security: adminSecurity,
	}, func(ctx context.Context, in *SessionPath) (*reply[Session], error) {
		s, err := d.store.SessionBySlug(ctx, in.SessionID)
		if err != nil {
			return nil, err
		}
		return &reply[Session]{sessionView(s)}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "update-session", Method: http.MethodPatch, Path: "/api/admin/sessions/{sessionId}", Tags: tags,
		Summary: "Change a session", Security: adminSecurity,
		Description: "paused takes it out of rotation without disconnecting it; desired stops or starts it, over every restart and failover. " +
			"budget and newChatsPerDay are what it may send when warmed up; parts of a budget that are missing go back to the default; ratePerMinute and rateBurst bound bursts within it. All of it counts on the next send.",
	}, func(ctx context.Context, in *struct {
		SessionPath
		Body struct {
			Label   *string        `json:"label,omitempty"`
			Paused  *bool          `json:"paused,omitempty"`
			Desired *fleet.Desired `json:"desired,omitempty" enum:"running,stopped"`

			Budget         *BudgetChange `json:"budget,omitempty"`
			NewChatsPerDay *int          `json:"newChatsPerDay,omitempty" minimum:"-1" maximum:"10000000" doc:"-1: the default."`
			RateEdit
		}
	},
	) (*reply[Session], error) {
		b := in.Body
		if b.Label == nil && b.Paused == nil && b.Desired == nil && b.Budget == nil && b.NewChatsPerDay == nil && b.RateEdit == (RateEdit{}) {
			return nil, errNothingToChange
		}
		if b.Label != nil {
			if err := checkLabel(*b.Label); err != nil {
				return nil, err
			}
		}
		return d.changeSession(ctx, in.SessionID, store.SessionChange{
			Label: b.Label, Paused: b.Paused, Desired: b.Desired, Budget: b.Budget.budget(), NewChatsPerDay: b.NewChatsPerDay,
			RateMinute: b.RatePerMinute, RateBurst: b.RateBurst,
		})
	})

	for _, v := range []struct {
		verb, summary string
		desired       fleet.Desired
	}{
		{"start", "Start a session", fleet.DesiredRunning},
		{"stop", "Stop a session and keep its login", fleet.DesiredStopped},
	} {
		huma.Register(api, huma.Operation{
			OperationID: v.verb + "-session", Method: http.MethodPost, Path: "/api/admin/sessions/{sessionId}/" + v.verb, Tags: tags,
			Summary: v.summary, Security: adminSecurity,
		}, func(ctx context.Context, in *SessionPath) (*reply[Session], error) {
			return d.changeSession(ctx, in.SessionID, store.SessionChange{Desired: &v.desired})
		})
	}

	huma.Register(api, huma.Operation{
		OperationID: "move-session", Method: http.MethodPost, Path: "/api/admin/sessions/{sessionId}/move", Tags: tags,
		Summary: "Give a session to another organization", Security: adminSecurity,
		Description: "Only a stopped session with nothing queued, scheduled or being sent: SESSION_BUSY says what is in the way. Its login, keys and budget go with it, to the end of the other list; messages and events stay with the organization that had it. It stays stopped.",
	}, func(ctx context.Context, in *struct {
		SessionPath
		Body struct {
			OrgID fleet.OrgID `json:"orgId" doc:"The organization that gets it." example:"org-b"`
		}
	},
	) (*reply[Session], error) {
		s, err := d.store.SessionBySlug(ctx, in.SessionID)
		if err != nil {
			return nil, err
		}
		err = d.outbound.Changing(ctx, s.OrgID, func() error {
			return d.outbound.Changing(ctx, in.Body.OrgID, func() error {
				s, err = d.store.MoveSession(ctx, in.SessionID, in.Body.OrgID)
				return err
			})
		}, in.SessionID)
		if err != nil {
			return nil, err
		}
		d.nudge(ctx, s)
		return &reply[Session]{sessionView(s)}, nil
	})

	huma.Register(api, huma.Operation{
		OperationID: "delete-session", Method: http.MethodDelete, Path: "/api/admin/sessions/{sessionId}", Tags: tags,
		Summary: "Delete a session", DefaultStatus: http.StatusNoContent, Security: adminSecurity,
		Description: "Ends it for good and frees its number. Its id is not used again. A session that is connected is logged out at WhatsApp; the device of another stays in the phone's list until it is removed there. Once its worker let it go, its keys, chats and commands are purged; its messages stay with the organization.",
	}, func(ctx context.Context, in *SessionPath) (*struct{}, error) {
		s, err := d.store.SessionBySlug(ctx, in.SessionID)
		if err == nil {
			err = d.outbound.Changing(ctx, s.OrgID, func() error {
				s, err = d.store.DeleteSession(ctx, in.SessionID)
				return err
			}, in.SessionID)
		}
		if err != nil {
			return nil, err
		}
		d.nudge(ctx, s)
		return nil, nil //nolint:nilnil // huma's way to say 204
	})
}

func (d *deps) changeSession(ctx context.Context, slug fleet.SessionSlug, c store.SessionChange) (*reply[Session], error) {
	s, err := d.store.SessionBySlug(ctx, slug)
	if err == nil {
		err = d.outbound.Changing(ctx, s.OrgID, func() error {
			s, err = d.store.UpdateSession(ctx, slug, c)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	d.nudge(ctx, s)
	return &reply[Session]{sessionView(s)}, nil
}

// nudge tells who owns the session, or who might, to look at its row and its commands now.
func (d *deps) nudge(ctx context.Context, s fleet.Session) {
	topic := bus.TopicUnassigned
	if owner := s.OwnerID(); owner != "" {
		topic = bus.TopicControl(owner)
	}
	d.publish(ctx, topic, string(s.ID))
	d.publish(ctx, bus.TopicSession, string(s.ID))
}

func (d *deps) publish(ctx context.Context, topic, payload string) {
	if err := d.bus.Publish(ctx, topic, payload); err != nil {
		d.log.WarnContext(ctx, "nudge was not published, the row is found by polling", slog.String("topic", topic), slog.Any("err", err))
	}
}
