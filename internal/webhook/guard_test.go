package webhook

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"code.dny.dev/ssrf"

	"github.com/wafleet/wafleet/internal/fleet"
)

// refused lists URLs that lead, or could be read to lead, to something that is not public.
var refused = []string{
	"http://127.0.0.1/", "https://127.0.0.1:8443/hook", "http://0.0.0.0/", "http://[::1]/", "http://[::]/",
	"http://[::ffff:127.0.0.1]/", "http://[::ffff:10.0.0.1]/", "http://[64:ff9b::7f00:1]/", "http://[fe80::1]/", "http://[fc00::1]/",
	"http://169.254.169.254/latest/meta-data/", "http://10.1.2.3/", "http://172.16.0.1/", "http://192.168.1.1/", "http://100.64.0.1/",
	"http://224.0.0.1/", "http://255.255.255.255/", "http://198.18.0.1/",
	"http://2130706433/", "http://0x7f000001/", "http://0x7f.1/", "http://0177.0.0.1/", "http://127.1/", "http://010.0.0.1/", "http://1.2.3.4.5/",
	"http://localhost/", "http://LOCALHOST/", "http://localhost./", "http://a.localhost/", "http://printer.local/", "http://vault.internal/", "http://intranet/",
	"file:///etc/passwd", "gopher://example.com/", "ftp://example.com/", "javascript:alert(1)", "//example.com/", "example.com", "http:example.com", "http://", "https:///x", "",
	"http://user@example.com/", "http://user:secret@example.com/", "http://example.com:0/", "http://example.com:99999/", "http://example.com:/", "http://example.com/#x", "http://example.com#",
	"http://exa mple.com/", "http://example.com/\r\nX: y", "http://example.com\\@10.0.0.1/", "http://-a.example.com/", "http://a..example.com/", "http://example.com./", "http://ex%61mple.com/", "http://[fe80::1%25eth0]/",
	"http://[1.2.3.4]/", "http://é.example.com/", "http://example.com/\x00", "https://" + strings.Repeat("a", 3000) + ".example.com/",
}

func TestURLsThatMayLeadInsideAreRefusedAtCreate(t *testing.T) {
	for _, raw := range refused {
		err := CheckURL(raw, false)
		if invalid, ok := errors.AsType[*fleet.InvalidError](err); !ok || invalid.Field != "url" || (invalid.Code != CodeURLInvalid && invalid.Code != CodeURLForbidden) {
			t.Errorf("CheckURL(%.80q) = %v, want a refusal of field url", raw, err)
		}
	}
	for _, raw := range []string{
		"https://hooks.example.com/wafleet", "http://hooks.example.com:8080/a?b=c%20d", "https://8.8.8.8/", "https://[2606:4700::1111]:8443/x",
		"HTTPS://Hooks.Example.COM/", "https://xn--bcher-kva.example.com/", "https://a_b.example.com/",
	} {
		if err := CheckURL(raw, false); err != nil {
			t.Errorf("CheckURL(%q) = %v, want nil", raw, err)
		}
	}
	for _, raw := range []string{"http://127.0.0.1:9999/", "http://localhost:9999/", "http://[::1]:9999/", "http://10.0.0.1/", "http://receiver/"} {
		if err := CheckURL(raw, true); err != nil {
			t.Errorf("CheckURL(%q) with private addresses allowed = %v, want nil", raw, err)
		}
	}
	for _, raw := range []string{"http://169.254.169.254/", "http://0.0.0.0/", "http://[fe80::1]/", "file:///etc/passwd", "http://2130706433/", "http://user:x@10.0.0.1/"} {
		if err := CheckURL(raw, true); err == nil {
			t.Errorf("CheckURL(%q) with private addresses allowed = nil, want a refusal", raw)
		}
	}
}

func TestAddressesInsideAreRefusedAtUse(t *testing.T) {
	var hits atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer inside.Close()
	_, port, err := net.SplitHostPort(inside.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client := NewClient(ClientOptions{})
	for _, host := range []string{
		"127.0.0.1", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "169.254.169.254", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1",
		"localhost", "localhost.", "[64:ff9b::7f00:1]", "[fe80::1]",
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+host+":"+port+"/", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		if _, unknown := errors.AsType[*net.DNSError](err); unknown && host == "localhost." {
			continue // some resolvers know no such name, which is as good
		}
		if !errors.Is(err, ssrf.ErrProhibitedIP) {
			t.Errorf("POST to %s = %v, want it refused at the dial", host, err)
		} else if got := plainError(err); got != "the address is not public" {
			t.Errorf("plainError = %q", got)
		}
	}
	if hits.Load() != 0 {
		t.Errorf("%d requests came through", hits.Load())
	}
}

// fakeDNS makes every name resolve to what answer says, for this test.
func fakeDNS(t *testing.T, answer func(query int) netip4) {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var queries atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			end := 12
			for end < n && buf[end] != 0 {
				end += int(buf[end]) + 1
			}
			end += 5 // root label, type and class
			isA := buf[end-3] == 1
			reply := append([]byte{buf[0], buf[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, buf[12:end]...)
			if isA {
				ip := answer(int(queries.Add(1)))
				reply[7] = 1
				reply = append(reply, 0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, ip[0], ip[1], ip[2], ip[3])
			}
			_, _ = conn.WriteTo(reply, from)
		}
	}()
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp4", conn.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = before
		_ = conn.Close()
		<-done
	})
}

type netip4 [4]byte

func TestANameThatLeadsInsideIsRefusedAtCreateAndAtUse(t *testing.T) {
	const raw = "http://hooks.example.com:9/"
	fakeDNS(t, func(int) netip4 { return netip4{10, 0, 0, 1} })
	err := CheckURLHost(t.Context(), raw, false)
	if invalid, ok := errors.AsType[*fleet.InvalidError](err); !ok || invalid.Code != CodeURLForbidden {
		t.Errorf("CheckURLHost of a name that leads to 10.0.0.1 = %v, want %s", err, CodeURLForbidden)
	}
	if err := CheckURLHost(t.Context(), raw, true); err != nil {
		t.Errorf("the same with private addresses allowed = %v, want nil", err)
	}
	post(t, raw, ssrf.ErrProhibitedIP)
}

func TestANameThatChangesAfterTheCheckIsRefusedAtUse(t *testing.T) {
	const raw = "http://hooks.example.com:9/"
	fakeDNS(t, func(query int) netip4 {
		if query == 1 {
			return netip4{8, 8, 8, 8}
		}
		return netip4{127, 0, 0, 1}
	})
	if err := CheckURLHost(t.Context(), raw, false); err != nil {
		t.Errorf("CheckURLHost of a name that leads to 8.8.8.8 = %v, want nil", err)
	}
	post(t, raw, ssrf.ErrProhibitedIP)
}

func post(t *testing.T, raw string, want error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, raw, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := NewClient(ClientOptions{}).Do(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	if !errors.Is(err, want) {
		t.Errorf("POST %s = %v, want %v", raw, err, want)
	}
}

func TestErrorsDoNotQuoteTheURL(t *testing.T) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:1/?token=verysecret", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := NewClient(ClientOptions{AllowPrivate: true}).Do(req)
	if err == nil {
		_ = resp.Body.Close()
		t.Fatal("somebody listens on port 1")
	}
	if got := plainError(err); strings.Contains(got, "verysecret") || got == "" {
		t.Errorf("plainError = %q, want it without the URL", got)
	}
}

func FuzzCheckURL(f *testing.F) {
	for _, raw := range refused {
		f.Add(raw)
	}
	f.Add("https://hooks.example.com/wafleet")
	f.Add("https://[2606:4700::1111]:8443/x")
	f.Fuzz(func(t *testing.T, raw string) {
		if CheckURL(raw, false) != nil {
			return
		}
		u, err := url.Parse(raw)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || u.Hostname() == "" {
			t.Fatalf("CheckURL takes %q", raw)
		}
		if ip := net.ParseIP(u.Hostname()); ip != nil && (ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast()) {
			t.Fatalf("CheckURL takes the address in %q", raw)
		}
		if CheckURL(raw, true) != nil {
			t.Fatalf("CheckURL refuses %q only when private addresses are allowed", raw)
		}
	})
}
