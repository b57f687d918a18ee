package worker

import (
	"context"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/store"
)

// turnMost is how many messages of one project a lane takes from its line before other projects have had their turn:
// whoever has sent nothing lately waits for so many messages of each of the others at most, however many those have waiting.
const turnMost = 4

// turns shares a lane between the projects that send through one number. They are counted in rounds: in one
// round each project has up to turnMost messages, in the order of the line, and a round ends when nobody is left
// who has not had them. The line is asked for somebody else only then, so that a project that is alone costs one
// look for each turn.
type turns map[fleet.ProjectID]int

// over are the projects that have had their turn in this round.
func (t turns) over() []fleet.ProjectID {
	var out []fleet.ProjectID
	for id, n := range t {
		if n >= turnMost {
			out = append(out, id)
		}
	}
	return out
}

// turn is what the lane sends now, given what is next in line and what became of the frame before; false: that can't be
// read. What is taken from further behind is due as much: earlier messages to the same person hold it back like any other.
func (l *lane) turn(ctx context.Context, next *store.LaneItem, last *store.Result) (*store.LaneItem, bool) {
	if l.turns[next.ProjectID] < turnMost {
		return next, true
	}
	var sent fleet.MessageID
	if last != nil && last.Outcome == fleet.OutcomeSent {
		sent = last.ID
	}
	rctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	other, err := l.st.NextOfOthers(rctx, l.term.SessionID, l.turns.over(), sent)
	switch {
	case err != nil:
		l.failed(ctx, "could not read the lane", err)
		return nil, false
	case other == nil:
		clear(l.turns)
		return next, true
	}
	return other, true
}
