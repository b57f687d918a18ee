package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
	"github.com/wafleet/wafleet/internal/wasim"
)

// consumer uses the API with the organization's key and keeps every answer whole.
type consumer struct {
	w    *world
	c    *client
	kept []string
}

// do asks and returns status and body. A path is kept too: what it is made of came from an earlier answer.
func (v *consumer) do(method, path, body string) (int, map[string]any) {
	v.w.t.Helper()
	req, err := http.NewRequestWithContext(v.w.t.Context(), method, "http://"+apiNames[0]+path, strings.NewReader(body))
	v.w.must(err)
	req.Header.Set("Authorization", "Bearer "+v.w.secret)
	if strings.HasSuffix(path, "/import") {
		req.Header.Set("Content-Type", "text/csv")
	} else if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := v.c.http.Do(req)
	v.w.must(err)
	raw, err := io.ReadAll(resp.Body)
	v.w.must(err)
	_ = resp.Body.Close()
	if strings.HasPrefix(path, "/api/") { // the documentation is the same for everybody
		v.kept = append(v.kept, fmt.Sprintf("%s %s = %s %v\n%s", method, path, resp.Status, resp.Header, raw))
	}
	var out map[string]any
	_ = json.Unmarshal(raw, &out) // a table is not JSON
	return resp.StatusCode, out
}

func (v *consumer) send(to, text string, want int) map[string]any {
	v.w.t.Helper()
	status, m := v.do(http.MethodPost, "/api/v1/messages", fmt.Sprintf(`{"to":%q,"text":%q}`, to, text))
	if status != want {
		v.w.t.Fatalf("send %q to %s = %d %v, want %d", text, to, status, m, want)
	}
	return m
}

// consumerBodies are bodies for operations that need one. An operation that is new and needs one belongs here.
var consumerBodies = map[string]string{
	"send-message":    `{"to":"+5511900000101","text":"once more"}`,
	"check-contacts":  `{"to":["+5511900000101"]}`,
	"create-endpoint": `{"url":"http://93.184.215.14/hook"}`,
	"update-endpoint": `{"description":"changed"}`,
	"add-opt-out":     `{"to":"+5511900000104"}`,
	"import-opt-outs": "+5511900000104\n",
	"explain-route":   `{"to":"+5511900000101"}`,
}

// TestNothingThatAConsumerSeesTellsTheNumbersApart drives an organization of three numbers through what it may meet, calls every
// operation that its key may, and looks in everything that came back, and in every webhook, for whatever names a number.
func TestNothingThatAConsumerSeesTellsTheNumbersApart(t *testing.T) {
	if raceDetector {
		t.Skip("runs without the race detector: it takes long with it, and races are looked for elsewhere")
	}
	url := storetest.SQLiteURL(t)
	var progress atomic.Int64
	stop := testkit.Watchdog(t, stuckAfter, &progress)
	defer stop()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, plan{Seed: 1}, url, slog.New(slog.DiscardHandler), &progress)
		defer w.close()
		w.receiver.set(func(v *receiver) { v.keep = true })
		w.start()
		v := &consumer{w: w, c: newClient(w, 0)}
		w.clients = append(w.clients, v.c)
		ids := v.live()
		v.everyOperation(ids)
		w.calm()

		heard := map[fleet.EventKind]bool{}
		for _, a := range w.receiver.first(hostOrganization) {
			heard[a.Event] = true
		}
		for _, kind := range fleet.EventKinds(fleet.ScopeOrganization) {
			if !heard[kind] {
				t.Errorf("no webhook of the kind %s was looked at", kind)
			}
		}
		secrets := w.secrets()
		var hooks, ops []string
		w.receiver.set(func(r *receiver) { hooks, ops = r.kept[hostOrganization], r.kept[hostOperator] })
		for _, text := range append(v.kept, hooks...) {
			text = strings.ReplaceAll(text, "such as +5511900000001", "") // an example, which is the first session's number here
			for what, secret := range secrets {
				if strings.Contains(text, secret) {
					t.Errorf("a consumer sees the %s %s:\n%s", what, secret, text)
				}
			}
		}
		told := slices.ContainsFunc(ops, func(text string) bool { return strings.Contains(text, secrets["slug of session-2"]) })
		if !told {
			t.Error("not even operators are told of the second session: this test looks for the wrong things")
		}
		t.Logf("%d answers and %d webhooks have none of %d things in them", len(v.kept), len(hooks), len(secrets))
	})
}

// secrets are what consumers must not see, by what it is. The first session is the organization's head, whose slug is shown.
func (w *world) secrets() map[string]string {
	w.t.Helper()
	all := map[string]string{}
	for i, n := range w.sessions {
		row := w.row(n.id)
		all["id of "+n.name] = string(n.id)
		all["number of "+n.name] = n.pn
		all["LID of "+n.name] = w.sim.Phone(n.pn).LID().User
		if i > 0 {
			all["slug of "+n.name] = string(row.Slug)
		}
	}
	for _, name := range workerNames {
		all["worker "+name] = name
	}
	for _, m := range w.messages() {
		all["WhatsApp id of "+string(m.ID)] = m.WAID
	}
	return all
}

// live lets happen what may happen to an organization of several numbers, and returns ids for the paths of operations.
func (v *consumer) live() map[string]string {
	w := v.w
	t, ctx := w.t, w.t.Context()
	slug := func(i int) fleet.SessionSlug { return w.row(w.sessions[i].id).Slug }
	change := func(i int, c store.SessionChange) {
		t.Helper()
		_, err := w.st.UpdateSession(ctx, slug(i), c)
		w.must(err)
	}
	hold := func(on bool, sessions ...int) {
		t.Helper()
		for _, i := range sessions {
			change(i, store.SessionChange{Paused: &on})
		}
		pause(3 * time.Second) // longer than rows are kept
	}
	to := func(i int) string { return "+" + w.people[i].pn }
	settled := func(m map[string]any) {
		t.Helper()
		w.await("a settled message", func() bool {
			_, got := v.do(http.MethodGet, "/api/v1/messages/"+m["messageId"].(string), "")
			return got["status"] != "queued" && got["status"] != "sending"
		})
	}

	// Everybody writes to every number, and hears from one.
	for i, p := range w.people[:5] {
		_, err := p.phone.SendText(context.WithoutCancel(ctx), w.sessions[i%3].pn, "hello from "+p.name)
		w.must(err)
	}
	pause(5 * time.Second)
	first := v.send(to(1), "the first", http.StatusAccepted)
	settled(first)
	// Their number stops: another one goes on, and the conversation stays what it is.
	was, err := w.st.GetMessage(ctx, org, fleet.MessageID(first["messageId"].(string)))
	w.must(err)
	from := slices.IndexFunc(w.sessions, func(n *number) bool { return n.id == was.SessionID })
	hold(true, from)
	second := v.send(to(1), "the second", http.StatusAccepted)
	settled(second)
	is, err := w.st.GetMessage(ctx, org, fleet.MessageID(second["messageId"].(string)))
	w.must(err)
	if is.SessionID == was.SessionID || second["conversationId"] != first["conversationId"] {
		t.Errorf("after a change of numbers (%t) the conversation is %v, want another number and %v", is.SessionID != was.SessionID, second["conversationId"], first["conversationId"])
	}
	hold(false, from)

	// Refusals of every kind.
	waits := v.send(to(2), "waits for an opt-out", http.StatusAccepted)
	settled(waits)
	hold(true, 0, 1, 2)
	v.send(to(0), "nobody can", http.StatusServiceUnavailable)
	hold(false, 0, 1, 2)
	none := fleet.Budget{PerMinute: 0, PerHour: 0, PerDay: 0}
	for i := range w.sessions {
		change(i, store.SessionChange{Budget: &none})
	}
	pause(3 * time.Second)
	v.do(http.MethodPost, "/api/v1/messages", fmt.Sprintf(`{"to":%q,"text":"nothing left"}`, to(0)))
	much := fleet.Budget{PerMinute: fleet.MaxBudget, PerHour: fleet.MaxBudget, PerDay: fleet.MaxBudget}
	for i := range w.sessions {
		change(i, store.SessionChange{Budget: &much})
	}
	pause(3 * time.Second)
	for _, bad := range []string{"status@broadcast", "120363000000000001@g.us", "nobody", "ctc_01k8z3v5hq2m6t9x4c7b0n1d8e"} {
		v.send(bad, "hello", http.StatusUnprocessableEntity)
	}
	settled(v.send("+5511900000999", "to somebody without an account", http.StatusAccepted))

	// WhatsApp restricts a number, and refuses another's messages.
	w.sim.SetEnforcement(w.sessions[1].pn, wasim.Enforcement{TimeLock: &wasim.TimeLock{}})
	w.sim.SetFault(wasim.Scope{Session: w.sessions[2].pn}, wasim.Fault{AckError: 429, AckErrorNext: 2})
	for i := range 6 {
		w.sim.Phone(fmt.Sprintf("55119000003%02d", i)).Power(true)
		v.send(fmt.Sprintf("+55119000003%02d", i), "hello stranger", http.StatusAccepted)
	}
	pause(time.Minute)

	// A message that waits when its person opts out.
	late := time.Now().Add(20 * time.Second).UTC().Format(time.RFC3339)
	if status, m := v.do(http.MethodPost, "/api/v1/messages", fmt.Sprintf(`{"to":%q,"text":"for later","sendAt":%q}`, to(2), late)); status != http.StatusAccepted {
		t.Fatalf("a message for later = %d %v", status, m)
	}
	_, err = w.people[2].phone.SendText(context.WithoutCancel(ctx), w.sessions[1].pn, "STOP")
	w.must(err)
	pause(5 * time.Second)
	v.send(to(2), "after STOP", http.StatusForbidden)
	pause(time.Minute)

	// Somebody whose number is hidden, and known later.
	hidden := w.people[5].phone
	hidden.HideNumber(true)
	_, err = hidden.SendText(context.WithoutCancel(ctx), w.sessions[2].pn, "guess who")
	w.must(err)
	pause(5 * time.Second)
	settled(v.send(to(5), "so it is you", http.StatusAccepted))
	hidden.HideNumber(false)
	_, err = hidden.SendText(context.WithoutCancel(ctx), w.sessions[1].pn, "it is me")
	w.must(err)
	pause(10 * time.Second)

	ids := map[string]string{"messageId": first["messageId"].(string), "to": strings.TrimPrefix(to(2), "+")}
	for _, e := range w.events() {
		if e.Kind == fleet.EventMessage && e.SessionID == w.sessions[1].id {
			ids["eventId"] = string(e.ID)
			// One that could not be read is told of in the same way; it takes more than a test to make one.
			e.ID, e.Seq, e.Kind = "", 0, fleet.EventMessageUnprocessable
			_, err := w.st.AppendEvent(ctx, e)
			w.must(err)
			break
		}
	}
	pause(5 * time.Second)
	return ids
}

// everyOperation calls each that is documented for an organization's key; what it lists gives ids for others.
func (v *consumer) everyOperation(ids map[string]string) {
	t := v.w.t
	_, doc := v.do(http.MethodGet, "/openapi.json", "")
	paths, _ := doc["paths"].(map[string]any)
	_, known := v.do(http.MethodGet, "/api/v1/deliveries", "")
	ids["deliveryId"] = known["items"].([]any)[0].(map[string]any)["deliveryId"].(string)
	_, checked := v.do(http.MethodPost, "/api/v1/contacts/check", consumerBodies["check-contacts"])
	ids["contactId"] = checked["items"].([]any)[0].(map[string]any)["contact"].(map[string]any)["contactId"].(string)
	_, made := v.do(http.MethodPost, "/api/v1/endpoints", consumerBodies["create-endpoint"])
	ids["endpointId"], _ = made["endpointId"].(string)
	called := 0
	for _, method := range []string{"get", "post", "patch", "put", "delete"} { // what deletes comes last
		for path, methods := range paths {
			op, ok := methods.(map[string]any)[method].(map[string]any)
			if !ok || !strings.HasPrefix(path, "/api/v1/") {
				continue
			}
			id, _ := op["operationId"].(string)
			body := consumerBodies[id]
			if request, _ := op["requestBody"].(map[string]any); request["required"] == true && body == "" {
				t.Errorf("%s needs a body: add one to consumerBodies", id)
			}
			for name, value := range ids {
				path = strings.ReplaceAll(path, "{"+name+"}", value)
			}
			if strings.Contains(path, "{") {
				t.Errorf("%s has a path of which this test knows no id: %s", id, path)
				continue
			}
			called++
			if status, got := v.do(strings.ToUpper(method), path, body); status/100 != 2 && id != "cancel-message" && id != "delete-message" {
				t.Errorf("%s %s = %d %v, want it to succeed", method, path, status, got)
			}
		}
	}
	if called < 20 {
		t.Errorf("%d operations were called, want all", called)
	}
}
