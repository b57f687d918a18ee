package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// The headers of Standard Webhooks.
const (
	HeaderID        = "webhook-id"        // the event's id, the same at every try
	HeaderTimestamp = "webhook-timestamp" // unix seconds of this try
	HeaderSignature = "webhook-signature" // "v1,<base64>" for each live secret, space separated
)

// Tolerance is how old, or how far ahead, a timestamp may be that Verify accepts.
const Tolerance = 5 * time.Minute

const signatureVersion = "v1"

// ErrSignature says that a signature does not match, or the headers it needs are missing or not readable.
var ErrSignature = errors.New("webhook signature is not valid")

// key decodes a secret as Standard Webhooks writes it: "whsec_" and base64.
func key(secret string) ([]byte, error) {
	k, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil || len(k) == 0 {
		return nil, errors.New("secret is not whsec_ and base64") // err would quote the secret
	}
	return k, nil
}

func sign(key []byte, id string, unix int64, body []byte) string {
	m := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(m, "%s.%d.", id, unix) // a hash never fails to write
	m.Write(body)
	return base64.StdEncoding.EncodeToString(m.Sum(nil))
}

// Sign sets the three headers for a body that is sent at a time, with a signature of every secret.
func Sign(h http.Header, secrets []fleet.Secret, id string, at time.Time, body []byte) error {
	if len(secrets) == 0 {
		return errors.New("sign webhook: no secret")
	}
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		k, err := key(secret.Value)
		if err != nil {
			return fmt.Errorf("sign webhook: %w", err)
		}
		signatures[i] = signatureVersion + "," + sign(k, id, at.Unix(), body)
	}
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, strconv.FormatInt(at.Unix(), 10))
	h.Set(HeaderSignature, strings.Join(signatures, " "))
	return nil
}

// Verify is the receiver's side: it reports ErrSignature unless one of the signatures in h was made
// with secret for this body and id, no longer than Tolerance before or after now.
func Verify(h http.Header, secret string, body []byte, now time.Time) error {
	k, err := key(secret)
	if err != nil {
		return err
	}
	id, stamp, signatures := h.Get(HeaderID), h.Get(HeaderTimestamp), h.Get(HeaderSignature)
	unix, err := strconv.ParseInt(stamp, 10, 64)
	if id == "" || signatures == "" || err != nil {
		return fmt.Errorf("%w: headers are missing or not readable", ErrSignature)
	}
	if now.Unix()-unix > int64(Tolerance/time.Second) || unix-now.Unix() > int64(Tolerance/time.Second) {
		return fmt.Errorf("%w: timestamp is too far from now", ErrSignature)
	}
	want := []byte(sign(k, id, unix, body))
	for one := range strings.SplitSeq(signatures, " ") {
		version, value, ok := strings.Cut(one, ",")
		if ok && version == signatureVersion && hmac.Equal([]byte(value), want) {
			return nil
		}
	}
	return fmt.Errorf("%w: none of the signatures matches", ErrSignature)
}
