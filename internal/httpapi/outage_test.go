package httpapi_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/wafleet/wafleet/internal/auth"
	"github.com/wafleet/wafleet/internal/store/storetest"
)

// cable is a TCP connection to somewhere that can be pulled out.
type cable struct {
	net.Listener
	mu    sync.Mutex
	ends  []net.Conn
	group sync.WaitGroup
}

func newCable(t *testing.T, to string) *cable {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{Listener: l}
	c.group.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			c.mu.Lock()
			c.ends = append(c.ends, near, far)
			c.mu.Unlock()
			for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
				c.group.Go(func() { _, _ = io.Copy(pair[0], pair[1]) })
			}
		}
	})
	t.Cleanup(c.pull)
	return c
}

// pull ends every connection and takes no new one.
func (c *cable) pull() {
	_ = c.Close()
	c.mu.Lock()
	for _, end := range c.ends {
		_ = end.Close()
	}
	c.mu.Unlock()
	c.group.Wait()
}

func TestADatabaseThatIsAwayIs503WithRetryAfterForKnownAndUnknownKeys(t *testing.T) {
	dsn, err := url.Parse(storetest.PostgresURL(t))
	if err != nil {
		t.Fatal(err)
	}
	c := newCable(t, dsn.Host)
	dsn.Host = c.Addr().String()
	f := newFixture(t, storetest.Open(t, dsn.String()))
	f.must("org-a", "GET", "/api/v1/organization", nil) // its key is in memory now
	f.keys["stranger"] = auth.Mint(false).Reveal()
	c.pull()
	for _, as := range []string{"org-a", "stranger"} {
		a := f.do(as, "GET", "/api/v1/organization", nil)
		a.wantProblem(as, 503, "DATABASE_UNAVAILABLE")
		if a.header.Get("Retry-After") == "" || a.json()["retryAfterSeconds"] == nil {
			t.Errorf("%s: Retry-After = %q in %s", as, a.header.Get("Retry-After"), a.body)
		}
	}
	if a := f.do("org-a", "GET", "/openapi.json", nil); a.status != 200 {
		t.Errorf("the document without a database = %d", a.status)
	}
}
