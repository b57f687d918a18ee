// Package cli is the command line: it reads the settings, puts the parts of a process together, runs
// them and stops them in order. It is the only package that knows every other one.
//
// A process is a list of parts in stages. All start together; a stop ends stage after stage, so that
// nothing is taken in which could not be finished:
//
//	stage 0  the API listener            no new requests
//	stage 1  worker, webhooks, scheduler no new claims, what is in flight settles, leases go back
//	stage 2  caches, waits, ops listener readiness is 503 from the first moment of the stop
//	then     bus and database close
//
// A part that ends by itself stops the process with its error. The whole stop is bounded; a second
// signal ends the process at once.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // organizations have time zones, also where the machine knows none

	"github.com/alecthomas/kong"

	"github.com/wafleet/wafleet/internal/config"
)

// Exit codes of Main.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2 // wrong command line or settings: nothing was done
)

// commands is the command line.
type commands struct {
	Up        upCmd        `cmd:"" help:"Run everything in one process: API, worker, webhooks and scheduler. SQLite in a data folder unless DATABASE_URL says otherwise."`
	API       apiCmd       `cmd:"" name:"api" help:"Run the HTTP API (needs PostgreSQL and Redis)."`
	Worker    workerCmd    `cmd:"" help:"Run a worker, which holds WhatsApp sessions (needs PostgreSQL and Redis)."`
	Webhooks  webhooksCmd  `cmd:"" help:"Run webhook delivery (needs PostgreSQL and Redis)."`
	Scheduler schedulerCmd `cmd:"" help:"Run the periodic jobs (needs PostgreSQL and Redis)."`
	Demo      demoCmd      `cmd:"" help:"Show the whole gateway at work with a simulated WhatsApp, then stay up to be tried."`
	Sim       simCmd       `cmd:"" help:"Run the WhatsApp simulator: a server and phones for tests and demos."`
	Migrate   migrateCmd   `cmd:"" help:"Bring the database to this version."`
	Keys      keysCmd      `cmd:"" help:"Make, list and revoke API keys."`
	Import    importCmd    `cmd:"" help:"Take over what another gateway kept."`
	Version   versionCmd   `cmd:"" help:"Print the version of this binary and of what it speaks."`
}

// program is what a command works with.
type program struct {
	environ        []string
	stdout, stderr io.Writer
}

// usageError is a mistake in the command line or the settings.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// exited carries the code with which kong wanted to end the process (--help).
type exited int

// Main runs a command and returns the process's exit code. SIGINT and SIGTERM end it in order, a
// second one at once.
func Main(ctx context.Context, args, environ []string, stdout, stderr io.Writer) (code int) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)() // the next signal has its ordinary, deadly effect

	defer func() {
		switch r := recover().(type) {
		case nil:
		case exited:
			code = int(r)
		default:
			panic(r)
		}
	}()
	p := &program{environ: environ, stdout: stdout, stderr: stderr}
	parser, err := kong.New(&commands{},
		kong.Name("wafleet"),
		kong.Description("A self-hosted gateway for fleets of WhatsApp numbers."),
		kong.Resolvers(config.Resolver(environ)),
		kong.ValueFormatter(config.HelpValue),
		config.Groups(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(p),
	)
	if err != nil {
		return p.fail(err)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return p.fail(&usageError{err})
	}
	if err := parsed.Run(); err != nil {
		return p.fail(err)
	}
	return exitOK
}

// fail prints an error, one line for each joined one, and returns the exit code.
func (p *program) fail(err error) int {
	usage, isUsage := errors.AsType[*usageError](err)
	if !isUsage {
		_, _ = fmt.Fprintf(p.stderr, "wafleet: %v\n", err)
		return exitFailed
	}
	lines := []error{usage.err}
	if joined, ok := usage.err.(interface{ Unwrap() []error }); ok {
		lines = joined.Unwrap()
	}
	for _, line := range lines {
		_, _ = fmt.Fprintf(p.stderr, "wafleet: %v\n", line)
	}
	if _, ok := errors.AsType[*kong.ParseError](err); ok {
		_, _ = fmt.Fprintln(p.stderr, `wafleet: see "wafleet --help", or --help behind a command`)
	}
	return exitUsage
}
