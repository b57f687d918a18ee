package wa

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	waBinary "go.mau.fi/whatsmeow/binary"
	"go.mau.fi/whatsmeow/types/events"

	"github.com/wafleet/wafleet/internal/fleet"
)

// limited tells the handler of a limit.
func (s *Socket) limited(l *life, limit fleet.NumberLimit) {
	if h := s.opts.Handler.Limit; h != nil {
		s.told(l, "limit", func() { h(l.ctx, limit) })
	}
}

func timeLock(e *events.NotifyAccountReachoutTimelock) fleet.NumberLimit {
	return fleet.NumberLimit{
		Kind: fleet.LimitStrangers, Active: e.IsActive, Until: e.TimeEnforcementEnds.Time, Detail: e.EnforcementType,
	}
}

// capping looks for the state of the new-chat cap in what is read: whatsmeow has no event for it. The handler runs beside
// the reader, which must not wait; Run waits for it.
func (s *Socket) capping(n *waBinary.Node) {
	limit, ok := cappingOf(n)
	if !ok {
		return
	}
	l := s.life.Load()
	if l == nil || !s.calls.enter() {
		return
	}
	go func() {
		defer s.calls.leave()
		s.limited(l, limit)
	}()
}

// cappingOf reads such a notification. Numbers may be JSON numbers or strings.
func cappingOf(n *waBinary.Node) (fleet.NumberLimit, bool) {
	if n.Tag != "notification" || n.Attrs["type"] != "mex" {
		return fleet.NumberLimit{}, false
	}
	for _, child := range n.GetChildrenByTag("update") {
		content, ok := child.Content.([]byte)
		if !ok {
			continue
		}
		var told struct {
			Data struct {
				Cap *struct {
					Status string      `json:"capping_status"`
					Quota  looseNumber `json:"total_quota"`
					Used   looseNumber `json:"used_quota"`
					Ends   looseNumber `json:"cycle_end_timestamp"`
				} `json:"xwa2_notify_new_chat_messages_capping_info_update"`
			} `json:"data"`
		}
		if err := json.Unmarshal(content, &told); err != nil || told.Data.Cap == nil {
			continue
		}
		c := told.Data.Cap
		limit := fleet.NumberLimit{
			Kind: fleet.LimitNewChats, Active: c.Status == "CAPPED", Detail: c.Status, Used: int(c.Used), Quota: int(c.Quota),
		}
		if c.Ends > 0 {
			limit.Until = time.Unix(int64(c.Ends), 0)
		}
		return limit, true
	}
	return fleet.NumberLimit{}, false
}

// looseNumber takes 7 and "7", and is 0 for anything else: a field that we don't understand must not hide the others.
type looseNumber int64

func (v *looseNumber) UnmarshalJSON(raw []byte) error {
	n, err := strconv.ParseInt(strings.Trim(string(raw), `"`), 10, 64)
	if err != nil {
		n = 0
	}
	*v = looseNumber(n)
	return nil
}
