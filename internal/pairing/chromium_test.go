//go:build browser

package pairing

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/wafleet/wafleet/internal/testkit"
)

// chromium is a real browser, driven over the protocol that its own developer tools speak.
type chromium struct {
	conn *websocket.Conn
	ctx  context.Context //nolint:containedctx // the browser's lifetime
	stop func()

	mu      sync.Mutex
	next    int
	waiting map[int]chan reply
	tabs    map[string]*tab // by session
}

type reply struct {
	result json.RawMessage
	err    error
}

// theBrowser is one for all tests: it takes seconds to start, and its visitors share nothing.
var theBrowser = sync.OnceValues(startChromium)

// TestMain stops the browser, if a test started it.
func TestMain(m *testing.M) {
	code := m.Run()
	if b, err := theBrowser(); err == nil {
		b.stop()
	}
	os.Exit(code)
}

// findChromium is the browser that scripts/need installs.
func findChromium() (string, error) {
	for _, name := range []string{
		os.Getenv("WAFLEET_TEST_CHROMIUM"), "chromium", "chromium-browser", "google-chrome",
		"/Applications/Chromium.app/Contents/MacOS/Chromium", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
	} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path, nil
		}
	}
	return "", errors.New("no Chromium here: run `make test-browser`, which installs it, or set WAFLEET_TEST_CHROMIUM")
}

func startChromium() (*chromium, error) {
	path, err := findChromium()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "wafleet-chromium-*")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	args := []string{
		"--headless=new", "--remote-debugging-port=0", "--user-data-dir=" + dir, "--no-first-run", "--no-default-browser-check",
		"--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-extensions",
		"--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb", "--lang=en",
	}
	if os.Geteuid() == 0 {
		args = append(args, "--no-sandbox") // root has none; the pages are our own
	}
	cmd := exec.CommandContext(ctx, path, append(args, "about:blank")...)
	cmd.WaitDelay = 10 * time.Second
	var out lockedLog
	cmd.Stderr = &out
	b := &chromium{ctx: ctx, waiting: map[int]chan reply{}, tabs: map[string]*tab{}}
	read := make(chan struct{})
	b.stop = func() {
		if b.conn != nil {
			_, _ = b.call("", "Browser.close", nil)
			_ = b.conn.CloseNow()
			<-read
		}
		cancel()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if b.conn, err = connect(ctx, filepath.Join(dir, "DevToolsActivePort")); err != nil {
		b.stop()
		return nil, fmt.Errorf("%w; it said: %s", err, out.String())
	}
	go func() {
		defer close(read)
		b.read()
	}()
	return b, nil
}

// connect waits for the file in which the browser says where it listens.
func connect(ctx context.Context, portFile string) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		raw, err := os.ReadFile(portFile)
		if where := strings.Split(strings.TrimSpace(string(raw)), "\n"); err == nil && len(where) == 2 {
			conn, _, err := websocket.Dial(ctx, "ws://127.0.0.1:"+where[0]+where[1], nil)
			if err == nil {
				conn.SetReadLimit(64 << 20)
			}
			return conn, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.New("Chromium does not start")
		}
	}
}

// eventually waits for something and says what it waited for in vain.
func eventually(t *testing.T, timeout time.Duration, what string, check func() error) {
	t.Helper()
	testkit.Eventually(t, timeout, func() error {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

// read hands answers to who waits for them, and complaints of pages to their tabs.
func (b *chromium) read() {
	for {
		_, raw, err := b.conn.Read(b.ctx)
		if err != nil {
			b.mu.Lock()
			for id, c := range b.waiting {
				c <- reply{err: err}
				delete(b.waiting, id)
			}
			b.mu.Unlock()
			return
		}
		var m struct {
			ID        int                       `json:"id"`
			SessionID string                    `json:"sessionId"`
			Method    string                    `json:"method"`
			Params    json.RawMessage           `json:"params"`
			Result    json.RawMessage           `json:"result"`
			Error     *struct{ Message string } `json:"error"`
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			continue
		}
		b.mu.Lock()
		if c := b.waiting[m.ID]; m.ID != 0 && c != nil {
			delete(b.waiting, m.ID)
			r := reply{result: m.Result}
			if m.Error != nil {
				r.err = errors.New(m.Error.Message)
			}
			c <- r
		}
		if tab := b.tabs[m.SessionID]; tab != nil {
			if m.Method == "Log.entryAdded" || m.Method == "Runtime.exceptionThrown" {
				tab.complaints = append(tab.complaints, string(m.Params))
			}
		}
		b.mu.Unlock()
	}
}

func (b *chromium) call(session, method string, params any) (json.RawMessage, error) {
	c := make(chan reply, 1)
	b.mu.Lock()
	b.next++
	id := b.next
	b.waiting[id] = c
	b.mu.Unlock()
	msg := map[string]any{"id": id, "method": method}
	if params != nil {
		msg["params"] = params
	}
	if session != "" {
		msg["sessionId"] = session
	}
	raw, err := json.Marshal(msg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Second)
	defer cancel()
	if err := b.conn.Write(ctx, websocket.MessageText, raw); err != nil {
		return nil, err
	}
	select {
	case r := <-c:
		if r.err != nil {
			return nil, fmt.Errorf("%s: %w", method, r.err)
		}
		return r.result, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", method, ctx.Err())
	}
}

// tab is one page of a visitor of its own: nothing is shared with other tabs.
type tab struct {
	t          *testing.T
	b          *chromium
	session    string
	complaints []string // of the page: broken scripts, what its policy refused
}

type tabOptions struct {
	width, height int // 0 = 900 × 800
	language      string
	noScripts     bool
	deaf          bool // events don't get through
	dark          bool
}

func (b *chromium) open(t *testing.T, o tabOptions) *tab {
	t.Helper()
	var made struct{ BrowserContextID, TargetID, SessionID string }
	b.must(t, "", "Target.createBrowserContext", map[string]any{}, &made)
	b.must(t, "", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": made.BrowserContextID}, &made)
	b.must(t, "", "Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &made)
	p := &tab{t: t, b: b, session: made.SessionID}
	b.mu.Lock()
	b.tabs[made.SessionID] = p
	b.mu.Unlock()
	if o.width == 0 {
		o.width, o.height = 900, 800
	}
	for _, c := range []struct {
		method string
		params map[string]any
	}{
		{"Page.enable", nil},
		{"Runtime.enable", nil},
		{"Log.enable", nil},
		{"Network.enable", nil},
		{"Network.setBlockedURLs", map[string]any{"urls": map[bool][]string{true: {"*/events"}, false: {}}[o.deaf]}},
		{"Emulation.setDeviceMetricsOverride", map[string]any{"width": o.width, "height": o.height, "deviceScaleFactor": 2, "mobile": o.width < 600}},
		{"Network.setExtraHTTPHeaders", map[string]any{"headers": map[string]string{"Accept-Language": o.language}}},
		{"Emulation.setScriptExecutionDisabled", map[string]any{"value": o.noScripts}},
		{"Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": map[bool]string{true: "dark", false: "light"}[o.dark]}}}},
	} {
		b.must(t, p.session, c.method, c.params, nil)
	}
	return p
}

func (b *chromium) must(t *testing.T, session, method string, params any, into any) {
	t.Helper()
	raw, err := b.call(session, method, params)
	if err == nil && into != nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// visit loads a page and waits until it is there.
func (p *tab) visit(url string) {
	p.t.Helper()
	p.settle(func() { p.b.must(p.t, p.session, "Page.navigate", map[string]any{"url": url}, nil) })
}

// settle does what leads to another page and waits for it.
func (p *tab) settle(do func()) {
	p.t.Helper()
	if _, err := p.eval(`window.before = true`); err != nil {
		p.t.Fatal(err)
	}
	do()
	p.has("another page", `window.before === undefined && document.readyState === "complete"`)
}

// eval runs an expression in the page, also in one whose own scripts may not run.
func (p *tab) eval(expression string) (any, error) {
	raw, err := p.b.call(p.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true})
	if err != nil {
		return nil, err
	}
	var out struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Text string }
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, err
	}
	if out.ExceptionDetails != nil {
		return nil, errors.New(out.ExceptionDetails.Text + " in " + expression)
	}
	return out.Result.Value, nil
}

// text is what a visitor reads.
func (p *tab) text() string {
	p.t.Helper()
	v, err := p.eval(`document.body.innerText`)
	if err != nil {
		return "" // between two pages
	}
	s, _ := v.(string)
	return s
}

// await waits until the page says something.
func (p *tab) await(want string) {
	p.t.Helper()
	eventually(p.t, 20*time.Second, "the page to say "+want, func() error {
		if got := p.text(); !strings.Contains(got, want) {
			return fmt.Errorf("it says: %s", got)
		}
		return nil
	})
}

// has waits until an expression is true in the page.
func (p *tab) has(what, expression string) {
	p.t.Helper()
	eventually(p.t, 20*time.Second, what, func() error {
		v, err := p.eval(expression)
		if err != nil || v != true {
			return fmt.Errorf("%v, %v; the page says: %s", v, err, p.text())
		}
		return nil
	})
}

// click presses the mouse on the first visible element that holds the text, as a person does.
func (p *tab) click(text string) {
	p.t.Helper()
	find := fmt.Sprintf(`(() => {
		for (const el of document.querySelectorAll("button, a, input")) {
			if (!el.innerText.includes(%q) || !el.getClientRects().length) continue;
			el.scrollIntoView({block: "center"});
			const r = el.getBoundingClientRect();
			return [r.x + r.width / 2, r.y + r.height / 2];
		}
	})()`, text)
	var at []any
	eventually(p.t, 20*time.Second, "something to press that says "+text, func() error {
		v, err := p.eval(find)
		var ok bool
		if at, ok = v.([]any); err != nil || !ok {
			return fmt.Errorf("%v; the page says: %s", err, p.text())
		}
		return nil
	})
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		p.b.must(p.t, p.session, "Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1}, nil)
	}
}

// enter types into the field with this id.
func (p *tab) enter(id, text string) {
	p.t.Helper()
	p.has("a field to type into", fmt.Sprintf(`(() => { const el = document.getElementById(%q); if (!el) return false; el.focus(); return document.activeElement === el })()`, id))
	p.b.must(p.t, p.session, "Input.insertText", map[string]any{"text": text}, nil)
}

// picture takes a screenshot of the whole page and keeps it among the test's artifacts.
func (p *tab) picture(name string) string {
	p.t.Helper()
	var shot struct{ Data string }
	p.b.must(p.t, p.session, "Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &shot)
	raw, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		p.t.Fatal(err)
	}
	path := filepath.Join(p.t.ArtifactDir(), name+".png")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// fits fails the test if anything of the page is wider than the screen.
func (p *tab) fits(name string) {
	p.t.Helper()
	v, err := p.eval(`(() => {
		const wide = document.documentElement.clientWidth;
		return [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > wide + 0.5 && getComputedStyle(e).position !== "absolute")
			.map((e) => e.tagName + "." + e.className).concat(document.documentElement.scrollWidth > wide ? ["the page"] : []).join(", ")
	})()`)
	if err != nil || v != "" {
		p.t.Errorf("%s: wider than the screen: %v, %v", name, v, err)
	}
}

// quiet fails the test if the page complained: of a script, a file that is missing, its policy.
func (p *tab) quiet(name string) {
	p.t.Helper()
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	for _, c := range p.complaints {
		p.t.Errorf("%s: the browser complains: %s", name, c)
	}
}

// decode reads a QR code from a picture with a reader of another make.
func decode(t *testing.T, picture string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "zbarimg", "--raw", "-q", "-Sdisable", "-Sqrcode.enable", picture).Output()
	if err != nil {
		t.Fatalf("zbarimg reads nothing from %s: %v (make test-browser installs it)", picture, err)
	}
	return strings.TrimSpace(string(out))
}
