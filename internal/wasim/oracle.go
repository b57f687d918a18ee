package wasim

import (
	"sync"
	"time"
)

// Directions of an entry.
const (
	DirIn  = "in"  // client to server
	DirOut = "out" // server to client
)

// Kinds of entries. Stanzas of other kinds ("notification", "presence", "chatstate", "ib") are logged under
// their own name; keepalives and answers to requests are not logged.
const (
	KindMessage   = "message"   // a message stanza
	KindReceipt   = "receipt"   // delivery, read, retry receipts; Type says which
	KindAck       = "ack"       // Error is the code of a refusal
	KindRequest   = "iq"        // a request of the client; Type is its namespace
	KindDial      = "dial"      // a websocket was opened, or with Error 1 refused
	KindPair      = "pair"      // a companion was added
	KindLogin     = "login"     // a companion logged in
	KindFailure   = "failure"   // a login was refused; Error is the reason
	KindStream    = "stream"    // stream:error; Type is what it said
	KindLogout    = "logout"    // a companion was removed; Type is "client" or "phone"
	KindClose     = "close"     // a connection ended; Type is why
	KindIgnored   = "ignored"   // a stanza of a connection that was replaced or is closing; Type is its tag
	KindDecrypted = "decrypted" // a phone decrypted a message; Text is what it said
	KindAppState  = "app_state" // a collection of app state was asked for; Type is its name
	KindLease     = "lease"     // noted by the harness
)

// Entry is one line of the log.
type Entry struct {
	Seq  int64     `json:"seq"` // counts from 1 without gaps
	At   time.Time `json:"at"`
	Conn int64     `json:"conn,omitempty"` // counts connections from 1; 0 = no connection

	// From the headers of the dial that made the connection.
	Worker     string `json:"worker,omitempty"`
	SessionID  string `json:"sessionId,omitempty"`
	Epoch      int64  `json:"epoch,omitempty"`
	Generation int64  `json:"generation,omitempty"`

	Dir     string `json:"dir,omitempty"`
	Kind    string `json:"kind"`
	Session string `json:"session,omitempty"` // own number (digits) of the connection or phone
	Device  uint16 `json:"device,omitempty"`  // 0 is the phone

	// Sender and Recipient are numbers (digits), or the user part of an address that belongs to nobody here.
	Sender    string `json:"sender,omitempty"`
	Recipient string `json:"recipient,omitempty"`
	ID        string `json:"id,omitempty"`   // the stanza's id, for messages the message id
	Type      string `json:"type,omitempty"` // "peer" for messages between own devices of one account
	Error     int    `json:"error,omitempty"`
	Text      string `json:"text,omitempty"` // on kind "decrypted"; on kind "app_state" it is "full" if everything was asked for
	// Retry is the count of a retry receipt, or of the message sent again because of one.
	Retry int `json:"retry,omitempty"`
	// Relayed tells for an incoming message whether at least one device of the recipient was given it.
	Relayed bool `json:"relayed,omitempty"`
	// Token tells what an incoming message showed for its right to be sent: "tc", a token of the recipient, or "cs", one
	// made from the number's salt; "" for none.
	Token string `json:"token,omitempty"`
	// Duplicate tells for kind "decrypted" that the phone had this message already.
	Duplicate bool `json:"duplicate,omitempty"`
}

// Query selects entries; zero fields select everything.
type Query struct {
	Session, Sender, Recipient, ID, Kind, Type, Dir, Worker, SessionID string

	After int64 // only entries with a greater Seq
	Limit int   // at most so many, the oldest of those selected; 0 = all
	Tail  int   // only the newest so many, in place of Limit; 0 = all
}

func (q *Query) matches(e *Entry) bool {
	eq := func(want, have string) bool { return want == "" || want == have }
	return e.Seq > q.After && eq(q.Session, e.Session) && eq(q.Sender, e.Sender) && eq(q.Recipient, e.Recipient) &&
		eq(q.ID, e.ID) && eq(q.Kind, e.Kind) && eq(q.Type, e.Type) && eq(q.Dir, e.Dir) && eq(q.Worker, e.Worker) && eq(q.SessionID, e.SessionID)
}

const defaultLogLimit = 1_000_000

// oracle is the log. It has its own lock, under which nothing is called and nothing waits.
type oracle struct {
	mu       sync.Mutex
	limit    int
	entries  []Entry // Seq of entries[i] is first+i
	first    int64
	watchers map[int64]chan struct{}
	nextID   int64
}

func newOracle(limit int) *oracle {
	if limit <= 0 {
		limit = defaultLogLimit
	}
	return &oracle{limit: limit, first: 1, watchers: map[int64]chan struct{}{}}
}

func (o *oracle) add(e Entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.entries) >= o.limit {
		drop := max(1, o.limit/8) // in steps, so that a full log does not copy itself for each entry
		o.entries = append([]Entry(nil), o.entries[drop:]...)
		o.first += int64(drop)
	}
	e.Seq = o.first + int64(len(o.entries))
	if e.At.IsZero() {
		e.At = time.Now()
	}
	o.entries = append(o.entries, e)
	for _, id := range sortedKeys(o.watchers) {
		select {
		case o.watchers[id] <- struct{}{}:
		default:
		}
	}
}

// Log returns the entries that the query selects, oldest first. Entries beyond Options.LogLimit are gone.
func (s *Server) Log(q Query) []Entry {
	o := s.oracle
	o.mu.Lock()
	defer o.mu.Unlock()
	start := min(max(0, q.After+1-o.first), int64(len(o.entries)))
	var out []Entry
	for i := range o.entries[start:] {
		e := &o.entries[start+int64(i)]
		if !q.matches(e) {
			continue
		}
		out = append(out, *e)
		if q.Limit > 0 && q.Tail == 0 && len(out) == q.Limit {
			break
		}
	}
	if q.Tail > 0 {
		out = out[max(0, len(out)-q.Tail):]
	}
	return out
}

// NoteLease puts a change of a lease beside the frames. Kind and At are filled in if they are empty; Seq is
// always given by the log.
func (s *Server) NoteLease(e Entry) {
	if e.Kind == "" {
		e.Kind = KindLease
	}
	s.oracle.add(e)
}

// Watch returns a channel that receives after new entries; several entries may come as one wake-up, and one
// wake-up may find nothing new. The function ends the watch.
func (s *Server) Watch() (<-chan struct{}, func()) {
	o := s.oracle
	o.mu.Lock()
	defer o.mu.Unlock()
	ch := make(chan struct{}, 1)
	o.nextID++
	id := o.nextID
	o.watchers[id] = ch
	return ch, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.watchers, id)
	}
}
