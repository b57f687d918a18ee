package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/wafleet/wafleet/internal/wasim"
)

// How dense the traffic is.
const (
	clientCount    = 3
	orderEvery     = 7 * time.Second // per client, on average
	writeEvery     = 20 * time.Second
	answerPatience = 6 * time.Second
	giveUpAfter    = 10 * time.Minute
)

// traffic begins; it ends with the storm, and clients go on until they know what became of their requests.
func (w *world) traffic() {
	for i := range clientCount {
		w.clients = append(w.clients, newClient(w, i))
	}
	for _, c := range w.clients {
		w.busy.Go(c.run)
	}
	for _, p := range w.people {
		w.busy.Go(p.write)
	}
}

// order is what a client wants to have sent, under one Idempotency-Key.
type order struct {
	Key, To, Text string
	TTL           int
	Wait          int
	ids           map[string]int // message ids that were answered
	taken         bool           // the client has an answer
	cancelled     bool           // and took it back
	began         time.Time      // when it was asked for first
	answered      time.Time      // when the first answer came; zero: none
}

// client is a program that uses the gateway. It repeats a request until it has an answer, at either API process.
type client struct {
	w      *world
	n      int
	r      *rand.Rand
	http   *http.Client
	orders []*order
}

func newClient(w *world, n int) *client {
	c := &client{w: w, n: n, r: rand.New(rand.NewPCG(w.plan.Seed, 100+uint64(n)))}
	slots := map[string]*slot{}
	for _, name := range apiNames {
		slots[name] = w.slot(name)
	}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			name, _, _ := strings.Cut(address, ":")
			return slots[name].dialAPI(ctx, network, address)
		},
		IdleConnTimeout: 20 * time.Second,
	}}
	return c
}

func (c *client) run() {
	for n := 1; ; n++ {
		pause(time.Duration(c.r.Int64N(int64(2 * orderEvery))))
		if time.Now().After(c.w.stormEnds) {
			return
		}
		to := c.w.people[c.r.IntN(len(c.w.people))]
		o := &order{
			Key: fmt.Sprintf("order-%d-%d", c.n, n), To: "+" + to.pn, Text: fmt.Sprintf("out %d %d", c.n, n),
			TTL: 600, ids: map[string]int{}, began: time.Now(),
		}
		if c.r.IntN(5) == 0 {
			o.TTL = 5 + c.r.IntN(60)
		}
		if c.r.IntN(4) == 0 {
			o.Wait = 1 + c.r.IntN(5)
		}
		c.orders = append(c.orders, o)
		c.place(o)
	}
}

// place asks until there is an answer, and now and then once more.
func (c *client) place(o *order) {
	for deadline := time.Now().Add(giveUpAfter); !c.ask(o); pause(time.Duration(c.r.Int64N(int64(3 * time.Second)))) {
		if time.Now().After(deadline) {
			c.w.problem("%s: no answer in %v", o.Key, giveUpAfter)
			return
		}
	}
	switch c.r.IntN(10) {
	case 0:
		c.ask(o)
	case 1:
		c.cancel(o)
	}
}

// ask sends the request once and reports whether there was an answer.
func (c *client) ask(o *order) bool {
	patience := answerPatience
	if c.r.IntN(10) == 0 {
		patience = time.Duration(c.r.Int64N(int64(200 * time.Millisecond))) // it hangs up
	}
	body, err := json.Marshal(map[string]any{"to": o.To, "text": o.Text, "ttlSeconds": o.TTL, "clientRef": o.Key})
	if err != nil {
		panic(err)
	}
	header := http.Header{"Idempotency-Key": {o.Key}, "Content-Type": {"application/json"}}
	if o.Wait > 0 {
		header.Set("Prefer", fmt.Sprintf("wait=%d", o.Wait))
	}
	status, answer := c.do(http.MethodPost, "/api/v1/messages", patience, header, body)
	switch {
	case status == http.StatusOK || status == http.StatusAccepted:
		var m struct{ MessageID, Text, ClientRef string }
		if err := json.Unmarshal(answer, &m); err != nil || m.MessageID == "" || m.Text != o.Text || m.ClientRef != o.Key {
			c.w.problem("%s: the answer %s is not of this request", o.Key, answer)
		}
		o.ids[m.MessageID]++
		if !o.taken {
			o.taken, o.answered = true, time.Now()
		}
		return true
	case status == 0 || status >= 500 || status == http.StatusConflict:
		return false
	default:
		c.w.problem("%s: answered %d %s", o.Key, status, answer)
		return true
	}
}

// cancel takes the message back, if it is not on its way.
func (c *client) cancel(o *order) {
	for id := range o.ids {
		status, _ := c.do(http.MethodPost, "/api/v1/messages/"+id+"/cancel", answerPatience, http.Header{}, nil)
		o.cancelled = status == http.StatusOK
	}
}

// do returns status 0 when no answer came.
func (c *client) do(method, path string, patience time.Duration, header http.Header, body []byte) (int, []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.w.t.Context()), patience)
	defer cancel()
	api := apiNames[c.r.IntN(len(apiNames))]
	req, err := http.NewRequestWithContext(ctx, method, "http://"+api+path, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header = header
	req.Header.Set("Authorization", "Bearer "+c.w.secret)
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	return resp.StatusCode, answer
}

// person is somebody with a phone, who reads what comes and writes to the fleet's numbers.
type person struct {
	w     *world
	name  string
	pn    string
	r     *rand.Rand
	phone *wasim.Phone

	mu   sync.Mutex
	sent []writing
}

// writing is what a person wrote to a number.
type writing struct{ to, text, id string }

func newPerson(w *world, n int, name string) *person {
	pn := fmt.Sprintf("55119000001%02d", n+1)
	p := &person{w: w, name: name, pn: pn, r: rand.New(rand.NewPCG(w.plan.Seed, 200+uint64(n))), phone: w.sim.Phone(pn)}
	p.phone.AutoRead(n%2 == 0)
	return p
}

func (p *person) write() {
	for n := 1; ; n++ {
		pause(time.Duration(p.r.Int64N(int64(2 * writeEvery))))
		if time.Now().After(p.w.stormEnds) {
			return
		}
		to := p.w.sessions[p.r.IntN(len(p.w.sessions))]
		text := fmt.Sprintf("in %s %d", p.name, n)
		id, err := p.phone.SendText(context.WithoutCancel(p.w.t.Context()), to.pn, text)
		if err != nil {
			p.w.problem("%s can't write: %v", p.name, err)
			continue
		}
		p.mu.Lock()
		p.sent = append(p.sent, writing{to.pn, text, id})
		p.mu.Unlock()
	}
}
