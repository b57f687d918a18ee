package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Command is something a session was asked to do.
type Command struct {
	CommandID  fleet.CommandID     `json:"commandId" example:"cmd_01k8z3v5hq2m6t9x4c7b0n1d8e"`
	SessionID  fleet.SessionSlug   `json:"sessionId" example:"org-a-01"`
	Kind       string              `json:"kind" enum:"pair,connect,logout,read"`
	Status     fleet.CommandStatus `json:"status" enum:"pending,running,done,failed,expired"`
	Error      *CommandError       `json:"error,omitempty"`
	CreatedAt  *time.Time          `json:"createdAt"`
	ExpiresAt  *time.Time          `json:"expiresAt"`
	FinishedAt *time.Time          `json:"finishedAt,omitempty"`
}

// CommandError says why a command failed.
type CommandError struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

func commandView(c fleet.Command, slug fleet.SessionSlug) Command {
	v := Command{
		CommandID: c.ID, SessionID: slug, Kind: c.Kind, Status: c.Status,
		CreatedAt: when(c.CreatedAt), ExpiresAt: when(c.ExpiresAt), FinishedAt: when(c.FinishedAt),
	}
	if c.ErrorCode != "" {
		v.Error = &CommandError{c.ErrorCode, c.Error}
	}
	return v
}

func registerPairing(api huma.API, d *deps) {
	tags := []string{"Sessions"}
	huma.Register(api, huma.Operation{
		OperationID: "pair-session", Method: http.MethodPost, Path: "/api/admin/sessions/{sessionId}/pair", Tags: tags,
		Summary: "Begin pairing", DefaultStatus: http.StatusAccepted, Security: adminSecurity,
		Description: "Asks the session's owner for a QR code, or for a code to type on the phone. Read it from …/qr; a QR is replaced until the attempt ends.",
	}, func(ctx context.Context, in *struct {
		SessionPath
		Body struct {
			Method string `json:"method,omitempty" enum:"qr,code" default:"qr"`
			Phone  string `json:"phone,omitempty" doc:"For method code: the phone's number with country code." example:"+5511900000001"`
		}
	},
	) (*reply[Command], error) {
		s, err := d.store.SessionBySlug(ctx, in.SessionID)
		if err != nil {
			return nil, err
		}
		phone, err := pairingPhone(in.Body.Method, in.Body.Phone)
		if err != nil {
			return nil, err
		}
		switch {
		case s.CanLogin():
			return nil, conflict("ALREADY_PAIRED", "the session has a login: log it out first")
		case phone != "" && s.Phone != "" && s.Phone != phone:
			return nil, conflict("NUMBER_MISMATCH", "a session keeps the number of its first pairing: make another session for another number")
		}
		if phone != "" {
			if err := d.store.CheckNumber(ctx, s.ID, phone); err != nil {
				return nil, err
			}
		}
		payload, err := json.Marshal(fleet.PairPayload{Method: in.Body.Method, Phone: phone})
		if err != nil {
			return nil, err
		}
		return d.command(ctx, s, fleet.CommandPair, string(payload))
	})

	for _, v := range []struct{ verb, kind, summary, description string }{
		{
			"connect", fleet.CommandConnect, "Connect now",
			"Dials without waiting for the next try, also out of conflict, failed and temp_banned, and starts a stopped session.",
		},
		{
			"logout", fleet.CommandLogout, "Log out",
			"Removes the device from the account at WhatsApp. The session stays, and only the same number can be paired with it again.",
		},
	} {
		huma.Register(api, huma.Operation{
			OperationID: v.verb + "-session", Method: http.MethodPost, Path: "/api/admin/sessions/{sessionId}/" + v.verb, Tags: tags,
			Summary: v.summary, DefaultStatus: http.StatusAccepted, Security: adminSecurity, Description: v.description,
		}, func(ctx context.Context, in *SessionPath) (*reply[Command], error) {
			s, err := d.store.SessionBySlug(ctx, in.SessionID)
			if err != nil {
				return nil, err
			}
			if !s.CanLogin() {
				return nil, errNotPaired
			}
			return d.command(ctx, s, v.kind, "")
		})
	}

	huma.Register(api, huma.Operation{
		OperationID: "get-command", Method: http.MethodGet, Path: "/api/admin/commands/{commandId}", Tags: tags,
		Summary: "Get a command", Security: adminSecurity,
	}, func(ctx context.Context, in *struct {
		CommandID fleet.CommandID `path:"commandId"`
	},
	) (*reply[Command], error) {
		c, err := d.store.GetCommand(ctx, in.CommandID)
		if err != nil {
			return nil, err
		}
		s, err := d.store.SessionByID(ctx, c.SessionID)
		if err != nil {
			return nil, err
		}
		return &reply[Command]{commandView(c, s.Slug)}, nil
	})
	registerQR(api, d)
}

var errNotPaired = conflict("NOT_PAIRED", "the session has no login: pair it first")

// pairingPhone checks what method and phone say together and returns the number's digits.
func pairingPhone(method, phone string) (string, error) {
	switch {
	case method == fleet.PairQR && phone == "":
		return "", nil
	case method == fleet.PairQR:
		return "", invalid("PHONE_INVALID", "phone", "belongs to method code: with a QR the phone says its number itself")
	case phone == "":
		return "", invalid("PHONE_INVALID", "phone", "is missing: method code needs the phone's number")
	}
	r, err := fleet.ParseRecipient(phone)
	if err != nil || r.Phone == "" || strings.ContainsRune(phone, '@') {
		return "", invalid("PHONE_INVALID", "phone", "is not a phone number with country code, such as +5511900000001")
	}
	return r.Phone, nil
}

func (d *deps) command(ctx context.Context, s fleet.Session, kind, payload string) (*reply[Command], error) {
	c, err := d.store.EnqueueCommand(ctx, fleet.Command{SessionID: s.ID, Kind: kind, Payload: payload})
	if err != nil {
		return nil, err
	}
	d.nudge(ctx, s)
	return &reply[Command]{commandView(c, s.Slug)}, nil
}
