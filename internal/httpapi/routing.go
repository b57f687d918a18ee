package httpapi

import (
	"context"
	"errors"
	"math"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/outbound"
)

// Route is how a message would be routed now, as its organization sees it: no number's identity in it.
type Route struct {
	Sendable          bool              `json:"sendable" doc:"A message would be accepted now."`
	Code              string            `json:"code,omitempty" doc:"Else: the code that it would be refused with." example:"RATE_LIMITED"`
	Detail            string            `json:"detail,omitempty"`
	RetryAfterSeconds int               `json:"retryAfterSeconds,omitempty" doc:"When trying makes sense."`
	Kept              bool              `json:"kept" doc:"The person hears from the number that they have been hearing from."`
	NewChat           bool              `json:"newChat" doc:"It would be the first message from that number to this person, who never wrote to it."`
	Skipped           []SkippedWhy      `json:"skipped" doc:"How many numbers are passed over, by the reason."`
	Sessions          []RoutedOne       `json:"sessions,omitempty" doc:"Every number; for operators only."`
	SessionID         fleet.SessionSlug `json:"sessionId,omitempty" doc:"The one that would send; for operators only."`
}

// SkippedWhy counts the numbers that are passed over for one reason.
type SkippedWhy struct {
	Reason string `json:"reason" example:"minute_budget" doc:"stopped, paused, unpaired, unowned, not_connected, client_outdated, reachout_restricted, new_chats_capped, refused, unhealthy, minute_budget, hour_budget, day_budget, new_chat_budget, rate."`
	Count  int    `json:"count"`
}

// RoutedOne is one number as the router sees it.
type RoutedOne struct {
	SessionID   fleet.SessionSlug `json:"sessionId" example:"org-a-01"`
	Skipped     string            `json:"skipped,omitempty" doc:"Why it is passed over; missing: it could send."`
	Budget      BudgetNow         `json:"budget" doc:"What it may send at its age."`
	Used        BudgetNow         `json:"used" doc:"Of it, now."`
	Outstanding int               `json:"outstanding" doc:"Accepted messages that have not left."`
	Health      int               `json:"health" doc:"0 to 100."`
}

// Capacity is what an organization may send, over all its numbers.
type Capacity struct {
	Numbers   int    `json:"numbers"`
	Ready     int    `json:"ready" doc:"Numbers that could send now."`
	PerMinute Window `json:"perMinute" doc:"Any 60 seconds."`
	PerHour   Window `json:"perHour"`
	PerDay    Window `json:"perDay" doc:"Any 24 hours."`
	NewChats  Window `json:"newChats" doc:"First messages to people who never wrote, in any 24 hours."`

	Sessions []RoutedOne `json:"sessions,omitempty" doc:"Number by number; for operators only."`
}

// Window is a budget and what is left of it. Numbers that could not send now for another reason count for nothing.
type Window struct {
	Limit     int `json:"limit" example:"60"`
	Remaining int `json:"remaining" example:"42"`
}

func (w *Window) add(limit, used int) {
	w.Limit += limit
	w.Remaining += max(0, limit-used)
}

type capacityReply struct {
	Limit     int `header:"RateLimit-Limit" doc:"Messages in any 60 seconds."`
	Remaining int `header:"RateLimit-Remaining" doc:"Of them, left now."`
	Body      Capacity
}

// RouteBody asks about one recipient.
type RouteBody struct {
	To string `json:"to" doc:"As for sending." example:"+5511900000001"`
}

func registerRouting(api huma.API, d *deps) {
	huma.Register(api, huma.Operation{
		OperationID: "explain-route", Method: http.MethodPost, Path: "/api/v1/route", Tags: []string{"Messages"},
		Summary: "Say how a message would be routed now, without sending", Security: organizationSecurity,
	}, func(ctx context.Context, in *struct{ Body RouteBody }) (*reply[Route], error) {
		p := caller(ctx)
		return d.explain(ctx, p.OrgID, p.ProjectID, in.Body.To, false)
	})
	huma.Register(api, huma.Operation{
		OperationID: "explain-organization-route", Method: http.MethodGet, Path: "/api/admin/organizations/{orgId}/route", Tags: []string{"Organizations"},
		Summary: "Say how a message of an organization would be routed now, number by number", Security: adminSecurity,
	}, func(ctx context.Context, in *struct {
		OrgPath
		To string `query:"to" required:"true" doc:"As for sending." example:"+5511900000001"`
	},
	) (*reply[Route], error) {
		project, err := d.store.DefaultProject(ctx, in.OrgID)
		if err != nil {
			return nil, err
		}
		return d.explain(ctx, in.OrgID, project, in.To, true)
	})
	huma.Register(api, huma.Operation{
		OperationID: "get-capacity", Method: http.MethodGet, Path: "/api/v1/capacity", Tags: []string{"Organization"},
		Summary: "Get what may be sent now, over all numbers", Security: organizationSecurity,
	}, func(ctx context.Context, _ *struct{}) (*capacityReply, error) {
		return d.capacity(ctx, caller(ctx).OrgID, false)
	})
	huma.Register(api, huma.Operation{
		OperationID: "get-organization-capacity", Method: http.MethodGet, Path: "/api/admin/organizations/{orgId}/capacity", Tags: []string{"Organizations"},
		Summary: "Get what an organization may send now, number by number", Security: adminSecurity,
	}, func(ctx context.Context, in *OrgPath) (*capacityReply, error) {
		return d.capacity(ctx, in.OrgID, true)
	})
}

func (d *deps) explain(ctx context.Context, org fleet.OrgID, project fleet.ProjectID, to string, operator bool) (*reply[Route], error) {
	e, err := d.outbound.Explain(ctx, org, project, to)
	if err != nil {
		return nil, err
	}
	v := Route{Sendable: e.Refusal == nil, Kept: e.Choice.Pinned, NewChat: e.Choice.NewChat, Skipped: []SkippedWhy{}}
	if coded, ok := errors.AsType[*fleet.CodedError](e.Refusal); ok {
		v.Code, v.Detail, v.RetryAfterSeconds = coded.Code, coded.Detail, int(math.Ceil(coded.RetryAfter.Seconds()))
	}
	at := map[string]int{}
	for _, s := range e.Sessions {
		reason := string(s.Reason)
		if reason == "" {
			continue
		}
		if at[reason] == 0 {
			v.Skipped = append(v.Skipped, SkippedWhy{Reason: reason})
			at[reason] = len(v.Skipped)
		}
		v.Skipped[at[reason]-1].Count++
	}
	if operator {
		v.SessionID, v.Sessions = e.Choice.Session.Slug, routedView(e)
	}
	return &reply[Route]{v}, nil
}

func (d *deps) capacity(ctx context.Context, org fleet.OrgID, operator bool) (*capacityReply, error) {
	e, err := d.outbound.Capacity(ctx, org)
	if err != nil {
		return nil, err
	}
	c := sumOf(e)
	if operator {
		c.Sessions = routedView(e)
	}
	limit, remaining := c.left()
	return &capacityReply{limit, remaining, c}, nil
}

// left is what may be sent in any 60 seconds, and how much of it now.
func (c Capacity) left() (limit, remaining int) {
	return c.PerMinute.Limit, min(c.PerMinute.Remaining, c.PerHour.Remaining, c.PerDay.Remaining)
}

// sumOf adds up an organization's numbers.
func sumOf(e outbound.Explanation) (c Capacity) {
	for _, s := range e.Sessions {
		c.Numbers++
		switch s.Reason {
		case "":
			c.Ready++
		case "minute_budget", "hour_budget", "day_budget", "new_chat_budget", "rate": // it will again
		default:
			continue
		}
		c.PerMinute.add(s.Budget.PerMinute, s.Used.PerMinute)
		c.PerHour.add(s.Budget.PerHour, s.Used.PerHour)
		c.PerDay.add(s.Budget.PerDay, s.Used.PerDay)
		c.NewChats.add(s.Budget.NewChatsPerDay, s.Used.NewChatsPerDay)
	}
	return c
}

func routedView(e outbound.Explanation) []RoutedOne {
	all := []RoutedOne{}
	part := func(b fleet.Budget) BudgetNow {
		return BudgetNow{Budget{b.PerMinute, b.PerHour, b.PerDay}, b.NewChatsPerDay}
	}
	for _, s := range e.Sessions {
		all = append(all, RoutedOne{
			SessionID: s.Slug, Skipped: string(s.Reason), Budget: part(s.Budget), Used: part(s.Used), Outstanding: s.Outstanding, Health: s.Health,
		})
	}
	return all
}
