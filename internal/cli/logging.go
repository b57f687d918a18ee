package cli

import (
	"io"
	"log/slog"
	"regexp"

	"github.com/wafleet/wafleet/internal/config"
)

// newLogger writes lines or JSON. Logs go to standard error; standard output is for answers.
func newLogger(w io.Writer, c *config.Logging) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.LogLevel, ReplaceAttr: maskErrors}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// longNumber is a number as long as those of phones and LIDs are.
var longNumber = regexp.MustCompile(`\d{6,}(\d{4})`)

// maskErrors leaves the last four digits of long numbers in errors. Nobody logs a phone number on
// purpose, but what WhatsApp's client and the databases complain of may name one.
func maskErrors(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindAny {
		return a
	}
	if err, ok := a.Value.Any().(error); ok {
		return slog.String(a.Key, longNumber.ReplaceAllString(err.Error(), "…$1"))
	}
	return a
}
