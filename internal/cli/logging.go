package cli

import (
	"io"
	"log/slog"

	"github.com/wafleet/wafleet/internal/config"
)

// newLogger writes lines or JSON. Logs go to standard error; standard output is for answers.
func newLogger(w io.Writer, c *config.Logging) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
