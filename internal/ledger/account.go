package ledger

import "slices"

// hold is what is outstanding and lapses in the same second.
type hold struct{ lapses, n, chats int64 }

// account is one session's.
type account struct {
	windows [windows]window
	held    []hold // in no order
	out     int64  // sum of held
	chats   int64  // of it new chats
	due     int64  // second in which something leaves or lapses: nothing changes by itself before

	tokens bucket

	health     int
	healthEnds int64 // ms
}

func newAccount() *account {
	a := &account{due: never}
	for i := range a.windows {
		a.windows[i].span, a.windows[i].leaves = spans[i], never
	}
	return a
}

// settle brings the account to this second: what lapsed is counted as if its frame had left then, and
// what has left the windows is dropped.
func (a *account) settle(second int64) {
	if second < a.due {
		return
	}
	for i := 0; i < len(a.held); {
		h := a.held[i]
		if h.lapses > second {
			i++
			continue
		}
		a.held = slices.Delete(a.held, i, i+1)
		a.out -= h.n
		a.chats -= h.chats
		a.count(h.lapses, h.n, h.chats)
	}
	for i := range a.windows {
		a.windows[i].drop(second)
	}
	a.remind()
}

func (a *account) remind() {
	a.due = never
	for i := range a.windows {
		a.due = min(a.due, a.windows[i].leaves)
	}
	for _, h := range a.held {
		a.due = min(a.due, h.lapses)
	}
}

// count adds frames to the windows.
func (a *account) count(second, frames, chats int64) {
	for i := minute; i <= day; i++ {
		a.windows[i].add(second, frames)
	}
	a.windows[newChats].add(second, chats)
	a.remind()
}

// hold makes one frame outstanding.
func (a *account) hold(lapses int64, newChat bool) {
	chats := int64(0)
	if newChat {
		chats = 1
	}
	a.out++
	a.chats += chats
	a.due = min(a.due, lapses)
	for i := range a.held {
		if a.held[i].lapses == lapses {
			a.held[i].n++
			a.held[i].chats += chats
			return
		}
	}
	a.held = append(a.held, hold{lapses, 1, chats})
}

// free ends one outstanding frame. One that lapsed already is not there any more.
func (a *account) free(lapses int64, newChat bool) {
	i := slices.IndexFunc(a.held, func(h hold) bool { return h.lapses == lapses })
	if i < 0 {
		return
	}
	h := &a.held[i]
	h.n--
	a.out--
	if newChat && h.chats > 0 {
		h.chats--
		a.chats--
	}
	if h.n == 0 {
		a.held = slices.Delete(a.held, i, i+1)
	}
}

// used is what counts in a window: what left, and what will.
func (a *account) used(i int) int64 {
	if i == newChats {
		return a.windows[i].total + a.chats
	}
	return a.windows[i].total + a.out
}

// well is the health at a moment in ms.
func (a *account) well(now int64) int {
	if now >= a.healthEnds {
		return fullHealth
	}
	return a.health
}

// heal applies what happened to the number.
func (a *account) heal(now int64, by int) {
	a.health = max(0, min(fullHealth, a.well(now)+by))
	a.healthEnds = now + healthTTL.Milliseconds()
}

func (b Budget) cap(i int) int64 {
	switch i {
	case minute:
		return int64(b.PerMinute)
	case hour:
		return int64(b.PerHour)
	case day:
		return int64(b.PerDay)
	default:
		return int64(b.NewChatsPerDay)
	}
}
