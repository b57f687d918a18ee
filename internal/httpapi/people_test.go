package httpapi_test

import (
	"encoding/csv"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

func TestOptOutsAreAddedListedTakenBackAndMovedAsATable(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newSender(t, s)
		added := f.must("org-a", "POST", "/api/v1/opt-outs", `{"to":"+5511900000001"}`)
		if added["optedOut"] != true || added["phone"] != "+5511900000001" || added["contactId"] == "" {
			t.Errorf("added = %v, want the contact, opted out", added)
		}
		a := f.do("org-a", "POST", "/api/v1/messages", `{"to":"551100000001@c.us","text":"hello"}`)
		a.wantProblem("a send to who opted out", http.StatusForbidden, fleet.CodeOptedOut)
		f.must("org-b", "POST", "/api/v1/messages", `{"to":"+5511900000001","text":"another organization"}`)

		table := "phone,name\n+5511900000002,Ana\n551100000001,Bia\n100000000000003@lid,\nnobody,\n\"broken\" x,\nctc_01k8z3v5hq2m6t9x4c7b0n1d8e,\n"
		a = f.do("org-a", "POST", "/api/v1/opt-outs/import", table, func(r *http.Request) { r.Header.Set("Content-Type", "text/csv") })
		var got struct {
			Added, Already, Wrong int
			Rows                  []struct{ Line int }
		}
		if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status != 200 || got.Added != 2 || got.Already != 1 || got.Wrong != 3 ||
			len(got.Rows) != 3 || got.Rows[0].Line != 5 || got.Rows[2].Line != 7 {
			t.Errorf("import = %d %s, %v, want 2 added, 1 already, and lines 5 to 7 wrong", a.status, a.body, err)
		}
		page := f.must("org-a", "GET", "/api/v1/opt-outs?limit=2", nil)
		rest := f.must("org-a", "GET", "/api/v1/opt-outs?limit=2&cursor="+page["nextCursor"].(string), nil)
		if len(page["items"].([]any)) != 2 || len(rest["items"].([]any)) != 1 || rest["nextCursor"] != nil {
			t.Errorf("pages = %v and %v, want two and one", page, rest)
		}
		if other := f.must("org-b", "GET", "/api/v1/opt-outs", nil); len(other["items"].([]any)) != 0 {
			t.Errorf("another organization sees %v", other)
		}

		out := f.do("org-a", "GET", "/api/v1/opt-outs/export", nil)
		rows, err := csv.NewReader(strings.NewReader(out.body)).ReadAll()
		if err != nil || len(rows) != 4 || rows[0][0] != "to" || !strings.HasPrefix(out.header.Get("Content-Type"), "text/csv") {
			t.Fatalf("export = %q, %v, want a head line and three rows", out.body, err)
		}
		a = f.do("org-b", "POST", "/api/v1/opt-outs/import", out.body, func(r *http.Request) { r.Header.Set("Content-Type", "text/csv") })
		if !strings.Contains(a.body, `"added":3`) {
			t.Errorf("import of the export = %s, want 3 added", a.body)
		}

		back := f.must("org-a", "DELETE", "/api/v1/opt-outs/"+added["contactId"].(string), nil)
		if back["optedOut"] != false {
			t.Errorf("taken back = %v", back)
		}
		a = f.do("org-a", "DELETE", "/api/v1/opt-outs/+5511900000001", nil)
		a.wantProblem("somebody who did not opt out", http.StatusNotFound, "NOT_FOUND")
		f.must("org-a", "POST", "/api/v1/messages", `{"to":"+5511900000001","text":"hello"}`)
		a = f.do("org-a", "POST", "/api/v1/opt-outs/import", `{}`)
		a.wantProblem("JSON instead of a table", http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE")
	})
}

func TestNumbersAreCheckedOnceByASessionThatIsConnected(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newSender(t, s)
		term := f.terms["org-a"]
		const body = `{"to":["+55 11 9 0000-0011","5511900000012"]}`
		answers := make(chan *answer, 1)
		go func() { answers <- f.do("org-a", "POST", "/api/v1/contacts/check", body) }()
		// What the session's worker does:
		var c fleet.Command
		testkit.Eventually(t, 10*time.Second, func() error {
			all, err := s.ClaimCommands(t.Context(), term, fleet.ClassControl, 1)
			if err == nil && len(all) == 0 {
				return fleet.ErrNotFound
			} else if err == nil {
				c = all[0]
			}
			return err
		})
		var asked fleet.CheckPayload
		if err := json.Unmarshal([]byte(c.Payload), &asked); err != nil || c.Kind != fleet.CommandCheck || len(asked.People) != 2 || asked.People[0].Phone != "5511900000011" {
			t.Errorf("command %s asks for %v, %v, want a check of both as they were written", c.Kind, asked, err)
		}
		_, err := s.Resolved(t.Context(), term, "org-a", []store.Sighting{
			{Person: fleet.Person{Phone: "551100000011", LID: "100000000000011"}, Asked: "5511900000011", Present: true},
			{Person: fleet.Person{Phone: "5511900000012"}, Asked: "5511900000012", Absent: true},
		})
		if err == nil {
			err = s.FinishCommand(t.Context(), term, c.ID, fleet.CommandDone, "{}", "", "")
		}
		if err != nil {
			t.Fatal(err)
		}
		first := (<-answers).json()
		for _, cached := range []bool{false, true} {
			items := first["items"].([]any)
			one, two := items[0].(map[string]any), items[1].(map[string]any)
			if one["onWhatsApp"] != true || one["cached"] != cached || one["contact"].(map[string]any)["phone"] != "+551100000011" ||
				two["onWhatsApp"] != false || two["cached"] != cached {
				t.Errorf("cached %v: %v, want the first there in WhatsApp's digits and the second not", cached, items)
			}
			first = f.must("org-a", "POST", "/api/v1/contacts/check", body) // nobody is asked again
		}
		id := first["items"].([]any)[0].(map[string]any)["contact"].(map[string]any)["contactId"].(string)
		if c := f.must("org-a", "GET", "/api/v1/contacts/"+id, nil); c["lid"] != "100000000000011" || c["onWhatsApp"] != true {
			t.Errorf("contact = %v", c)
		}
		f.do("org-b", "GET", "/api/v1/contacts/"+id, nil).wantProblem("another organization's contact", http.StatusNotFound, "NOT_FOUND")
		f.do("org-a", "POST", "/api/v1/messages", `{"to":"+5511900000012","text":"hello"}`).wantProblem("a number without account", http.StatusUnprocessableEntity, fleet.CodeNotOnWhatsApp)
		f.connect("org-a", fleet.ObservedReconnecting)
		f.do("org-a", "POST", "/api/v1/contacts/check", `{"to":["+5511900000013"]}`).wantProblem("nobody can ask", http.StatusServiceUnavailable, "NONE_ELIGIBLE")
	})
}

func TestAnOrganizationsRulesAboutPeopleAreChangedOneByOne(t *testing.T) {
	f := newSender(t, storetest.SQLite(t))
	got := f.must("admin", "PATCH", "/api/admin/organizations/org-a",
		`{"region":"BR","keywords":{"de":{"stop":["ABMELDEN"],"start":[]},"fr":{"stop":[],"start":[]}},"optOutConfirmation":"Bye."}`)
	words := got["keywords"].(map[string]any)
	if got["region"] != "BR" || got["optOutConfirmation"] != "Bye." || len(words) != 5 || len(words["fr"].(map[string]any)["stop"].([]any)) != 0 ||
		len(words["pt"].(map[string]any)["stop"].([]any)) == 0 {
		t.Errorf("after the change: %v, want what was set beside the defaults", got)
	}
	got = f.must("admin", "PATCH", "/api/admin/organizations/org-a", `{"optOutConfirmation":""}`)
	if got["region"] != "BR" || got["optOutConfirmation"] != nil || len(got["keywords"].(map[string]any)) != 5 {
		t.Errorf("after another: %v, want only the confirmation gone", got)
	}
	for _, tc := range [][2]string{
		{`{"region":"Brazil"}`, "REGION_INVALID"},
		{`{"keywords":{"Portuguese":{"stop":[],"start":[]}}}`, "KEYWORDS_INVALID"},
		{`{"keywords":{"pt":{"stop":["!!!"],"start":[]}}}`, "KEYWORDS_INVALID"},
		{`{"keywords":{"de":{"stop":["A","START"],"start":[]}}}`, "KEYWORDS_INVALID"},
		{`{"keywords":{"de":{"stop":["A"],"start":["a"]}}}`, "KEYWORDS_INVALID"},
		{`{"keywords":{"de":{"stop":[],"start":["Sair"]}}}`, "KEYWORDS_INVALID"},
		{`{"optOutConfirmation":"` + strings.Repeat("a", 4097) + `"}`, "CONFIRMATION_INVALID"},
	} {
		f.do("admin", "PATCH", "/api/admin/organizations/org-a", tc[0]).wantProblem(tc[0][:15], http.StatusUnprocessableEntity, tc[1])
	}
}
