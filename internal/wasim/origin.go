package wasim

import (
	"net"
	"net/http"
	"strconv"
)

// Headers that simulated processes add to each dial, and only they: they fill the entries of the log.
const (
	HeaderWorker     = "X-Wafleet-Worker"
	HeaderSession    = "X-Wafleet-Session"
	HeaderEpoch      = "X-Wafleet-Epoch"
	HeaderGeneration = "X-Wafleet-Generation"
)

// origin is what a dial said about itself.
type origin struct {
	worker, session   string
	epoch, generation int64
	remote            string
}

func originOf(r *http.Request) origin {
	number := func(h string) int64 {
		n, err := strconv.ParseInt(r.Header.Get(h), 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	return origin{
		worker: r.Header.Get(HeaderWorker), session: r.Header.Get(HeaderSession),
		epoch: number(HeaderEpoch), generation: number(HeaderGeneration), remote: r.RemoteAddr,
	}
}

// dialer is the key under which the number of a dial is remembered, "" if nothing names it: a TCP port says
// nothing about the next dial, the name of an in-memory dialer does.
func (o origin) dialer() string {
	if o.session != "" {
		return "session " + o.session
	}
	if _, _, err := net.SplitHostPort(o.remote); err != nil {
		return "remote " + o.remote
	}
	return ""
}

// refusesDial applies RefuseDials to a dial. The caller holds the lock.
func (s *Server) refusesDial(o origin) bool {
	return s.faults.has(s.dialers[o.dialer()], "", func(f *Fault) bool { return f.RefuseDials })
}

// remember notes who dials for a number. The caller holds the lock.
func (s *Server) remember(o origin, pn string) {
	if key := o.dialer(); key != "" {
		s.dialers[key] = pn
	}
}

// entry fills in what is known about the connection.
func (c *conn) entry(e Entry) Entry {
	o := c.origin
	e.Conn, e.Worker, e.SessionID, e.Epoch, e.Generation = c.seq, o.worker, o.session, o.epoch, o.generation
	if c.dev != nil {
		e.Session, e.Device = c.dev.account.pn, c.dev.id
	}
	return e
}
