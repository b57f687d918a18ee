package webhook

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/wafleet/wafleet/internal/fleet"
)

const (
	secretA = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secretB = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
)

func signed(t *testing.T, at time.Time, body string, secrets ...string) http.Header {
	t.Helper()
	h := http.Header{}
	var list []fleet.Secret
	for _, s := range secrets {
		list = append(list, fleet.Secret{Value: s})
	}
	if err := Sign(h, list, "evt_1", at, []byte(body)); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestThePublicLibraryAndOurVerifyAgreeOnSignatures(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		name   string
		change func(h http.Header, body *string)
		secret string
		at     time.Time
		good   bool
	}{
		{"the current secret", nil, secretA, now, true},
		{"the one before, during a rotation", nil, secretB, now, true},
		{"another secret", nil, "whsec_Zm9yZWlnbg==", now, false},
		{"one altered byte", func(_ http.Header, body *string) { *body = strings.Replace(*body, "1", "2", 1) }, secretA, now, false},
		{"another event id", func(h http.Header, _ *string) { h.Set(HeaderID, "evt_2") }, secretA, now, false},
		{"another time", func(h http.Header, _ *string) { h.Set(HeaderTimestamp, strconv.FormatInt(now.Unix()+1, 10)) }, secretA, now, false},
		{"ten minutes old", nil, secretA, now.Add(-10 * time.Minute), false},
		{"ten minutes ahead", nil, secretA, now.Add(10 * time.Minute), false},
		{"no signature", func(h http.Header, _ *string) { h.Del(HeaderSignature) }, secretA, now, false},
		{"another version only", func(h http.Header, _ *string) {
			h.Set(HeaderSignature, strings.ReplaceAll(h.Get(HeaderSignature), "v1,", "v2,"))
		}, secretA, now, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			body := `{"n":1}`
			h := signed(t, tc.at, body, secretA, secretB)
			if tc.change != nil {
				tc.change(h, &body)
			}
			public, err := standardwebhooks.NewWebhook(tc.secret)
			if err != nil {
				t.Fatal(err)
			}
			if err := public.Verify([]byte(body), h); (err == nil) != tc.good {
				t.Errorf("the public library's Verify = %v, want good = %v", err, tc.good)
			}
			err = Verify(h, tc.secret, []byte(body), now)
			if (err == nil) != tc.good || (err != nil && !errors.Is(err, ErrSignature)) {
				t.Errorf("Verify = %v, want good = %v", err, tc.good)
			}
		})
	}
}

func TestErrorsDoNotQuoteSecrets(t *testing.T) {
	const broken = "whsec_not*base64*but*secret"
	err := Sign(http.Header{}, []fleet.Secret{{Value: broken}}, "evt_1", time.Now(), nil)
	if err == nil || strings.Contains(err.Error(), "secret*") || strings.Contains(err.Error(), "not*") {
		t.Errorf("Sign with a broken secret = %v, want an error without it", err)
	}
	if err := Sign(http.Header{}, nil, "evt_1", time.Now(), nil); err == nil {
		t.Error("Sign without secrets = nil: an unsigned body would be sent")
	}
}

func FuzzVerify(f *testing.F) {
	h := http.Header{}
	if err := Sign(h, []fleet.Secret{{Value: secretA}, {Value: secretB}}, "evt_1", time.Unix(1_700_000_000, 0), []byte("{}")); err != nil {
		f.Fatal(err)
	}
	f.Add(h.Get(HeaderID), h.Get(HeaderTimestamp), h.Get(HeaderSignature), []byte("{}"))
	f.Add("evt_1", "1700000000", "v1,", []byte(nil))
	f.Add("", "-1", "v1 v1,a,b v2,x", []byte("x"))
	public, err := standardwebhooks.NewWebhook(secretA)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, id, stamp, signatures string, body []byte) {
		h := http.Header{}
		h.Set(HeaderID, id)
		h.Set(HeaderTimestamp, stamp)
		h.Set(HeaderSignature, signatures)
		now := time.Unix(1_700_000_000, 0)
		if unix, err := strconv.ParseInt(stamp, 10, 64); err == nil {
			now = time.Unix(unix, 0)
		}
		ours, theirs := Verify(h, secretA, body, now), public.VerifyIgnoringTimestamp(body, h)
		if ours == nil && theirs != nil {
			t.Errorf("Verify takes %q %q %q, which the public library refuses: %v", id, stamp, signatures, theirs)
		}
	})
}
