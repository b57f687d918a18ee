package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wasim"
)

// check compares what the gateway promises with the simulator's log, the rows and the receiver's log.
func (w *world) check() {
	messages := w.messages()
	events := w.events()
	w.checkOrders(messages)
	w.checkArrived(messages)
	w.checkOrder(messages)
	w.checkFrames(messages)
	w.checkEpochs()
	w.checkInbound(events)
	w.checkStatuses(messages, events)
	w.checkSequence(events)
	w.checkDelivered(events)
}

func (w *world) messages() (all []fleet.Message) {
	for before := int64(0); ; {
		page, next, err := w.st.ListMessages(w.t.Context(), store.MessageQuery{Org: org, Before: before, Limit: 500})
		w.must(err)
		all = append(all, page...)
		if before = next; next == 0 {
			slices.SortFunc(all, func(a, b fleet.Message) int { return cmp.Compare(a.Seq, b.Seq) })
			return all
		}
	}
}

// events returns all events in the order in which they were written.
func (w *world) events() (all []fleet.Event) {
	rows, err := w.st.DB().Query(w.t.Context(), `SELECT id FROM events ORDER BY n`)
	w.must(err)
	var ids []fleet.EventID
	for rows.Next() {
		var id fleet.EventID
		w.must(rows.Scan(&id))
		ids = append(ids, id)
	}
	w.must(rows.Err())
	w.must(rows.Close())
	for _, id := range ids {
		e, err := w.st.GetEvent(w.t.Context(), "", id)
		w.must(err)
		all = append(all, e)
	}
	return all
}

// checkOrders: one Idempotency-Key makes one message, and every answer names it.
func (w *world) checkOrders(messages []fleet.Message) {
	made := map[string][]fleet.Message{}
	for _, m := range messages {
		made[m.ClientRef] = append(made[m.ClientRef], m)
	}
	for _, c := range w.clients {
		for _, o := range c.orders {
			rows := made[o.Key]
			switch {
			case len(o.ids) > 1:
				w.problem("%s was answered with %d message ids: %v", o.Key, len(o.ids), o.ids)
			case len(rows) > 1:
				w.problem("%s made %d messages", o.Key, len(rows))
			case o.taken && len(rows) == 0:
				w.problem("%s was accepted and is not there", o.Key)
			case o.taken && o.ids[string(rows[0].ID)] == 0:
				w.problem("%s was answered with another id than the message's", o.Key)
			case o.cancelled && rows[0].Status != fleet.StatusCancelled:
				w.problem("%s was taken back and is %s", o.Key, rows[0].Status)
			}
		}
	}
}

// checkArrived: every message has ended, its state tells the truth, and nobody saw it twice.
func (w *world) checkArrived(messages []fleet.Message) {
	shown := map[string][]wasim.Received{} // by number and text
	for _, p := range w.people {
		for _, r := range p.phone.Received() {
			if !r.Duplicate && !r.FromMe && r.Text != "" {
				shown[p.pn+" "+r.Text] = append(shown[p.pn+" "+r.Text], r)
			}
		}
	}
	for _, m := range messages {
		key := m.ContactKey + " " + m.Text
		n := len(shown[key])
		delete(shown, key)
		told := fmt.Sprintf("%s (%s) is %s", m.ClientRef, m.WAID, m.Status)
		if m.ErrorCode != "" {
			told += " with " + m.ErrorCode + " " + m.ErrorDetail
		}
		switch {
		case !m.Status.Settled():
			w.problem("%s, outcome %q, at the end", told, m.Outcome)
		case n > 1:
			w.problem("%s and was seen %d times", told, n)
		case m.Status.Rank() >= 1 && n == 0:
			w.problem("%s and nobody saw it", told)
		case m.Status.Rank() == 0 && m.Status != fleet.StatusUnconfirmed && n > 0:
			w.problem("%s and was seen", told)
		case n == 1 && m.Status.Rank() < fleet.StatusDelivered.Rank():
			w.problem("%s although the phone sent its receipt", told)
		}
	}
	for key := range shown {
		w.problem("%q was seen and is no message", key)
	}
}

// checkOrder: of two messages to one person the earlier was seen first, from whichever numbers they came, if it was accepted
// before the later one was asked for. On one number that holds also for those that were asked for at the same time: in the
// order in which they came to its lane. A later message does not wait for ever, though: not when the earlier one was
// repeated, nor when the phone could not read it at first and asked for it again, nor for another number's after two minutes or
// when that number tried in vain.
func (w *world) checkOrder(messages []fleet.Message) {
	retried := map[fleet.MessageID]bool{}
	came := map[fleet.MessageID][2]int64{} // to its lane: behind which message, and as which of those that were routed there
	for _, m := range messages {
		came[m.ID] = [2]int64{m.Seq, 0}
	}
	rows, err := w.st.DB().Query(w.t.Context(), `SELECT message_id, 0, 0 FROM attempts WHERE kind='retry' UNION ALL SELECT id, behind, n FROM sim_reroutes ORDER BY 3`)
	w.must(err)
	for rows.Next() {
		var id fleet.MessageID
		var behind, n int64
		w.must(rows.Scan(&id, &behind, &n))
		if n == 0 {
			retried[id] = true
		} else {
			came[id] = [2]int64{behind, n}
		}
	}
	w.must(rows.Err())
	w.must(rows.Close())
	began, answered := map[string]time.Time{}, map[string]time.Time{}
	for _, c := range w.clients {
		for _, o := range c.orders {
			began[o.Key], answered[o.Key] = o.began, o.answered
		}
	}
	for _, p := range w.people {
		at := map[string]int{}
		for i, r := range p.phone.Received() {
			if !r.Duplicate && !r.FromMe {
				at[r.ID] = i
			}
		}
		var earlier []fleet.Message
		for _, m := range messages {
			if _, seen := at[m.WAID]; m.ContactKey != p.pn || !seen || m.Repeats > 0 || retried[m.ID] {
				continue
			}
			for _, before := range earlier {
				if at[before.WAID] < at[m.WAID] {
					continue
				}
				mine, others := came[m.ID], came[before.ID]
				done := answered[before.ClientRef]
				switch {
				case before.SessionID == m.SessionID && slices.Compare(others[:], mine[:]) < 0:
				case done.IsZero() || !done.Before(began[m.ClientRef]): // asked for at the same time
					continue
				case before.Attempts > 1 && before.Hops == 0 || w.firstFrame(m).Sub(m.CreatedAt) >= 2*time.Minute:
					continue
				}
				w.problem("%s saw %s %v %s before %s %v %s", p.name, m.ClientRef, mine, w.frames(m), before.ClientRef, others, w.frames(before))
			}
			earlier = append(earlier, m)
		}
	}
}

// firstFrame is when a message was first claimed.
func (w *world) firstFrame(m fleet.Message) time.Time {
	var at int64
	w.must(w.st.DB().QueryRow(w.t.Context(), `SELECT at FROM attempts WHERE message_id=$1 ORDER BY n LIMIT 1`, m.ID).Scan(&at))
	return time.UnixMilli(at)
}

// frames says how a message went out.
func (w *world) frames(m fleet.Message) (told string) {
	rows, err := w.st.DB().Query(w.t.Context(), `SELECT kind, outcome, code, at FROM attempts WHERE message_id=$1 ORDER BY n`, m.ID)
	w.must(err)
	for rows.Next() {
		var kind, outcome string
		var code, at int64
		w.must(rows.Scan(&kind, &outcome, &code, &at))
		told += fmt.Sprintf("[%s %s %d %s]", kind, outcome, code, time.UnixMilli(at).UTC().Format("05.000"))
	}
	w.must(rows.Err())
	w.must(rows.Close())
	return told
}

// checkFrames: the wire carries a message under one id, and every frame was counted before it left. A message is on one
// session only, unless another was refused to it: then that one's frames reached nobody, and there is no third.
func (w *world) checkFrames(messages []fleet.Message) {
	counted, known := map[string]int{}, map[string]bool{}
	of := map[fleet.MessageID]fleet.Message{}
	for _, m := range messages {
		of[m.ID], known[string(m.SessionID)+" "+m.WAID] = m, true
	}
	hops := map[fleet.MessageID]fleet.SessionID{}
	rows, err := w.st.DB().Query(w.t.Context(), `SELECT message_id, session_id, outcome FROM attempts ORDER BY message_id, n`)
	w.must(err)
	for rows.Next() {
		var id fleet.MessageID
		var session fleet.SessionID
		var outcome fleet.Outcome
		w.must(rows.Scan(&id, &session, &outcome))
		m := of[id]
		key := string(session) + " " + m.WAID
		counted[key]++
		if session == m.SessionID {
			continue
		}
		known[key] = true
		if other, ok := hops[id]; m.Hops == 0 || ok && other != session || outcome != fleet.OutcomeRefused && outcome != fleet.OutcomeNothing {
			w.problem("%s left its number though it may have gone out there: %s", m.ClientRef, w.frames(m))
		}
		hops[id] = session
	}
	w.must(rows.Err())
	w.must(rows.Close())
	left := map[string]int{}
	for _, e := range w.sim.Log(wasim.Query{Kind: wasim.KindMessage, Dir: wasim.DirIn}) {
		if e.Type == "peer" || e.SessionID == "" {
			continue
		}
		key := e.SessionID + " " + e.ID
		if left[key]++; !known[key] {
			w.problem("a frame left under the id %s, which no message of its session has", e.ID)
		}
	}
	for key, n := range left {
		if n > counted[key] {
			w.problem("%d frames left under %s, %d were counted", n, key, counted[key])
		}
	}
}

// checkEpochs: once a session was claimed under an epoch, nothing comes from an earlier one, neither a frame nor a write.
func (w *world) checkEpochs() {
	for _, n := range w.sessions {
		history, err := w.st.LeaseHistory(w.t.Context(), n.id)
		w.must(err)
		began := map[int64]time.Time{}
		for i, c := range history {
			began[c.Epoch] = c.At
			if i > 0 && c.Epoch != history[i-1].Epoch+1 {
				w.problem("%s: epoch %d follows %d", n.name, c.Epoch, history[i-1].Epoch)
			}
		}
		for _, e := range w.sim.Log(wasim.Query{SessionID: string(n.id)}) {
			switch {
			case e.Kind == wasim.KindLogin:
			case e.Dir == wasim.DirIn && e.Kind != wasim.KindIgnored:
			default:
				continue
			}
			if next, ok := began[e.Epoch+1]; ok && e.At.After(next.Add(time.Millisecond)) {
				w.problem("%s: %s %s %s of epoch %d from %s came %v after epoch %d began", n.name, e.Kind, e.Type, e.ID, e.Epoch, e.Worker, e.At.Sub(next), e.Epoch+1)
			}
		}
		for _, g := range w.allGates() {
			for _, v := range g.writes {
				if next, ok := began[v.epoch+1]; ok && v.session == string(n.id) && v.at.After(next.Add(time.Millisecond)) {
					w.problem("%s: %s wrote (%s) under epoch %d, %v after epoch %d began", n.name, g.owner, v.kind, v.epoch, v.at.Sub(next), v.epoch+1)
				}
			}
		}
		rows, err := w.st.DB().Query(w.t.Context(), `SELECT epoch, at, kind FROM attempts WHERE session_id=$1`, n.id)
		w.must(err)
		for rows.Next() {
			var epoch, at int64
			var kind string
			w.must(rows.Scan(&epoch, &at, &kind))
			if next, ok := began[epoch+1]; ok && time.UnixMilli(at).After(next.Add(time.Millisecond)) {
				w.problem("%s: a frame (%s) was claimed under epoch %d after epoch %d began", n.name, kind, epoch, epoch+1)
			}
		}
		w.must(rows.Err())
		w.must(rows.Close())
	}
}

// checkInbound: whatever a person wrote is told exactly once.
func (w *world) checkInbound(events []fleet.Event) {
	told := map[string]int{}
	for _, e := range events {
		if e.Kind != fleet.EventMessage && e.Kind != fleet.EventMessageUnprocessable {
			continue
		}
		m, err := w.st.GetInbound(w.t.Context(), org, e.Data.InboundID)
		w.must(err)
		if told[m.Text]++; told[m.Text] > 1 {
			w.problem("%q was told %d times", m.Text, told[m.Text])
		}
		if e.Kind != fleet.EventMessage {
			w.problem("%q was told as %s (%s)", m.WAID, e.Kind, e.Data.Reason)
		}
	}
	for _, p := range w.people {
		for _, s := range p.sent {
			if told[s.text] == 0 {
				w.problem("%q (%s to %s) was not told", s.text, s.id, s.to)
			}
			delete(told, s.text)
		}
	}
	for text := range told {
		w.problem("%q was told and nobody wrote it", text)
	}
}

// checkStatuses: a message's status only moves forward, and each move is told once, in order.
func (w *world) checkStatuses(messages []fleet.Message, events []fleet.Event) {
	type move struct{ was, became fleet.Status }
	moves := map[fleet.MessageID][]move{}
	rows, err := w.st.DB().Query(w.t.Context(), `SELECT id, was, became FROM sim_moves ORDER BY n`)
	w.must(err)
	for rows.Next() {
		var id fleet.MessageID
		var m move
		w.must(rows.Scan(&id, &m.was, &m.became))
		moves[id] = append(moves[id], m)
	}
	w.must(rows.Err())
	w.must(rows.Close())
	told := map[fleet.MessageID][]fleet.Status{}
	unknown := map[fleet.MessageID]int{}
	for _, e := range events {
		if e.Kind != fleet.EventMessageStatus {
			continue
		}
		if e.Data.Status == fleet.StatusSending {
			unknown[e.Data.MessageID]++
			continue
		}
		told[e.Data.MessageID] = append(told[e.Data.MessageID], e.Data.Status)
	}
	for _, m := range messages {
		var want []fleet.Status
		for _, v := range moves[m.ID] {
			if !v.was.CanBecome(v.became) {
				w.problem("%s went from %s to %s", m.ClientRef, v.was, v.became)
			}
			if v.became.Rank() > fleet.StatusSent.Rank() && !slices.Contains(want, fleet.StatusSent) {
				want = append(want, fleet.StatusSent) // one write may take the row past an ack that a receipt overtook
			}
			if v.became != fleet.StatusQueued && v.became != fleet.StatusSending {
				want = append(want, v.became)
			}
		}
		if !slices.Equal(told[m.ID], want) {
			w.problem("%s became %v and was told as %v", m.ClientRef, want, told[m.ID])
		}
		if unknown[m.ID] > 1 {
			w.problem("%s was told %d times to be unknown", m.ClientRef, unknown[m.ID])
		}
	}
}

// checkSequence: seq has no gap in any stream.
func (w *world) checkSequence(events []fleet.Event) {
	last := map[string]int64{}
	for _, e := range events {
		if e.Seq != last[e.Stream]+1 {
			w.problem("stream %s: event %s has seq %d after %d", e.Stream, e.ID, e.Seq, last[e.Stream])
		}
		last[e.Stream] = e.Seq
	}
}

// checkDelivered: each endpoint got every event that it should, for the first time in the order of its stream.
func (w *world) checkDelivered(events []fleet.Event) {
	for _, host := range []string{hostOrganization, hostOperator} {
		wants := w.receiver.endpoints[host].Events
		if len(wants) == 0 {
			wants = fleet.EventKinds(w.receiver.endpoints[host].Scope)
		}
		owed := map[fleet.EventID]fleet.Event{}
		for _, e := range events {
			if slices.Contains(wants, e.Kind) {
				owed[e.ID] = e
			}
		}
		last := map[string]int64{}
		for _, a := range w.receiver.first(host) {
			e, ok := owed[a.ID]
			if !ok {
				w.problem("%s got the event %s (%s), which does not exist for it", host, a.ID, a.Event)
				continue
			}
			delete(owed, a.ID)
			if a.Seq != e.Seq || a.Event != e.Kind || a.Payload.Status != e.Data.Status {
				w.problem("%s got %s as %s %s seq %d, it is %s %s seq %d", host, a.ID, a.Event, a.Payload.Status, a.Seq, e.Kind, e.Data.Status, e.Seq)
			}
			if !a.Ordered {
				continue
			}
			if a.Seq < last[e.Stream] { // a gap is another matter: what stepped aside comes later
				w.problem("%s: seq %d of stream %s came after %d", host, a.Seq, e.Stream, last[e.Stream])
			}
			last[e.Stream] = a.Seq
		}
		for id, e := range owed {
			w.problem("%s never got %s (%s %s)", host, id, e.Kind, e.Data.Status)
		}
	}
}
