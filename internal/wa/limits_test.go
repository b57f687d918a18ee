package wa_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/wa"
	"github.com/wafleet/wafleet/internal/wasim"
)

// limits makes a generation tell what its Limit handler is told.
func limits(told chan fleet.NumberLimit) func(*wa.Options) {
	return func(o *wa.Options) { o.Handler.Limit = func(_ context.Context, l fleet.NumberLimit) { told <- l } }
}

func wantLimit(t *testing.T, told chan fleet.NumberLimit, want fleet.NumberLimit) {
	t.Helper()
	if diff := cmp.Diff(want, take(t, told)); diff != "" {
		t.Errorf("limit (-want +got):\n%s", diff)
	}
}

// talked lets a person write to the number and waits until the number has it.
func (g *generation) talked(person string) {
	g.t.Helper()
	if _, err := g.n.w.sim.Phone(person).SendText(g.t.Context(), g.n.pn, "hello"); err != nil {
		g.t.Fatalf("SendText = %v", err)
	}
	take(g.t, g.messages)
}

func TestATimeLockRefusesStrangersIsToldWithItsEndAndIsLifted(t *testing.T) {
	pn, friend, stranger := fresh(), fresh(), fresh()
	shared.sim.Phone(stranger)
	n, told := shared.paired(t, pn), make(chan fleet.NumberLimit, 10)
	g := n.online(limits(told))
	g.talked(friend)
	ends := time.Now().Add(time.Hour).Truncate(time.Second)
	shared.sim.SetEnforcement(pn, wasim.Enforcement{TimeLock: &wasim.TimeLock{Kind: "WEB_COMPANION_ONLY", Ends: ends}})
	t.Cleanup(func() { shared.sim.SetEnforcement(pn, wasim.Enforcement{}) })
	wantLimit(t, told, fleet.NumberLimit{Kind: fleet.LimitStrangers, Active: true, Until: ends, Detail: "WEB_COMPANION_ONLY"})
	mustFail(t, g.send(stranger, "3EB4A1", "hello"), fleet.OutcomeRefused, wa.SendReachoutRestricted, 463)
	if err := g.send(friend, "3EB4A2", "hello"); err != nil {
		t.Errorf("Send to somebody who wrote = %v", err)
	}
	shared.sim.SetEnforcement(pn, wasim.Enforcement{TimeLock: &wasim.TimeLock{}})
	wantLimit(t, told, fleet.NumberLimit{Kind: fleet.LimitStrangers, Active: true, Detail: "DEFAULT"}) // no end is told
	shared.sim.SetEnforcement(pn, wasim.Enforcement{})
	wantLimit(t, told, fleet.NumberLimit{Kind: fleet.LimitStrangers})
	if err := g.send(stranger, "3EB4A3", "hello"); err != nil {
		t.Errorf("Send to a stranger when the lock is lifted = %v", err)
	}
}

func TestACapOnNewChatsIsToldAsItFillsAndRefusesStrangersBeyondIt(t *testing.T) {
	pn, first, second, third, friend := fresh(), fresh(), fresh(), fresh(), fresh()
	for _, person := range []string{first, second, third} {
		shared.sim.Phone(person)
	}
	n, told := shared.paired(t, pn), make(chan fleet.NumberLimit, 10)
	g := n.online(limits(told))
	g.talked(friend)
	ends := time.Now().Add(time.Hour).Truncate(time.Second)
	shared.sim.SetEnforcement(pn, wasim.Enforcement{NewChats: &wasim.NewChatCap{Quota: 2, Ends: ends}})
	t.Cleanup(func() { shared.sim.SetEnforcement(pn, wasim.Enforcement{}) })
	for i, person := range []string{first, second, first, friend} {
		if err := g.send(person, "3EB4B"+string(rune('1'+i)), "hello"); err != nil {
			t.Errorf("Send %d = %v", i, err)
		}
	}
	wantLimit(t, told, fleet.NumberLimit{Kind: fleet.LimitNewChats, Until: ends, Detail: "FIRST_WARNING", Used: 1, Quota: 2})
	wantLimit(t, told, fleet.NumberLimit{Kind: fleet.LimitNewChats, Active: true, Until: ends, Detail: "CAPPED", Used: 2, Quota: 2})
	mustFail(t, g.send(third, "3EB4B9", "hello"), fleet.OutcomeRefused, wa.SendNewChatCap, 475)
}

func TestATrustedContactTokenIsShownByTheNextGeneration(t *testing.T) {
	pn, friend := fresh(), fresh()
	n := shared.paired(t, pn)
	shared.sim.SetEnforcement(pn, wasim.Enforcement{Tokens: true, TimeLock: &wasim.TimeLock{}})
	t.Cleanup(func() { shared.sim.SetEnforcement(pn, wasim.Enforcement{}) })
	g := n.online()
	g.talked(friend)
	g.stop()
	g = n.online()
	if err := g.send(friend, "3EB4C1", "hello"); err != nil {
		t.Errorf("Send to somebody who gave a token = %v", err)
	}
	if frames := n.framesOf("3EB4C1"); len(frames) != 1 || frames[0].Token != "tc" {
		t.Errorf("frames %+v, want one that shows the token", frames)
	}
}

func TestAThrottledNumberTakesSomeAndRefusesOrSwallowsTheRest(t *testing.T) {
	pn, person := fresh(), fresh()
	shared.sim.Phone(person)
	n := shared.paired(t, pn)
	g := n.online()
	shared.sim.SetEnforcement(pn, wasim.Enforcement{Throttle: &wasim.Throttle{Accepts: 1, Code: 429}})
	t.Cleanup(func() { shared.sim.SetEnforcement(pn, wasim.Enforcement{}) })
	if err := g.send(person, "3EB4D1", "hello"); err != nil {
		t.Errorf("first Send = %v", err)
	}
	mustFail(t, g.send(person, "3EB4D2", "hello"), fleet.OutcomeRefused, wa.SendRateLimited, 429)
	shared.sim.SetEnforcement(pn, wasim.Enforcement{Throttle: &wasim.Throttle{}})
	if err := g.send(person, "3EB4D3", "hello"); err != nil {
		t.Errorf("Send of what is swallowed = %v, want an ack like any other", err)
	}
	if frames := n.framesOf("3EB4D3"); len(frames) != 1 || frames[0].Relayed {
		t.Errorf("frames %+v, want one that reached nobody", frames)
	}
}
