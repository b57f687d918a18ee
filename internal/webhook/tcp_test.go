package webhook

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wafleet/wafleet/internal/bus"
	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/store/storetest"
	"github.com/wafleet/wafleet/internal/testkit"
)

// These tests use real sockets: TLS, and both databases.

func settled(t *testing.T, s *store.Store, done func(d fleet.Delivery) bool) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		list := deliveries(t, s, store.DeliveryQuery{})
		if len(list) == 0 {
			return errors.New("there is no delivery")
		}
		for _, d := range list {
			if !done(d) {
				return fmt.Errorf("delivery is %s with %d %q after %d tries", d.Status, d.LastStatus, d.LastError, d.Attempts)
			}
		}
		return nil
	})
}

func tcpOptions(t *testing.T, s *store.Store, owner string, o ClientOptions) Options {
	t.Helper()
	o.AllowPrivate = true
	b := bus.NewLocal()
	t.Cleanup(func() { _ = b.Close() })
	return Options{Store: s, Bus: b, Owner: owner, Client: NewClient(o), Log: testkit.Logger(t), Poll: 50 * time.Millisecond}
}

func TestAWrongCertificateIsAFailureAndNothingIsSent(t *testing.T) {
	var hits atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // it will complain about the handshake
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())

	s := storetest.SQLite(t)
	session := org(t, s, "org-a")
	endpoint(t, s, fleet.Endpoint{OrgID: "org-a", URL: server.URL + "/"})
	say(t, s, session, contact(1), "x")
	stop := run(t, tcpOptions(t, s, "w1", ClientOptions{}))
	settled(t, s, func(d fleet.Delivery) bool {
		return d.Status == fleet.DeliveryPending && strings.Contains(d.LastError, "certificate")
	})
	stop()
	if hits.Load() != 0 {
		t.Errorf("%d requests went to a server with a certificate that nobody signed", hits.Load())
	}
	if _, err := s.DB().Exec(t.Context(), `UPDATE deliveries SET due_at = 1`); err != nil { // its pause is another test's
		t.Fatal(err)
	}
	run(t, tcpOptions(t, s, "w2", ClientOptions{RootCAs: roots}))
	settled(t, s, func(d fleet.Delivery) bool { return d.Status == fleet.DeliveryDone })
}

func TestAHugeAnswerIsNotReadToItsEnd(t *testing.T) {
	var written atomic.Int64
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		chunk := make([]byte, 32<<10)
		for written.Load() < 1<<30 {
			n, err := w.Write(chunk)
			written.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	defer server.Close()
	s := storetest.SQLite(t)
	session := org(t, s, "org-a")
	endpoint(t, s, fleet.Endpoint{OrgID: "org-a", URL: server.URL + "/"})
	say(t, s, session, contact(1), "x")
	run(t, tcpOptions(t, s, "w1", ClientOptions{}))
	settled(t, s, func(d fleet.Delivery) bool { return d.Status == fleet.DeliveryDone && d.LastStatus == 200 })
	<-ended
	if n := written.Load(); n > 64<<20 { // what the sockets' buffers took, far from the gigabyte
		t.Errorf("the receiver wrote %d MiB before the connection was closed", n>>20)
	}
}

func TestAnEndpointThatRefusesConnectionsIsTriedAgain(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	url := server.URL
	server.Close()
	s := storetest.SQLite(t)
	session := org(t, s, "org-a")
	e := endpoint(t, s, fleet.Endpoint{OrgID: "org-a", URL: url})
	say(t, s, session, contact(1), "x")
	run(t, tcpOptions(t, s, "w1", ClientOptions{}))
	settled(t, s, func(d fleet.Delivery) bool {
		return d.Status == fleet.DeliveryPending && d.Attempts == 1 && strings.Contains(d.LastError, "refused") && d.LastStatus == 0
	})
	if got, err := s.GetEndpoint(t.Context(), "", e.ID); err != nil || got.Failures != 1 || got.FailingSince.IsZero() {
		t.Errorf("endpoint = %+v, %v, want one failure counted", got, err)
	}
}

func TestAPrivateAddressIsRefusedAtUseEvenIfItGotIn(t *testing.T) {
	var hits atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer server.Close()
	s := storetest.SQLite(t)
	session := org(t, s, "org-a")
	endpoint(t, s, fleet.Endpoint{OrgID: "org-a", URL: server.URL + "/"})
	say(t, s, session, contact(1), "x")
	o := tcpOptions(t, s, "w1", ClientOptions{})
	o.Client = nil // the one that New makes
	run(t, o)
	settled(t, s, func(d fleet.Delivery) bool { return d.LastError == "the address is not public" })
	if hits.Load() != 0 {
		t.Errorf("%d requests came through", hits.Load())
	}
}

func TestAWorkerThatDiesLosesNothing(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		rx := &receiver{answer: map[string]func(http.ResponseWriter, *http.Request, *request){}}
		server := httptest.NewServer(rx)
		defer server.Close()
		host := strings.TrimPrefix(server.URL, "http://")
		session := org(t, s, "org-a")
		endpoint(t, s, fleet.Endpoint{OrgID: "org-a", URL: server.URL + "/", MaxConcurrency: 16})
		owed := map[fleet.EventID]int{}
		for i := range 60 {
			owed[say(t, s, session, contact(i%20), fmt.Sprint(i))] = 0
		}
		// One worker takes deliveries, posts some of them, and dies before it writes anything down.
		dying := New(tcpOptions(t, s, "dying", ClientOptions{}))
		held, err := s.ClaimDeliveries(t.Context(), store.ClaimDeliveryQuery{Owner: "dying", Limit: 10, LockFor: 500 * time.Millisecond})
		if err != nil || len(held) != 10 {
			t.Fatalf("ClaimDeliveries = %d, %v, want 10", len(held), err)
		}
		for _, c := range held[:5] {
			body, err := dying.body(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if got := dying.post(t.Context(), c, body); got.status != 200 {
				t.Fatalf("post = %+v, want 200", got)
			}
		}
		dying.o.Client.CloseIdleConnections()
		for _, owner := range []string{"w1", "w2"} {
			o := tcpOptions(t, s, owner, ClientOptions{})
			o.Concurrency = 8
			run(t, o)
		}
		settled(t, s, func(d fleet.Delivery) bool { return d.Status == fleet.DeliveryDone })
		for _, q := range rx.requests(host) {
			owed[q.ID]++
		}
		twice := 0
		for id, n := range owed {
			if n == 0 {
				t.Errorf("event %s was lost", id)
			}
			twice += n - 1
		}
		if len(owed) != 60 || twice != 5 {
			t.Errorf("%d events, %d deliveries too many, want 60 and the 5 that the dead worker could not write down", len(owed), twice)
		}
		if ok, err := s.FinishDelivery(t.Context(), held[0], store.DeliveryResult{Status: 200}, false); ok || err != nil {
			t.Errorf("the dead worker's late ack = %v, %v, want no effect", ok, err)
		}
	})
}

func TestAVerifierInTheReceiverSeesWhatWasSent(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		session := org(t, s, "org-a")
		results := make(chan error, 10)
		secret := make(chan string, 1)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err == nil {
				k := <-secret
				secret <- k
				err = Verify(r.Header, k, body, time.Now())
			}
			results <- err
		}))
		defer server.Close()
		e := endpoint(t, s, fleet.Endpoint{OrgID: "org-a", URL: server.URL})
		secret <- e.Secrets[0].Value
		run(t, tcpOptions(t, s, "w1", ClientOptions{}))
		say(t, s, session, contact(1), strings.Repeat("🚀", 1000))
		if err := <-results; err != nil {
			t.Errorf("Verify of what came over the wire = %v", err)
		}
	})
}
