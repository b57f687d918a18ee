package ledger

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Reservation is what was taken for one message. It is stored with the message and handed back once,
// to Settle. The zero value holds nothing.
type Reservation struct {
	Generation int64             // of the ledger that gave it: an INSERT under another one must fail
	Session    fleet.SessionSlug // "" if only limits were taken
	At         time.Time         // by the ledger's clock, in ms
	Lapses     time.Time         // whole seconds
	NewChat    bool

	Org     fleet.OrgID // of the token bucket, "" if none was taken
	Project fleet.ProjectID
	Month   string // of the quota, "" if none was taken
}

// IsZero reports whether nothing is held.
func (r Reservation) IsZero() bool { return r.Session == "" && r.Project == "" }

// String is the form that is stored; ParseReservation reads it. It is empty for the zero value.
func (r Reservation) String() string {
	if r.IsZero() {
		return ""
	}
	chat := "0"
	if r.NewChat {
		chat = "1"
	}
	return strings.Join([]string{
		"1", strconv.FormatInt(r.Generation, 10), string(r.Session), ms(r.At), ms(r.Lapses), chat,
		string(r.Org), string(r.Project), r.Month,
	}, "|")
}

// ParseReservation reads what String wrote.
func ParseReservation(s string) (Reservation, error) {
	if s == "" {
		return Reservation{}, nil
	}
	p := strings.Split(s, "|")
	if len(p) != 9 || p[0] != "1" {
		return Reservation{}, fmt.Errorf("reservation has %d parts of form %q, want 9 of form 1: %w", len(p), p[0], fleet.ErrInvalid)
	}
	var n [3]int64
	for i, text := range []string{p[1], p[3], p[4]} {
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return Reservation{}, fmt.Errorf("reservation: %w: %w", fleet.ErrInvalid, err)
		}
		n[i] = v
	}
	return Reservation{
		Generation: n[0], Session: fleet.SessionSlug(p[2]), At: unix(n[1]), Lapses: unix(n[2]), NewChat: p[5] == "1",
		Org: fleet.OrgID(p[6]), Project: fleet.ProjectID(p[7]), Month: p[8],
	}, nil
}

func ms(t time.Time) string {
	if t.IsZero() {
		return "0"
	}
	return strconv.FormatInt(t.UnixMilli(), 10)
}

func unix(v int64) time.Time {
	if v == 0 {
		return time.Time{}
	}
	return time.UnixMilli(v)
}
