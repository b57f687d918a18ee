package auth_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/seal"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

type fixture struct {
	*auth.Auth
	store   *store.Store
	bus     *bus.Local
	lookup  seal.Key
	metrics *prometheus.Registry
}

func newFixture(t *testing.T, s *store.Store) *fixture {
	t.Helper()
	for _, org := range []fleet.OrgID{"org-a", "org-b"} {
		if _, err := s.CreateOrganization(t.Context(), fleet.Organization{ID: org, Strategy: fleet.StrategyWeighted}); err != nil {
			t.Fatal(err)
		}
	}
	f := &fixture{store: s, bus: bus.NewLocal(), lookup: seal.NewKey(), metrics: prometheus.NewRegistry()}
	t.Cleanup(func() { _ = f.bus.Close() })
	f.Auth = auth.New(auth.Options{Store: s, Bus: f.bus, Lookup: seal.NewLookup(f.lookup), Log: testkit.Logger(t), Registerer: f.metrics})
	return f
}

// run starts Run and joins it before the test ends.
func (f *fixture) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

func (f *fixture) create(t *testing.T, n auth.NewKey) (auth.Secret, fleet.APIKey) {
	t.Helper()
	secret, key, err := f.Create(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return secret, key
}

func (f *fixture) verifications(t *testing.T) int {
	t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families {
		if m.GetName() == "wafleet_auth_verifications_total" {
			return int(m.GetMetric()[0].GetCounter().GetValue())
		}
	}
	return 0
}

func TestKeySpeaksForItsOrganizationOrForTheAdmin(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newFixture(t, s)
		secret, key := f.create(t, auth.NewKey{Org: "org-a", Label: "crm"})
		got, err := f.Authenticate(t.Context(), secret.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fleet.Principal{KeyID: key.ID, OrgID: "org-a", ProjectID: key.ProjectID}, got); diff != "" {
			t.Errorf("principal (-want +got):\n%s", diff)
		}
		admin, adminKey := f.create(t, auth.NewKey{Admin: true})
		got, err = f.Authenticate(t.Context(), admin.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fleet.Principal{KeyID: adminKey.ID, Admin: true}, got); diff != "" {
			t.Errorf("principal (-want +got):\n%s", diff)
		}
		if _, _, err := f.Create(t.Context(), auth.NewKey{Org: "org-z"}); !errors.Is(err, fleet.ErrNotFound) {
			t.Errorf("Create for an unknown organization = %v, want ErrNotFound", err)
		}
	})
}

func TestKeyIsStoredAsTwoHashesAndNeverItself(t *testing.T) {
	f := newFixture(t, storetest.SQLite(t))
	secret, key := f.create(t, auth.NewKey{Org: "org-a", Label: "crm"})
	if want := seal.NewLookup(f.lookup).Hash(secret.Reveal()); !bytes.Equal(key.LookupHash, want) {
		t.Error("the lookup hash is not the HMAC under LOOKUP_KEY")
	}
	if want := "$argon2id$v=19$m=19456,t=2,p=1$"; !strings.HasPrefix(key.VerifyHash, want) {
		t.Errorf("verify hash does not begin with %q", want)
	}
	for _, column := range []string{key.Label, key.Prefix, key.VerifyHash, string(key.LookupHash), string(key.ID)} {
		if strings.Contains(column, secret.Reveal()[12:]) {
			t.Errorf("a stored column holds the key: %q", column)
		}
	}
}

func TestUnknownMalformedAndRevokedKeysGetTheSameAnswer(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newFixture(t, s)
		secret, key := f.create(t, auth.NewKey{Org: "org-a"})
		if _, err := f.Authenticate(t.Context(), secret.Reveal()); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Revoke(t.Context(), key.ID); err != nil {
			t.Fatal(err)
		}
		for name, presented := range map[string]string{
			"a revoked key":      secret.Reveal(),
			"an unknown key":     auth.Mint(false).Reveal(),
			"an unknown admin":   auth.Mint(true).Reveal(),
			"no key":             "",
			"its lookup hash":    string(key.LookupHash),
			"its public prefix":  key.Prefix,
			"its id":             string(key.ID),
			"a wildcard":         "%",
			"a key with a space": secret.Reveal() + " ",
		} {
			p, err := f.Authenticate(t.Context(), presented)
			if err != auth.ErrUnauthorized || p != (fleet.Principal{}) { //nolint:errorlint // the very same error, not a wrapped one
				t.Errorf("%s: Authenticate = %v, %v, want ErrUnauthorized and nothing else", name, p, err)
			}
		}
	})
}

func TestKeyIsProvenOnceHoweverOftenItsRowIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, storetest.SQLite(t))
		f.run(t)
		secret, _ := f.create(t, auth.NewKey{Org: "org-a"})
		for step := range 5 { // its row is read again at 12 s
			if _, err := f.Authenticate(t.Context(), secret.Reveal()); err != nil {
				t.Fatal(err)
			}
			if got := f.verifications(t); got != 1 {
				t.Errorf("verifications after %d s = %d, want 1", 4*step, got)
			}
			time.Sleep(4 * time.Second)
		}
	})
}

func TestRequestsAtOnceShareOneVerification(t *testing.T) {
	f := newFixture(t, storetest.SQLite(t))
	secret, _ := f.create(t, auth.NewKey{Org: "org-a"})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, err := f.Authenticate(t.Context(), secret.Reveal()); err != nil {
				t.Errorf("Authenticate = %v", err)
			}
		})
	}
	wg.Wait()
	if got := f.verifications(t); got != 1 {
		t.Errorf("verifications = %d, want 1", got)
	}
}

func TestACallerThatHangsUpFailsNobodyElse(t *testing.T) {
	f := newFixture(t, storetest.SQLite(t))
	secret, _ := f.create(t, auth.NewKey{Org: "org-a"})
	gone, cancel := context.WithCancel(t.Context())
	first := make(chan struct{})
	go func() {
		defer close(first)
		_, _ = f.Authenticate(gone, secret.Reveal())
	}()
	cancel()
	if _, err := f.Authenticate(t.Context(), secret.Reveal()); err != nil {
		t.Errorf("Authenticate beside a caller that hung up = %v", err)
	}
	<-first
}

func TestRevocationReachesOtherProcessesByNudgeAndWithoutItInASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, storetest.SQLite(t))
		f.run(t)
		other := func(b bus.Bus) *auth.Auth {
			a := auth.New(auth.Options{Store: f.store, Bus: b, Lookup: seal.NewLookup(f.lookup), Log: testkit.Logger(t)})
			g := &fixture{Auth: a}
			g.run(t)
			return a
		}
		deaf := bus.NewLocal() // a bus on which nobody tells anything
		t.Cleanup(func() { _ = deaf.Close() })
		near, far := other(f.bus), other(deaf)
		synctest.Wait() // all three listen

		secret, key := f.create(t, auth.NewKey{Org: "org-a"})
		for _, a := range []*auth.Auth{f.Auth, near, far} {
			if _, err := a.Authenticate(t.Context(), secret.Reveal()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.Revoke(t.Context(), key.ID); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := near.Authenticate(t.Context(), secret.Reveal()); !errors.Is(err, auth.ErrUnauthorized) {
			t.Errorf("after the nudge Authenticate = %v, want ErrUnauthorized", err)
		}
		time.Sleep(time.Second + time.Millisecond)
		if _, err := far.Authenticate(t.Context(), secret.Reveal()); !errors.Is(err, auth.ErrUnauthorized) {
			t.Errorf("a second later, without a nudge, Authenticate = %v, want ErrUnauthorized", err)
		}

		// What goes with a key reaches them the same way.
		secret, key = f.create(t, auth.NewKey{Org: "org-a"})
		limited := func(want int64) {
			t.Helper()
			if p, err := far.Authenticate(t.Context(), secret.Reveal()); err != nil || p.Requests != want {
				t.Errorf("Authenticate = %d requests a minute, %v, want %d", p.Requests, err, want)
			}
		}
		limited(0)
		perMinute := int64(60)
		if _, err := f.store.UpdateProject(t.Context(), "org-a", key.ProjectID, store.ProjectChange{Requests: &perMinute}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second + time.Millisecond)
		limited(60)
	})
}

func TestKeysOfThePreviousLookupKeyStillWork(t *testing.T) {
	f := newFixture(t, storetest.SQLite(t))
	secret, _ := f.create(t, auth.NewKey{Org: "org-a"})
	next := auth.New(auth.Options{Store: f.store, Bus: f.bus, Lookup: seal.NewLookup(seal.NewKey(), f.lookup), Log: testkit.Logger(t)})
	if _, err := next.Authenticate(t.Context(), secret.Reveal()); err != nil {
		t.Errorf("Authenticate after LOOKUP_KEY was rotated = %v", err)
	}
	lost := auth.New(auth.Options{Store: f.store, Bus: f.bus, Lookup: seal.NewLookup(seal.NewKey()), Log: testkit.Logger(t)})
	if _, err := lost.Authenticate(t.Context(), secret.Reveal()); !errors.Is(err, auth.ErrUnauthorized) {
		t.Errorf("Authenticate under another LOOKUP_KEY = %v, want ErrUnauthorized", err)
	}
}

func TestDatabaseThatDoesNotAnswerIsNotAWrongKey(t *testing.T) {
	f := newFixture(t, storetest.SQLite(t))
	secret, _ := f.create(t, auth.NewKey{Org: "org-a"})
	if err := f.store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Authenticate(t.Context(), secret.Reveal()); err == nil || errors.Is(err, auth.ErrUnauthorized) {
		t.Errorf("Authenticate without a database = %v, want another error than ErrUnauthorized", err)
	}
}

func TestBootstrapMakesOneAdminKeyAndNoMore(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		f := newFixture(t, s)
		secret, err := f.Bootstrap(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Authenticate(t.Context(), secret.Reveal())
		if err != nil || !p.Admin {
			t.Fatalf("Authenticate(first key) = %+v, %v, want an admin", p, err)
		}
		if again, err := f.Bootstrap(t.Context()); err != nil || again.Reveal() != "" {
			t.Errorf("Bootstrap again = a key %v, %v, want none", again.Reveal() != "", err)
		}
		if _, err := f.Revoke(t.Context(), p.KeyID); err != nil {
			t.Fatal(err)
		}
		if again, err := f.Bootstrap(t.Context()); err != nil || again.Reveal() == "" {
			t.Errorf("Bootstrap without a live admin key = a key %v, %v, want one", again.Reveal() != "", err)
		}
	})
}

func TestKeyIsNeverLogged(t *testing.T) {
	var log bytes.Buffer
	s := storetest.SQLite(t)
	f := newFixture(t, s)
	loud := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	closed := bus.NewLocal()
	if err := closed.Close(); err != nil { // so that revoking has something to log
		t.Fatal(err)
	}
	a := auth.New(auth.Options{Store: s, Bus: closed, Lookup: seal.NewLookup(f.lookup), Log: loud})
	secret, key, err := a.Create(t.Context(), auth.NewKey{Org: "org-a"})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = a.Authenticate(t.Context(), secret.Reveal())
	if _, err := a.Revoke(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	loud.Info("a secret as an attribute", slog.Any("key", secret))
	if !bytes.Contains(log.Bytes(), []byte("redacted")) || !bytes.Contains(log.Bytes(), []byte(key.ID)) {
		t.Errorf("log lacks what it should have:\n%s", log.String())
	}
	if bytes.Contains(log.Bytes(), []byte(secret.Reveal()[12:])) {
		t.Error("the key is in the log")
	}
}
