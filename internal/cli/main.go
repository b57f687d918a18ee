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

	"github.com/wafleet/wafleet/internal/cmdline"
	"github.com/wafleet/wafleet/internal/config"
)

// Exit codes of Main.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2 // wrong command line or settings: nothing was done
)

// commands are what there is to run. What a command is given is a runner, with its flags as fields.
func commands() []cmdline.Command {
	return []cmdline.Command{
		{Name: "up", Into: new(upCmd), Help: "Run everything in one process: API, worker, webhooks and scheduler. SQLite in a data folder unless DATABASE_URL says otherwise."},
		{Name: "api", Into: new(apiCmd), Help: "Run the HTTP API (needs PostgreSQL and Redis)."},
		{Name: "worker", Into: new(workerCmd), Help: "Run a worker, which holds WhatsApp sessions (needs PostgreSQL and Redis)."},
		{Name: "webhooks", Into: new(webhooksCmd), Help: "Run webhook delivery (needs PostgreSQL and Redis)."},
		{Name: "scheduler", Into: new(schedulerCmd), Help: "Run the periodic jobs (needs PostgreSQL and Redis)."},
		{Name: "demo", Into: new(demoCmd), Help: "Show the whole gateway at work with a simulated WhatsApp, then stay up to be tried."},
		{Name: "sim", Into: new(simCmd), Help: "Run the WhatsApp simulator: a server and phones for tests and demos."},
		{Name: "migrate", Into: new(migrateCmd), Help: "Bring the database to this version."},
		{Name: "keys", Help: "Make, list and revoke API keys."},
		{Name: "keys create", Into: new(keysCreateCmd), Help: "Make a key and print it once."},
		{Name: "keys list", Into: new(keysListCmd), Help: "List keys: what they are, never what they say."},
		{Name: "keys revoke", Into: new(keysRevokeCmd), Help: "End a key for good."},
		{Name: "workers", Help: "List the workers, and empty one of them."},
		{Name: "workers list", Into: new(workersListCmd), Help: "List workers: what they hold, what they could hold, and when they were last heard of."},
		{Name: "workers drain", Into: new(workersDrainCmd), Help: "Let a worker hand all its sessions over and claim none, and wait until it is empty."},
		{Name: "workers resume", Into: new(workersResumeCmd), Help: "Let a drained worker claim sessions again."},
		{Name: "import", Help: "Take over what another gateway kept."},
		{Name: "import pools", Into: new(importPoolsCmd), Help: "Take over session pools, their API keys and sessions from what mongoexport wrote."},
		{Name: "health", Into: new(healthCmd), Help: "Ask the process on this machine whether it is ready, for a container's health check."},
		{Name: "version", Into: new(versionCmd), Help: "Print the version of this binary and of what it speaks."},
	}
}

// runner is a command whose flags are set.
type runner interface {
	Run(ctx context.Context, p *program) error
}

// program is what a command works with.
type program struct {
	args, environ  []string
	stdout, stderr io.Writer
}

// usageError is a mistake in the command line or the settings.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// Main runs a command and returns the process's exit code. SIGINT and SIGTERM end it in order, a
// second one at once.
func Main(ctx context.Context, args, environ []string, stdout, stderr io.Writer) (code int) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)() // the next signal has its ordinary, deadly effect

	p := &program{args: args, environ: environ, stdout: stdout, stderr: stderr}
	line := cmdline.Program{
		Name: "wafleet", Help: "A self-hosted gateway for fleets of WhatsApp numbers.",
		Commands: commands(), Groups: config.Groups, About: config.About,
	}
	parsed, err := line.Parse(args)
	if err != nil {
		return p.fail(&usageError{err})
	}
	if parsed.Help != "" {
		_, _ = fmt.Fprint(stdout, parsed.Help)
		return exitOK
	}
	if err := config.Fill(parsed.Line, environ); err != nil {
		return p.fail(&usageError{err})
	}
	command, ok := parsed.Into.(runner)
	if !ok {
		return p.fail(fmt.Errorf("%s can't be run", parsed.Name))
	}
	if err := command.Run(ctx, p); err != nil {
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
	if _, ok := errors.AsType[*cmdline.Error](err); ok {
		_, _ = fmt.Fprintln(p.stderr, `wafleet: see "wafleet --help", or --help behind a command`)
	}
	return exitUsage
}
