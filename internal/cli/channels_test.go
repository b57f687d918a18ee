package cli

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestActiveChannelsAreToldToAdminsOnTheOpsListener(t *testing.T) {
	up := start(t, nil, upArgs(t.TempDir())...)
	admin := up.find(`admin key, shown this once: (wfa_\S+)`)
	api, ops := up.find(apiURL), up.find(opsURL)
	up.waitReady()
	post := func(path, body string) map[string]any {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+admin)
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var out map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || resp.StatusCode >= 300 {
			t.Fatalf("POST %s = %d %v, %v", path, resp.StatusCode, out, err)
		}
		return out
	}
	if status, body := get(t, ops+channelsPath, admin); status != http.StatusOK || strings.TrimSpace(body) != `{"channels":[]}` {
		t.Errorf("without sessions: %d %s, want an empty list", status, body)
	}
	post("/api/admin/organizations", `{"orgId":"org-a","label":"A"}`)
	var slugs []string
	for range 3 {
		slugs = append(slugs, post("/api/admin/sessions", `{"orgId":"org-a"}`)["sessionId"].(string)) //nolint:forcetypeassert // a test
	}
	post("/api/admin/sessions/"+slugs[1]+"/stop", `{}`)

	consumer, _ := post("/api/admin/keys", `{"orgId":"org-a"}`)["key"].(string)
	for key, want := range map[string]int{consumer: http.StatusForbidden, "": http.StatusUnauthorized, "wfa_nonsense": http.StatusUnauthorized, admin: http.StatusOK} {
		status, body := get(t, ops+channelsPath, key)
		if status != want {
			t.Errorf("with a key of %d characters: %d %s, want %d", len(key), status, body, want)
		}
		if want != http.StatusOK {
			continue
		}
		var got struct{ Channels []string }
		if err := json.Unmarshal([]byte(body), &got); err != nil || len(got.Channels) != 2 || !slices.IsSorted(got.Channels) || len(got.Channels[0]) != 36 {
			t.Errorf("active channels = %s, %v, want the ids of the two that run", body, err)
		}
	}
}
