package fleet_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

func TestIDsHaveTheirPrefixAndSortByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shape := regexp.MustCompile(`^msg_[0-9a-hjkmnp-tv-z]{26}$`)
		var ids []string
		for range 50 {
			id := string(fleet.NewMessageID())
			if !shape.MatchString(id) {
				t.Errorf("NewMessageID() = %q, want %s", id, shape)
			}
			ids = append(ids, id)
			time.Sleep(time.Millisecond)
		}
		if !slices.IsSorted(ids) {
			t.Errorf("ids made one after the other do not sort: %v", ids)
		}
	})
	for prefix, id := range map[string]string{
		"prj_": string(fleet.NewProjectID()), "inm_": string(fleet.NewInboundID()), "cnv_": string(fleet.NewConversationID()),
		"cmd_": string(fleet.NewCommandID()), "evt_": string(fleet.NewEventID()), "ep_": string(fleet.NewEndpointID()),
		"dlv_": string(fleet.NewDeliveryID()), "key_": string(fleet.NewKeyID()),
	} {
		if !strings.HasPrefix(id, prefix) || len(id) != len(prefix)+26 {
			t.Errorf("id %q, want %q and 26 characters", id, prefix)
		}
	}
}

func TestIDsDoNotRepeat(t *testing.T) {
	seen := map[string]bool{}
	for range 10_000 {
		for _, id := range []string{string(fleet.NewMessageID()), string(fleet.NewSessionID()), fleet.NewWAID()} {
			if seen[id] {
				t.Fatalf("%s was made twice", id)
			}
			seen[id] = true
		}
	}
}

func TestSessionIDIsAUUIDv4WithRandomFirstBits(t *testing.T) {
	shape := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	first := map[byte]int{}
	for range 2_000 {
		id := string(fleet.NewSessionID())
		if !shape.MatchString(id) {
			t.Fatalf("NewSessionID() = %q, want a UUIDv4", id)
		}
		first[id[0]]++
	}
	if len(first) != 16 {
		t.Errorf("first digits of 2,000 session ids: %v, want all 16: the shard comes from them", first)
	}
}

func TestWAIDHasTheShapeOfALinkedDevice(t *testing.T) {
	shape := regexp.MustCompile(`^3EB0[0-9A-F]{18}$`)
	for range 100 {
		if id := fleet.NewWAID(); !shape.MatchString(id) {
			t.Fatalf("NewWAID() = %q, want %s", id, shape)
		}
	}
}

func TestValidSlug(t *testing.T) {
	for in, want := range map[string]bool{
		"org-a": true, "a": true, "0": true, "org-a-01": true, strings.Repeat("a", 63): true,
		"": false, " ": false, "*": false, "%": false, "Org": false, "org_a": false, "-org": false, "org-": false, "org--a": false,
		"órg": false, "a b": false, "a/b": false, "a.b": false, strings.Repeat("a", 64): false,
	} {
		if got := fleet.ValidSlug(in); got != want {
			t.Errorf("ValidSlug(%q) = %v, want %v", in, got, want)
		}
	}
}

func TestContactKeyPrefersThePhone(t *testing.T) {
	for _, tc := range []struct{ phone, lid, want string }{
		{"5511900000001", "100000000000001", "5511900000001"},
		{"", "100000000000001", "lid:100000000000001"},
		{"", "", ""},
	} {
		if got := fleet.ContactKey(tc.phone, tc.lid); got != tc.want {
			t.Errorf("ContactKey(%q, %q) = %q, want %q", tc.phone, tc.lid, got, tc.want)
		}
	}
}

func FuzzValidSlug(f *testing.F) {
	for _, seed := range []string{"org-a", "org-a-01", "", "-", "a--b", "a-", "A", "a*", "a%", "é", " a", strings.Repeat("a", 64)} {
		f.Add(seed)
	}
	pattern := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	f.Fuzz(func(t *testing.T, in string) {
		if got, want := fleet.ValidSlug(in), len(in) <= 63 && pattern.MatchString(in) && !strings.Contains(in, "\n"); got != want {
			t.Errorf("ValidSlug(%q) = %v, want %v", in, got, want)
		}
	})
}
