package webhook

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	ourSession = fleet.SessionID("0f0e0d0c-0b0a-4908-8706-050403020100")
	ourSlug    = fleet.SessionSlug("org-a-02")
	headSlug   = fleet.SessionSlug("org-a-01")
	waID       = "3EB0AABBCCDDEEFF001122"
)

// example is one event of a kind with everything that it may refer to.
func example(kind fleet.EventKind) (fleet.Event, store.EventSubject) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	ev := fleet.Event{
		ID: "evt_01jgexample0000000000000001", OrgID: "org-a", Kind: kind, SessionID: ourSession,
		ConversationID: "cnv_01jgexample0000000000000002", Seq: 7, CreatedAt: at,
	}
	sub := store.EventSubject{Session: &store.EventSession{ID: ourSession, Slug: ourSlug}, HeadSlug: headSlug}
	switch kind {
	case fleet.EventMessage, fleet.EventMessageUnprocessable:
		ev.Data = fleet.EventData{InboundID: "inm_01jgexample0000000000000003", Reason: "handler_failed", At: at.UnixMilli()}
		if kind == fleet.EventMessage {
			ev.Data.Reason = ""
		}
		sub.Inbound = &fleet.Inbound{
			ContactID: "ctc_01jgexample0000000000000007",
			ID:        ev.Data.InboundID, OrgID: "org-a", SessionID: ourSession, ConversationID: ev.ConversationID,
			Chat: "123456789012345@lid", Sender: "123456789012345@lid", SenderPhone: "5511900000001", SenderLID: "123456789012345",
			PushName: "Ana <&> 👩🏽‍🚀", WAID: waID, Kind: "text", Text: "Olá & <até> já\nمرحبا", Offline: true,
			SentAt: at.Add(-time.Hour), ReceivedAt: at,
		}
	case fleet.EventMessageStatus:
		ev.Data = fleet.EventData{
			MessageID: "msg_01jgexample0000000000000004", Status: fleet.StatusFailed, Outcome: fleet.OutcomeRefused,
			Code: "RECIPIENT_REFUSED", Detail: "WhatsApp refused the recipient.", At: at.UnixMilli(),
		}
		sub.Message = &store.EventMessage{To: "+55 11 9 0000 0001", Kind: "text", ClientRef: "order-17", WAID: waID}
	case fleet.EventMessageSuppressed:
		ev.Data = fleet.EventData{
			MessageID: "msg_01jgexample0000000000000004", Status: fleet.StatusSuppressed,
			Code: fleet.CodeOptedOut, Detail: "The recipient opted out of messages from this organization.", At: at.UnixMilli(),
		}
		sub.Message = &store.EventMessage{To: "+55 11 9 0000 0001", Kind: "text", ClientRef: "order-17", WAID: waID}
	case fleet.EventContactUpdated:
		ev.SessionID, sub.Session = "", nil
		ev.Data = fleet.EventData{
			Contact: "ctc_01jgexample0000000000000007", MergedContacts: []fleet.ContactID{"ctc_01jgexample0000000000000008"},
			MergedConversations: []fleet.ConversationID{"cnv_01jgexample0000000000000009"},
		}
		sub.Contact = &fleet.Contact{ID: ev.Data.Contact, OrgID: "org-a", Phone: "5511900000001", LID: "123456789012345"}
	case fleet.EventSessionStatus:
		ev.ConversationID = ""
		ev.Data = fleet.EventData{Observed: fleet.ObservedTempBanned, Reason: "temp_banned", WACode: 402, Until: at.Add(time.Hour).UnixMilli()}
	case fleet.EventSessionConflict:
		ev.ConversationID = ""
		ev.Data = fleet.EventData{Observed: fleet.ObservedConflict, Reason: "replaced"}
	case fleet.EventReconnectLoop:
		ev.ConversationID = ""
		ev.Data = fleet.EventData{Observed: fleet.ObservedReconnecting, Reason: "dial_failed", Detail: "connection refused", Attempts: 5}
	case fleet.EventReachoutRestricted, fleet.EventNewChatsCapped:
		ev.ConversationID = ""
		ev.Data = fleet.EventData{Until: at.Add(time.Hour).UnixMilli()}
	case fleet.EventFleetAlert:
		ev.OrgID, ev.ConversationID, ev.SessionID, sub.Session = "", "", "", nil
		ev.Data = fleet.EventData{Reason: fleet.AlertLogouts, Sessions: 20, Of: 100, Detail: "WhatsApp ended 20 of 100 logins within 5 minutes."}
	case fleet.EventEndpointDisabled:
		ev.ConversationID, ev.SessionID, sub.Session = "", "", nil
		ev.Data = fleet.EventData{Endpoint: "ep_01jgexample0000000000000005", Reason: store.DisabledFailing, At: at.UnixMilli()}
	}
	return ev, sub
}

func TestBodiesAreAsTheGoldenFilesSay(t *testing.T) {
	for _, scope := range []fleet.Scope{fleet.ScopeOrganization, fleet.ScopeOperator} {
		for _, kind := range fleet.EventKinds(scope) {
			ev, sub := example(kind)
			body, err := render(ev, scope, sub)
			if err != nil {
				t.Errorf("render(%s, %s) = %v", kind, scope, err)
				continue
			}
			var indented any
			if err := json.Unmarshal(body, &indented); err != nil {
				t.Fatal(err)
			}
			golden(t, string(kind)+"."+string(scope), body)
		}
	}
}

// golden compares a body with its file.
func golden(t *testing.T, name string, body []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".json")
	if *update {
		if err := os.WriteFile(path, append(body, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSuffix(string(want), "\n"), string(body)); diff != "" {
		t.Errorf("%s (-golden +rendered), -update writes it:\n%s", path, diff)
	}
}

func TestEachKindOfMessageIsAsItsGoldenFileSays(t *testing.T) {
	for kind, m := range map[string]fleet.Inbound{
		fleet.KindEdited:      {Text: "new", Version: 1_767_323_045_678, Content: &fleet.Content{About: waID}},
		fleet.KindRevoked:     {Content: &fleet.Content{About: waID}},
		fleet.KindReaction:    {Text: "👍🏽", Content: &fleet.Content{About: waID}},
		fleet.KindButtonReply: {Text: "Yes", Content: &fleet.Content{About: waID, Choice: "b1"}},
		fleet.KindListReply:   {Text: "Pizza", Content: &fleet.Content{About: waID, Choice: "r7"}},
		fleet.KindPoll:        {Text: "lunch?", Content: &fleet.Content{Options: []string{"yes", "no"}}},
		fleet.KindContact:     {Text: "Ana", Content: &fleet.Content{Contacts: []fleet.ContactCard{{Name: "Ana", VCard: "BEGIN:VCARD\nEND:VCARD"}}}},
		fleet.KindLocation:    {Text: "Sé", Content: &fleet.Content{Location: &fleet.Location{Latitude: -23.5, Longitude: -46.6, Name: "Sé", Address: "Praça da Sé"}}},
		fleet.KindSystem:      {Content: &fleet.Content{About: waID, Action: "pin"}},
		fleet.KindImage:       {Text: "us", Content: &fleet.Content{Media: &fleet.Media{MIME: "image/jpeg", Size: 90_210}}},
		fleet.KindVoice:       {Content: &fleet.Content{Media: &fleet.Media{MIME: "audio/ogg; codecs=opus", Size: 9_021, Seconds: 7}}},
		fleet.KindDocument:    {Text: "the bill", Content: &fleet.Content{Media: &fleet.Media{MIME: "application/pdf", Size: 1_024, FileName: "bill.pdf"}}},
		fleet.KindUnsupported: {Raw: []byte{1}},
	} {
		ev, sub := example(fleet.EventMessage)
		in := *sub.Inbound
		in.Kind, in.Text, in.Version, in.Content, in.Raw = kind, m.Text, m.Version, m.Content, m.Raw
		sub.Inbound = &in
		if in.Content != nil && in.Content.About != "" {
			sub.AboutID = "msg_01jgexample0000000000000006"
		}
		body, err := render(ev, fleet.ScopeOrganization, sub)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "message."+kind, body)
		if strings.Contains(string(body), waID) {
			t.Errorf("%s in organization scope names a message by WhatsApp's id: %s", kind, body)
		}
		if body, err = render(ev, fleet.ScopeOperator, sub); err != nil || strings.Contains(string(body), "aboutWaId") != (sub.AboutID != "") {
			t.Errorf("%s in operator scope = %s, %v, want WhatsApp's id of what it is about", kind, body, err)
		}
	}
}

func TestOrganizationScopeLearnsNothingOfTheFleet(t *testing.T) {
	for _, kind := range fleet.EventKinds(fleet.ScopeOrganization) {
		ev, sub := example(kind)
		body, err := render(ev, fleet.ScopeOrganization, sub)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{string(ourSession), string(ourSlug), "@lid", "@s.whatsapp.net", waID, "whsec_"} {
			if strings.Contains(string(body), secret) {
				t.Errorf("%s in organization scope holds %q: %s", kind, secret, body)
			}
		}
		var env struct{ SessionID string }
		want := headSlug
		if ev.SessionID == "" {
			want = ""
		}
		if err := json.Unmarshal(body, &env); err != nil || env.SessionID != string(want) {
			t.Errorf("%s: sessionId = %q, %v, want the head session %q", kind, env.SessionID, err, want)
		}
	}
}

func TestEveryEventSaysWhoseItIsAndWhereItStands(t *testing.T) {
	for _, scope := range []fleet.Scope{fleet.ScopeOrganization, fleet.ScopeOperator} {
		for _, kind := range fleet.EventKinds(scope) {
			ev, sub := example(kind)
			body, err := render(ev, scope, sub)
			if err != nil {
				t.Fatal(err)
			}
			var env map[string]any
			if err := json.Unmarshal(body, &env); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{"id": string(ev.ID), "event": string(kind), "seq": float64(7), "timestamp": "2026-01-02T03:04:05.678Z"}
			for key, value := range map[string]string{"orgId": string(ev.OrgID), "sessionId": string(ev.SessionID), "conversationId": string(ev.ConversationID)} {
				if value == "" {
					want[key] = nil
				} else {
					want[key] = value
				}
			}
			if ev.SessionID != "" {
				want["sessionId"] = string(headSlug)
				if scope == fleet.ScopeOperator {
					want["sessionId"] = string(ourSlug)
				}
			}
			delete(env, "payload")
			if diff := cmp.Diff(want, env); diff != "" {
				t.Errorf("envelope of %s in %s scope (-want +got):\n%s", kind, scope, diff)
			}
		}
	}
}

func TestTheLongestTextFitsTheBody(t *testing.T) {
	for _, char := range []string{"a", "\x01", "\u2028", "🚀", "\"", "<"} {
		ev, sub := example(fleet.EventMessage)
		sub.Inbound.Text = strings.Repeat(char, fleet.MaxTextLength)
		sub.Inbound.PushName = strings.Repeat("\x01", 256)
		body, err := render(ev, fleet.ScopeOperator, sub)
		if err != nil || len(body) > MaxBody {
			t.Errorf("%d times %q: %d bytes, %v, want at most %d", fleet.MaxTextLength, char, len(body), err, MaxBody)
			continue
		}
		var got struct {
			Payload struct {
				Text    string
				TextCut bool
			}
		}
		if err := json.Unmarshal(body, &got); err != nil || got.Payload.Text != sub.Inbound.Text || got.Payload.TextCut {
			t.Errorf("%q: the text does not come back whole: %v", char, err)
		}
		sub.Inbound.Text += char
		body, err = render(ev, fleet.ScopeOperator, sub)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(body, &got); err != nil || len(got.Payload.Text) != fleet.MaxTextLength*len(char) || !got.Payload.TextCut {
			t.Errorf("%q: one code point too many is not cut and marked: %v", char, err)
		}
	}
}

func TestWhatIsGoneIsSaidToBeGone(t *testing.T) {
	ev, sub := example(fleet.EventMessage)
	sub.Inbound = nil
	if _, err := render(ev, fleet.ScopeOrganization, sub); !errors.Is(err, errGone) {
		t.Errorf("render of a message that retention took = %v, want errGone", err)
	}
	ev, sub = example(fleet.EventMessageStatus)
	sub.Message = nil
	if body, err := render(ev, fleet.ScopeOrganization, sub); err != nil || !strings.Contains(string(body), `"status":"failed"`) {
		t.Errorf("render of a status whose message retention took = %s, %v, want the status all the same", body, err)
	}
	ev.Kind = "message.danced"
	if _, err := render(ev, fleet.ScopeOrganization, sub); err == nil {
		t.Error("render of an unknown kind = nil")
	}
}
