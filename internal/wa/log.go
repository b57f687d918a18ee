package wa

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"

	"go.mau.fi/libsignal/logger"
	waBinary "go.mau.fi/whatsmeow/binary"
	"go.mau.fi/whatsmeow/types"
	waLog "go.mau.fi/whatsmeow/util/log"
)

// libsignal prints to stdout what whatsmeow reports as well, and creates its logger on first use without a lock. It is
// silenced when the program starts, before any goroutine can race with that.
func init() { logger.Logger = silent{} } //nolint:gochecknoinits // the reason is above

type silent struct{}

func (silent) Debug(string, string)   {}
func (silent) Info(string, string)    {}
func (silent) Warning(string, string) {}
func (silent) Error(string, string)   {}
func (silent) Configure(string)       {}

// What whatsmeow tells in its log and nowhere else. If an upgrade changes these texts, the reason of such an end
// becomes "disconnected" and a test fails.
const (
	logStream503  = "Got 503 stream error, assuming automatic reconnect will handle it"
	logConnect5xx = "Got %d/%s connect failure, assuming automatic reconnect will handle it"
)

// waLogger gives whatsmeow's lines to slog, one level lower than it thinks of them: what it calls an error is mostly a
// thing that it or we handle. Stanzas are reduced to their tag and long numbers to their last four digits.
type waLogger struct {
	*waSink
	module string
}

// waSink is what the loggers of one generation share.
type waSink struct {
	log *slog.Logger
	// ctx is the generation's: what whatsmeow complains about after its end is expected.
	ctx context.Context //nolint:containedctx // the generation's lifetime: whatsmeow logs without one
	// serverError is told the code when WhatsApp said that the problem is on its side.
	serverError func(code int)
	// took and answered see every stanza that is read and sent, before it goes on its way; nil: nobody looks.
	took, answered func(n *waBinary.Node)
	// lines being written; closed when Run returns, because whatsmeow's goroutines may linger.
	lines tracker
}

func (l *waLogger) Errorf(msg string, args ...any) { l.put(slog.LevelWarn, msg, args) }

func (l *waLogger) Warnf(msg string, args ...any) {
	switch msg {
	case logStream503:
		l.serverError(503)
	case logConnect5xx:
		if code, ok := args[0].(int); ok {
			l.serverError(code)
		}
	}
	l.put(slog.LevelInfo, msg, args)
}

func (l *waLogger) Infof(msg string, args ...any)  { l.put(slog.LevelDebug, msg, args) }
func (l *waLogger) Debugf(msg string, args ...any) { l.put(slog.LevelDebug, msg, args) }

// Sub names a part of whatsmeow. Recv and Send print every stanza whole: they are looked at and cut off.
func (l *waLogger) Sub(module string) waLog.Logger {
	switch {
	case module == "Recv" && l.took != nil:
		return stanzaLog{waLog.Noop, l.took}
	case module == "Send" && l.answered != nil:
		return stanzaLog{waLog.Noop, l.answered}
	case module == "Recv", module == "Send":
		return waLog.Noop
	}
	if l.module != "" {
		module = l.module + "/" + module
	}
	return &waLogger{waSink: l.waSink, module: module}
}

func (l *waLogger) put(level slog.Level, msg string, args []any) {
	if l.ctx.Err() != nil {
		level = slog.LevelDebug
	}
	ctx := context.WithoutCancel(l.ctx)
	if !l.log.Enabled(ctx, level) || strings.HasPrefix(msg, "Errored frame hex") || !l.lines.enter() {
		return
	}
	defer l.lines.leave()
	safe := make([]any, len(args))
	for i, a := range args {
		safe[i] = reduce(a)
	}
	l.log.LogAttrs(ctx, level, "whatsmeow",
		slog.String("module", l.module), slog.String("detail", mask(fmt.Sprintf(msg, safe...))))
}

// reduce replaces what must not be printed.
func reduce(a any) any {
	switch v := a.(type) {
	case *waBinary.Node:
		if v == nil {
			return "<nil>"
		}
		return "<" + v.Tag + ">"
	case waBinary.Node:
		return "<" + v.Tag + ">"
	case []types.JID:
		return fmt.Sprintf("%d addresses", len(v))
	default:
		return a
	}
}

var longNumber = regexp.MustCompile(`\d{7,}`)

// mask leaves the last four digits of every number that could be a phone number or a LID.
func mask(s string) string {
	return longNumber.ReplaceAllStringFunc(s, func(n string) string { return "…" + n[len(n)-4:] })
}
