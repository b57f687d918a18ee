package cli

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alexedwards/argon2id"

	"github.com/wafleet/wafleet/internal/seal"
)

func TestImportOfPoolsIsADryRunUntilAppliedAndItsKeysWork(t *testing.T) {
	const key = "sk_live_0123456789abcdef"
	old := seal.NewKey()
	verify, err := argon2id.CreateHash(key, &argon2id.Params{Memory: 1024, Iterations: 1, Parallelism: 1, SaltLength: 16, KeyLength: 32})
	if err != nil {
		t.Fatal(err)
	}
	from, keyFile := t.TempDir(), filepath.Join(t.TempDir(), "old.key")
	for path, text := range map[string]string{
		filepath.Join(from, "session_pools.json"): `{"poolId":"customer-a","label":"Customer A","sessions":["customer-a-01"]}`,
		filepath.Join(from, "sessions.json"):      `{"sessionId":"customer-a-01","phone":"+5511900000001"}`,
		filepath.Join(from, "api_keys.json"):      fmt.Sprintf(`{"label":"crm","poolId":"customer-a","lookupHash":%q,"verifyHash":%q}`, hex.EncodeToString(seal.NewLookup(old).Hash(key)), verify),
		keyFile:                                   string(old[:]), // raw bytes
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	environ := []string{"LOOKUP_KEY_PREVIOUS=" + old.Encode()}
	up := start(t, environ, upArgs(dir)...)
	api := up.find(apiURL)
	up.waitReady()
	args := []string{"import", "pools", from, "--data-dir", dir}

	code, out, stderr := run(t, environ, args...)
	if code != exitOK || !strings.Contains(out, "+ organization customer-a") || !strings.Contains(out, "dry run") || !strings.Contains(out, "name its file with --lookup-key-file") ||
		!strings.Contains(out, "holds no WhatsApp login") || !strings.Contains(out, "64 hex digits, base64") {
		t.Errorf("dry run = %d with %q and\n%s", code, stderr, out)
	}
	if strings.Contains(out, "5511900000001") {
		t.Error("the output has a whole phone number")
	}
	code, _, stderr = run(t, environ, append(args, "--apply")...)
	if code != exitFailed || !strings.Contains(stderr, "--lookup-key-file") {
		t.Errorf("--apply without the old lookup key = %d with %q", code, stderr)
	}
	args = append(args, "--lookup-key-file", keyFile)
	code, _, stderr = run(t, nil, append(args, "--apply")...)
	if code != exitFailed || !strings.Contains(stderr, "LOOKUP_KEY_PREVIOUS") {
		t.Errorf("--apply where the old lookup key is not set = %d with %q", code, stderr)
	}
	if status, _ := get(t, api+"/api/v1/organization", key); status != http.StatusUnauthorized {
		t.Errorf("before the import the key answers %d, want 401", status)
	}
	for i, want := range []string{"+ organization customer-a", "= organization customer-a"} {
		code, out, stderr = run(t, environ, append(args, "--apply")...)
		if code != exitOK || !strings.Contains(out, want) || !strings.Contains(out, "Done.") {
			t.Errorf("--apply, time %d = %d with %q and\n%s", i+1, code, stderr, out)
		}
	}
	if status, body := get(t, api+"/api/v1/organization", key); status != http.StatusOK || !strings.Contains(body, "Customer A") {
		t.Errorf("the old key answers %d %s", status, body)
	}
	admin := up.find(`admin key, shown this once: (wfa_\S+)`)
	if _, body := get(t, api+"/api/admin/sessions/customer-a-01", admin); !strings.Contains(body, `"observed":"needs_pairing"`) {
		t.Errorf("the session is %s", body)
	}
	if _, body := get(t, api+"/api/admin/audit", admin); strings.Count(body, `"actor":"wafleet import pools"`) != 3 {
		t.Errorf("the audit log has %d entries of two imports, want the 3 of the first: %s", strings.Count(body, "wafleet import pools"), body)
	}
}
