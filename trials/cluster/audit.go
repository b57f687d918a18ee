package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/wafleet/wafleet/internal/wasim"
)

// Kinds of findings.
const (
	Lost     = "lost"     // accepted or written, and not seen by whom it was for
	Doubled  = "doubled"  // seen twice: by a person, as a row, or as two events
	Stale    = "stale"    // a frame of an epoch that a later login superseded, or of somebody who had no lease
	Met      = "met"      // two connections of one session met
	Unfinal  = "unfinal"  // a message that is not final
	Untold   = "untold"   // no webhook told of it
	Disorder = "disorder" // a gap in seq, or a status that went backwards
	Foreign  = "foreign"  // something that nobody sent or wrote
)

// Finding is one thing that is not as it must be.
type Finding struct{ Kind, Text string }

// Report is what an audit found.
type Report struct {
	Sent, Said int // messages that were accepted from clients, and written by people
	Frames     int // entries of the simulator's log that are from clients
	Events     int // different events that were told
	Findings   []Finding
}

// Count says how many findings are of these kinds; without kinds, all.
func (r *Report) Count(kinds ...string) (n int) {
	for _, f := range r.Findings {
		if len(kinds) == 0 || slices.Contains(kinds, f.Kind) {
			n++
		}
	}
	return n
}

// String lists the findings, a line each, at most forty.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d messages out, %d in, %d frames, %d events, %d findings", r.Sent, r.Said, r.Frames, r.Events, len(r.Findings))
	for i, f := range r.Findings {
		if i == 40 {
			b.WriteString("\n  …")
			break
		}
		fmt.Fprintf(&b, "\n  %s: %s", f.Kind, f.Text)
	}
	return b.String()
}

func (r *Report) found(kind, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{kind, fmt.Sprintf(format, args...)})
}

// Audit joins what clients and people know with the rows, the simulator's log and the webhooks. Call it when the
// cluster has settled.
func (c *Cluster) Audit(ctx context.Context) (*Report, error) {
	r := &Report{}
	log, err := c.Log(ctx, 0, "")
	if err != nil {
		return nil, err
	}
	for _, check := range []func(context.Context, *Report, []wasim.Entry) error{c.auditMessages, c.auditFrames, c.auditEvents} {
		if err := check(ctx, r, log); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// outRow and inRow are messages as the database has them.
type (
	outRow struct {
		slug, id, waID, status string
		attempts               int
	}
	inRow struct{ slug, id, waID, kind string }
)

func (c *Cluster) outRows(ctx context.Context) (map[string][]outRow, error) {
	all, err := rows(ctx, c, `SELECT s.slug, m.id, m.wa_id, m.status, (SELECT count(*) FROM attempts a WHERE a.message_id = m.id)
		FROM messages m JOIN sessions s ON s.id = m.session_id ORDER BY m.seq`, func(scan func(...any) error) (m outRow, err error) {
		return m, scan(&m.slug, &m.id, &m.waID, &m.status, &m.attempts)
	})
	by := map[string][]outRow{}
	for _, m := range all {
		by[m.slug] = append(by[m.slug], m)
	}
	return by, err
}

func (c *Cluster) inRows(ctx context.Context) (map[string][]inRow, error) {
	all, err := rows(ctx, c, `SELECT s.slug, i.id, i.wa_id, i.kind FROM inbound_messages i JOIN sessions s ON s.id = i.session_id ORDER BY i.n`,
		func(scan func(...any) error) (m inRow, err error) { return m, scan(&m.slug, &m.id, &m.waID, &m.kind) })
	by := map[string][]inRow{}
	for _, m := range all {
		by[m.slug] = append(by[m.slug], m)
	}
	return by, err
}

// auditMessages: every accepted message is a row, was seen by its person exactly once, and is final; every message
// that a person wrote is a row exactly once; and nobody sees or receives anything else.
func (c *Cluster) auditMessages(ctx context.Context, r *Report, log []wasim.Entry) error {
	frames, seen := map[string]int{}, map[string]map[string][]string{} // by id; by phone and text: the ids
	for _, e := range log {
		switch {
		case e.Kind == wasim.KindMessage && e.Dir == wasim.DirIn && e.Type != "peer":
			frames[e.ID]++
		case e.Kind == wasim.KindDecrypted && !e.Duplicate:
			if seen[e.Session] == nil {
				seen[e.Session] = map[string][]string{}
			}
			seen[e.Session][e.Text] = append(seen[e.Session][e.Text], e.ID)
		}
	}
	out, err := c.outRows(ctx)
	if err != nil {
		return err
	}
	in, err := c.inRows(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.Numbers {
		r.Sent += len(n.sent)
		r.Said += len(n.said)
		auditOut(r, n, out[n.Slug], frames, seen[n.Person])
		auditIn(r, n, in[n.Slug])
	}
	return nil
}

func auditOut(r *Report, n *Number, out []outRow, frames map[string]int, shown map[string][]string) {
	known, wanted := map[string]bool{}, map[string]bool{}
	for _, m := range out {
		known[m.id] = true
		if _, ok := n.sent[m.id]; !ok {
			r.found(Foreign, "%s has message %+v, which no client was told of", n.Slug, m)
		}
		if !slices.Contains([]string{"delivered", "read", "played"}, m.status) {
			r.found(Unfinal, "message %+v", m)
		}
		if frames[m.waID] > m.attempts {
			r.found(Foreign, "message %+v left in %d frames, more than were recorded", m, frames[m.waID])
		}
	}
	for id, text := range n.sent {
		wanted[text] = true
		switch ids := shown[text]; {
		case !known[id]:
			r.found(Lost, "%s has no row for %q, accepted as %s", n.Slug, text, id)
		case len(ids) == 0:
			r.found(Lost, "%q, accepted as %s, was never seen by %s", text, id, n.Person)
		case len(ids) > 1:
			r.found(Doubled, "%q, accepted as %s, was seen %d times by %s, as %v", text, id, len(ids), n.Person, ids)
		}
	}
	for text, ids := range shown {
		if !wanted[text] {
			r.found(Foreign, "%s sees %q, as %v, which nobody sent", n.Person, text, ids)
		}
	}
}

func auditIn(r *Report, n *Number, in []inRow) {
	stored := map[string]int{}
	for _, m := range in {
		if n.said[m.waID] == "" {
			r.found(Foreign, "%s received %+v, which nobody wrote", n.Slug, m)
		}
		if stored[m.waID]++; stored[m.waID] == 2 {
			r.found(Doubled, "%s received %s twice", n.Slug, m.waID)
		}
	}
	for id, text := range n.said {
		if stored[id] == 0 {
			r.found(Lost, "%s never received %q, written as %s", n.Slug, text, id)
		}
	}
}

// auditFrames joins what reached WhatsApp with the log of leases: every frame comes from whom the lease named, and none
// under an epoch that a later claim or login superseded.
func (c *Cluster) auditFrames(ctx context.Context, r *Report, log []wasim.Entry) error {
	type term struct {
		session string
		epoch   int64
	}
	type claimed struct {
		term
		owner string
		at    int64
	}
	claims, err := rows(ctx, c, `SELECT session_id, epoch, owner, at FROM lease_log`, func(scan func(...any) error) (l claimed, err error) {
		return l, scan(&l.session, &l.epoch, &l.owner, &l.at)
	})
	if err != nil {
		return err
	}
	owner, next := map[term]string{}, map[term]time.Time{} // who was named, and when the epoch was superseded
	for _, l := range claims {
		owner[l.term] = l.owner
		next[term{l.session, l.epoch - 1}] = time.UnixMilli(l.at)
	}
	newest := map[string]int64{}
	for _, e := range log {
		fromClient := e.Dir == wasim.DirIn || e.Kind == wasim.KindDial || e.Kind == wasim.KindLogin || e.Kind == wasim.KindPair
		switch {
		case e.Kind == wasim.KindStream && e.Type == "replaced":
			r.found(Met, "%+v", e)
			continue
		case e.Kind != wasim.KindIgnored && e.Kind != wasim.KindFailure && !fromClient:
			continue
		}
		r.Frames++
		t := term{e.SessionID, e.Epoch}
		over, superseded := next[t]
		switch want := owner[t]; {
		case e.Kind == wasim.KindIgnored || e.Kind == wasim.KindFailure:
			r.found(Stale, "%+v", e)
		case e.SessionID == "" || e.Worker != want:
			r.found(Stale, "%s of session %q at epoch %d is from %q, want %q: %+v", e.Kind, e.SessionID, e.Epoch, e.Worker, want, e)
		case e.Epoch < newest[e.SessionID]:
			r.found(Stale, "%s under epoch %d after a login under epoch %d: %+v", e.Kind, e.Epoch, newest[e.SessionID], e)
		case superseded && e.At.Sub(over) > lateFrame:
			r.found(Stale, "%s under epoch %d, %s after the next was claimed: %+v", e.Kind, e.Epoch, e.At.Sub(over), e)
		}
		if e.Kind == wasim.KindLogin {
			newest[e.SessionID] = max(newest[e.SessionID], e.Epoch)
		}
	}
	return nil
}

// lateFrame is how much later than its last fenced statement a frame may be in the simulator's log. Leases that ran out
// are no question: their owner stops a margin earlier. One that was taken early is.
const lateFrame = 500 * time.Millisecond

// rank orders the statuses of a message that goes well.
var rank = map[string]int{"queued": 1, "sending": 2, "sent": 3, "delivered": 4, "read": 5, "played": 6}

// auditEvents: every message of a person was told as one event; every message's last status was told; statuses only
// went forward; and each stream came in order and without a gap. The same event may have come again.
func (c *Cluster) auditEvents(ctx context.Context, r *Report, _ []wasim.Entry) error {
	out, err := c.outRows(ctx)
	if err != nil {
		return err
	}
	known, last := map[string]bool{}, map[string]int64{}
	texts, told := map[string][]string{}, map[string]map[string]int{}
	reached := map[string]int{}
	for _, e := range c.Events() {
		if known[e.ID] {
			continue
		}
		known[e.ID] = true
		stream := e.ConversationID
		if stream == "" {
			stream = e.SessionID
		}
		if last[stream]++; e.Seq != last[stream] && stream != "" {
			r.found(Disorder, "event %s %s came as number %d of %s and says %d", e.ID, e.Event, last[stream], stream, e.Seq)
			last[stream] = e.Seq
		}
		switch e.Event {
		case "message":
			texts[e.Payload.WAID] = append(texts[e.Payload.WAID], e.Payload.Text)
		case "message.status":
			id, status := e.Payload.MessageID, e.Payload.Status
			if told[id] == nil {
				told[id] = map[string]int{}
			}
			if told[id][status]++; told[id][status] > 1 && status != "sending" {
				r.found(Doubled, "message %s was told %d times to be %s", id, told[id][status], status)
			}
			if rank[status] < reached[id] {
				r.found(Disorder, "message %s was told to be %s after a later status", id, status)
			}
			reached[id] = max(reached[id], rank[status])
		case "message.unprocessable":
			r.found(Lost, "event %s says that a message could not be read", e.ID)
		}
	}
	r.Events = len(known)
	for _, text := range c.sink.unprovedBodies() {
		r.found(Foreign, "webhook without a valid signature: %s", text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.Numbers {
		for id, text := range n.said {
			switch got := texts[id]; {
			case len(got) == 0:
				r.found(Untold, "message %s to %s, %q", id, n.Slug, text)
			case !slices.Equal(got, []string{text}):
				r.found(Doubled, "message %s to %s is told as %q, want once %q", id, n.Slug, got, text)
			}
		}
		for _, m := range out[n.Slug] {
			if told[m.id][m.status] == 0 {
				r.found(Untold, "that message %s is %s", m.id, m.status)
			}
		}
	}
	return nil
}
