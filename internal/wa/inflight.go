package wa

import (
	"context"
	"slices"
	"sync"

	waBinary "go.mau.fi/whatsmeow/binary"
	waLog "go.mau.fi/whatsmeow/util/log"
)

// maxInflight is how many stanzas may have been read and not handled. whatsmeow's queue holds 2048; beyond that it
// gives each its own goroutine, and their order is lost.
const maxInflight = 2000

// inflight makes the reader wait while too much is read and not handled, so that TCP holds WhatsApp back and memory
// stays bounded however much comes. whatsmeow has no hook for either end of its queue but its logs of stanzas: it
// writes the one before a stanza is queued and the other when it answers one. If an upgrade changes that, a test fails.
type inflight struct {
	limit int

	mu    sync.Mutex
	ids   []string      // of stanzas that were read and not answered, oldest first
	moved chan struct{} // closed when some were answered; nil: nobody waits
}

// took counts a stanza that was read, and returns when there is room or ctx has ended.
func (f *inflight) took(ctx context.Context, n *waBinary.Node) {
	id, _ := n.Attrs["id"].(string)
	switch n.Tag {
	case "message", "receipt", "notification", "call":
	default:
		return
	}
	f.mu.Lock()
	f.ids = append(f.ids, id)
	for len(f.ids) > f.limit {
		if f.moved == nil {
			f.moved = make(chan struct{})
		}
		moved := f.moved
		f.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
		f.mu.Lock()
	}
	f.mu.Unlock()
}

// answered counts off. Stanzas are handled in the order in which they came, so the answer to one also stands for those
// before it that need none.
func (f *inflight) answered(n *waBinary.Node) {
	if n.Tag != "ack" && n.Tag != "receipt" {
		return
	}
	id, _ := n.Attrs["id"].(string)
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.ids, id)
	if i < 0 {
		return
	}
	f.ids = f.ids[i+1:]
	if f.moved != nil {
		close(f.moved)
		f.moved = nil
	}
}

func (f *inflight) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ids)
}

// stanzaLog is what whatsmeow logs stanzas to. Nothing of them is printed.
type stanzaLog struct {
	waLog.Logger
	see func(n *waBinary.Node)
}

func (l stanzaLog) Debugf(_ string, args ...any) {
	if len(args) == 1 {
		if n, ok := args[0].(*waBinary.Node); ok && n != nil {
			l.see(n)
		}
	}
}
