package wasim

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
)

// routes is the whole surface of the server. The control API under /sim/ takes and gives JSON; what changes
// something is a POST or PUT and is refused from pages of other origins.
func (s *Server) routes() http.Handler {
	m := http.NewServeMux()
	for pattern, h := range map[string]func(*http.Request) (any, error){
		"GET /sim/root":                             s.getRoot,
		"GET /sim/stats":                            func(*http.Request) (any, error) { return s.Stats(), nil },
		"GET /sim/phones":                           s.getPhones,
		"POST /sim/phones":                          s.postPhone,
		"GET /sim/phones/{pn}":                      s.getPhone,
		"GET /sim/phones/{pn}/messages":             s.getMessages,
		"POST /sim/phones/{pn}/{action}":            s.postPhoneAction,
		"GET /sim/faults":                           s.getFaults,
		"PUT /sim/faults":                           s.putFault,
		"GET /sim/phones/{pn}/enforcement":          s.getEnforcement,
		"PUT /sim/phones/{pn}/enforcement":          s.putEnforcement,
		"POST /sim/sessions/{pn}/{device}/{action}": s.postSessionAction,
		"GET /sim/log":                              s.getLog,
		"POST /sim/log/lease":                       s.postLease,
	} {
		m.Handle(pattern, jsonHandler(h))
	}
	m.Handle("GET /sim/{$}", page("index.html"))
	m.Handle("GET /sim/page/{file}", http.HandlerFunc(pageFile))

	root := http.NewServeMux()
	root.HandleFunc("/ws/chat", s.serveSocket)
	root.HandleFunc("/ws/chat/", s.serveSocket)
	root.Handle("/sim/", http.NewCrossOriginProtection().Handler(withJSONFailures(m)))
	return root
}

// problem is an answer of the 4xx kind.
type problem struct {
	status  int
	Code    string `json:"code"`
	Message string `json:"error"`
}

func (p *problem) Error() string { return p.Message }

func badInput(message string) error {
	return &problem{http.StatusBadRequest, "bad_input", message}
}

func notFound(message string) error {
	return &problem{http.StatusNotFound, "not_found", message}
}

// problemOf turns an error of the package into an answer.
func problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	for _, known := range []struct {
		err    error
		status int
		code   string
	}{
		{ErrBadQR, http.StatusBadRequest, "bad_qr"},
		{ErrQRExpired, http.StatusNotFound, "qr_expired"},
		{ErrAlreadyPairing, http.StatusConflict, "already_pairing"},
		{ErrNoCodePending, http.StatusNotFound, "no_code_pending"},
		{ErrNoSuchUser, http.StatusNotFound, "no_such_user"},
		{ErrNoSuchMessage, http.StatusNotFound, "no_such_message"},
		{ErrNoSuchDevice, http.StatusNotFound, "no_such_device"},
		{ErrBadAddress, http.StatusBadRequest, "bad_address"},
	} {
		if errors.Is(err, known.err) {
			return &problem{known.status, known.code, err.Error()}
		}
	}
	return &problem{http.StatusInternalServerError, "internal", err.Error()}
}

// jsonHandler answers with what the function returns: 201 for things made, 200 otherwise.
func jsonHandler(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, err := f(r)
		if err != nil {
			p := problemOf(err)
			writeJSON(w, p.status, p)
			return
		}
		status := http.StatusOK
		if c, ok := out.(created); ok {
			status, out = http.StatusCreated, c.value
		}
		writeJSON(w, status, out)
	})
}

type created struct{ value any }

// done is the answer of actions that have nothing to tell.
var done = map[string]bool{"ok": true}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client is gone then
}

// withJSONFailures answers unknown paths and methods in JSON too.
func withJSONFailures(m *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := m.Handler(r)
		if pattern != "" {
			m.ServeHTTP(w, r)
			return
		}
		dry := &statusRecorder{header: http.Header{}}
		h.ServeHTTP(dry, r)
		if allow := dry.header.Get("Allow"); allow != "" {
			w.Header().Set("Allow", allow)
			writeJSON(w, http.StatusMethodNotAllowed, &problem{Code: "method_not_allowed", Message: "allowed here: " + allow})
			return
		}
		writeJSON(w, http.StatusNotFound, &problem{Code: "not_found", Message: "no such path"})
	})
}

type statusRecorder struct{ header http.Header }

func (r *statusRecorder) Header() http.Header         { return r.header }
func (r *statusRecorder) Write(b []byte) (int, error) { return len(b), nil }
func (r *statusRecorder) WriteHeader(int)             {}

const maxBody = 1 << 20

// readBody decodes a JSON object strictly: unknown fields and anything behind the object are refused.
func readBody(r *http.Request, into any) error {
	if typ, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || typ != "application/json" {
		return &problem{http.StatusUnsupportedMediaType, "unsupported_media_type", "send JSON, with Content-Type: application/json"}
	}
	d := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return badInput("body: " + err.Error())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return badInput("body: more than one JSON value, or too large")
	}
	return nil
}

// pathNumber reads {pn}.
func pathNumber(r *http.Request) (string, error) {
	pn := r.PathValue("pn")
	if !validNumber(pn) {
		return "", badInput("number: 5 to 15 digits without plus, not starting with 0")
	}
	return pn, nil
}

// queryInt reads a number that is not negative; missing is 0.
func queryInt(r *http.Request, key string) (int64, error) {
	v := r.URL.Query().Get(key)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return 0, badInput(key + ": not a number")
	}
	return n, nil
}

func (s *Server) getRoot(*http.Request) (any, error) {
	key := s.RootKey()
	return map[string]string{"pub": hex.EncodeToString(key[:])}, nil
}
