package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"code.dny.dev/ssrf"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Bounds of one try.
const (
	ConnectTimeout = 5 * time.Second
	TryTimeout     = 15 * time.Second // everything, connecting included
	MaxAnswer      = 64 << 10         // bytes read of an answer's body, and of its header
)

const maxURL = 2048

// lookupTimeout bounds the name look-up of CheckURLHost.
const lookupTimeout = 3 * time.Second

// guardian decides by the IANA special-purpose registries. Private means loopback, RFC 1918 and
// unique local addresses; link-local, where cloud metadata lives, stays refused even then.
func guardian(allowPrivate bool) *ssrf.Guardian {
	opts := []ssrf.Option{ssrf.WithAnyPort()}
	if allowPrivate {
		opts = append(opts, ssrf.WithAllowedV4Prefixes(
			netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"),
			netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
		), ssrf.WithAllowedV6Prefixes(netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fc00::/7")))
	}
	return ssrf.New(opts...)
}

func badURL(code, detail string) error {
	return &fleet.InvalidError{Code: code, Field: "url", Detail: detail}
}

// The codes of a refused URL.
const (
	CodeURLInvalid   = "URL_INVALID"   // can't be read, or has parts that are not taken
	CodeURLForbidden = "URL_FORBIDDEN" // leads, or may lead, to an address that is not public
)

// CheckURL reports why a tenant's URL is not taken, as far as its text alone tells: what its name
// resolves to is checked by CheckURLHost, and again by the client at every dial. The error is an
// *fleet.InvalidError for field "url".
func CheckURL(raw string, allowPrivate bool) error {
	_, err := checkURL(raw, allowPrivate)
	return err
}

func checkURL(raw string, allowPrivate bool) (host string, err error) {
	bad := func(detail string) (string, error) { return "", badURL(CodeURLInvalid, detail) }
	if raw == "" {
		return bad("is empty: give an http or https URL")
	}
	if len(raw) > maxURL {
		return bad(fmt.Sprintf("has more than %d bytes", maxURL))
	}
	for i := range len(raw) {
		if c := raw[i]; c <= ' ' || c >= 0x7f || c == '\\' {
			return bad("has a character that must be written in another form: spaces as %20, names with letters beyond ASCII as xn--…")
		}
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return bad("is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("must begin with http:// or https://")
	case u.Opaque != "" || u.Host == "" || u.Hostname() == "":
		return bad("has no host")
	case u.User != nil:
		return bad("must not hold a user name or password")
	case u.Fragment != "" || strings.Contains(raw, "#"):
		return bad("must not have a fragment (#…)")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return bad("has a port that does not exist")
		}
	} else if strings.HasSuffix(u.Host, ":") {
		return bad("has a colon without a port")
	}
	host = strings.ToLower(u.Hostname())
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" || addr.Is4() == strings.HasPrefix(u.Host, "[") {
			return bad("has a host that is neither a name nor an IP address")
		}
		if guardian(allowPrivate).SafeAddr(addr) != nil {
			return "", badURL(CodeURLForbidden, "leads to an address that is not public")
		}
		return host, nil
	}
	return host, checkName(host, allowPrivate)
}

// checkName refuses names that are no DNS names, that resolvers may read as numbers, or that never
// lead to a public host.
func checkName(host string, allowPrivate bool) error {
	if len(host) > 253 {
		return badURL(CodeURLInvalid, "has a host name that is too long")
	}
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || label[0] == '-' || label[len(label)-1] == '-' {
			return badURL(CodeURLInvalid, "has a host that is neither a name nor an IP address")
		}
	}
	last := labels[len(labels)-1]
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return badURL(CodeURLInvalid, "has an IP address in an unusual form: write it as four decimal numbers")
	}
	if allowPrivate {
		return nil
	}
	if len(labels) == 1 {
		return badURL(CodeURLForbidden, "has a host name without a domain")
	}
	if slices.Contains([]string{"localhost", "local", "internal", "intranet", "lan", "home", "corp", "arpa", "onion"}, last) {
		return badURL(CodeURLForbidden, "has a host name that is not public")
	}
	return nil
}

// CheckURLHost is CheckURL and a look at what the host resolves to now: a name with any address that
// is not public is refused. A name that doesn't resolve now is taken; it may later, and every dial
// checks again.
func CheckURLHost(ctx context.Context, raw string, allowPrivate bool) error {
	host, err := checkURL(raw, allowPrivate)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil
	}
	g := guardian(allowPrivate)
	for _, addr := range addrs {
		if g.SafeAddr(addr.Unmap()) != nil {
			return badURL(CodeURLForbidden, "has a host name that leads to an address that is not public")
		}
	}
	return nil
}

// ClientOptions of NewClient.
type ClientOptions struct {
	AllowPrivate bool           // loopback and private addresses too: for tests and demos
	RootCAs      *x509.CertPool // nil: the system's
}

// NewClient returns the client for every URL that a tenant gave: it checks the address that is
// dialled, uses no proxy, follows no redirect, verifies certificates and has bounds for everything.
func NewClient(o ClientOptions) *http.Client {
	d := &net.Dialer{Timeout: ConnectTimeout, Control: guardian(o.AllowPrivate).Safe}
	return newClient(d.DialContext, o.RootCAs)
}

func newClient(dial func(ctx context.Context, network, addr string) (net.Conn, error), roots *x509.CertPool) *http.Client {
	return &http.Client{
		Timeout:       TryTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            dial,
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    ConnectTimeout,
			ResponseHeaderTimeout:  TryTimeout,
			MaxResponseHeaderBytes: MaxAnswer,
			DisableCompression:     true, // nothing that could grow while it is read
			ForceAttemptHTTP2:      true,
			MaxIdleConns:           256,
			MaxIdleConnsPerHost:    4,
			IdleConnTimeout:        30 * time.Second,
		},
	}
}

// plainError says what went wrong without the URL, whose path or query may hold a token.
func plainError(err error) string {
	switch {
	case errors.Is(err, ssrf.ErrProhibitedIP), errors.Is(err, ssrf.ErrProhibitedNetwork), errors.Is(err, ssrf.ErrInvalidHostPort):
		return "the address is not public"
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		if dns.IsNotFound {
			return "the host name does not resolve"
		}
		return "the host name could not be looked up"
	}
	if ue, ok := errors.AsType[*url.Error](err); ok {
		if ue.Timeout() {
			return "no answer in time"
		}
		return ue.Err.Error()
	}
	return err.Error()
}
