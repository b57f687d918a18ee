package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wafleet/wafleet/trials/cluster"
)

// request is what one accepted request asks of the database.
type request struct{ statements []statement }

// statement is one text with its parameters, as the server logged them.
type statement struct {
	text       string
	parameters []string // $1 first
}

// capture lets the server log the statements of one request.
func capture(ctx context.Context, c *cluster.Cluster, pg *cluster.Postgres, keyed bool) (request, error) {
	wire, err := cluster.DialWire(ctx, c.API)
	if err != nil {
		return request{}, err
	}
	defer wire.Close()
	who := c.Numbers[0].Key
	for k := range 2 * people { // everybody known, every statement prepared and planned
		if err := send(wire, who, "", k); err != nil {
			return request{}, err
		}
	}
	key := ""
	if keyed {
		key = "capture-0000000000000000"
		if err := send(wire, who, "capture-first", 0); err != nil {
			return request{}, err
		}
	}
	admin, err := pgx.Connect(ctx, pg.URL("postgres"))
	if err != nil {
		return request{}, err
	}
	defer admin.Close(ctx) //nolint:errcheck // a few statements
	logAll := func(setting string) error {
		if _, err := admin.Exec(ctx, `ALTER SYSTEM SET log_min_duration_statement = `+setting); err != nil {
			return err
		}
		_, err := admin.Exec(ctx, `SELECT pg_reload_conf()`)
		return errors.Join(err, cluster.Pause(ctx, time.Second)) // backends read it before their next statement
	}
	if err := logAll("0"); err != nil {
		return request{}, err
	}
	from, err := os.Stat(pg.LogPath())
	if err != nil {
		return request{}, err
	}
	if err := errors.Join(send(wire, who, key, 0), logAll("-1")); err != nil {
		return request{}, err
	}
	raw, err := os.ReadFile(pg.LogPath())
	if err != nil {
		return request{}, err
	}
	r := parseLog(string(raw[from.Size():]))
	inserts := 0
	for _, s := range r.statements {
		if strings.HasPrefix(s.text, "INSERT INTO messages") {
			inserts++
		}
	}
	if inserts != 1 {
		return r, fmt.Errorf("the log of one request shows %d messages made", inserts)
	}
	return r, nil
}

var (
	// A line of the application's database that tells an executed statement; those of others are not looked at.
	executed  = regexp.MustCompile(`^\S+ \S+ \S+ \[\d+\] trial LOG:  duration: \S+ ms  (?:execute \S+|statement): (.*)$`)
	detail    = regexp.MustCompile(`^\S+ \S+ \S+ \[\d+\] trial DETAIL:  [Pp]arameters: (.*)$`)
	parameter = regexp.MustCompile(`\$\d+ = (NULL|'(?:[^']|'')*')`)
)

// parseLog reads the statements of a log: a line each, that goes on with tabs, and a line with parameters behind it. Those
// of parsing and binding are passed over, and the driver's pings of a connection that was idle.
func parseLog(log string) request {
	var r request
	ours := false // the line before told a statement
	for line := range strings.SplitSeq(strings.ReplaceAll(log, "\n\t", " "), "\n") {
		if m := executed.FindStringSubmatch(line); m != nil && !strings.HasPrefix(m[1], "--") {
			r.statements, ours = append(r.statements, statement{text: m[1]}), true
			continue
		}
		if m := detail.FindStringSubmatch(line); m != nil && ours {
			last := &r.statements[len(r.statements)-1]
			for _, p := range parameter.FindAllStringSubmatch(m[1], -1) {
				last.parameters = append(last.parameters, p[1])
			}
		}
		ours = false
	}
	return r
}

// unique are what no two requests may have in common: message ids, WhatsApp ids, nonces and the key.
var unique = regexp.MustCompile(`msg_[0-9a-z]{26}|3EB0[0-9A-F]{18}|\b[A-Z2-7]{26}\b|capture-[0-9]{16}`)

// word is a value in JSON that pgbench would take for one of its variables.
var word = regexp.MustCompile(`":(true|false|null)\b`)

// script is the request as pgbench runs it. Each parameter stands where it stood, as text; the end of what must be unique
// is a number that pgbench chooses anew for each run.
func (r request) script() string {
	var b strings.Builder
	b.WriteString("\\set n random(1, 9000000000000000)\n")
	for _, s := range r.statements {
		text := s.text
		for i, parameter := range slices.Backward(s.parameters) { // $10 before $1
			value := unique.ReplaceAllStringFunc(word.ReplaceAllString(parameter, `": $1`), func(token string) string {
				return token[:len(token)-16] + "' || lpad((:n)::text, 16, '0') || '"
			})
			text = strings.ReplaceAll(text, "$"+strconv.Itoa(i+1), "("+value+")")
		}
		b.WriteString(text + ";\n")
	}
	return b.String()
}

// bench is what pgbench says.
type bench struct{ rate, meanMS float64 }

var (
	tps     = regexp.MustCompile(`tps = ([0-9.]+)`)
	latency = regexp.MustCompile(`latency average = ([0-9.]+) ms`)
)

// bench runs the request with pgbench, so often by each client. It has as many connections as clients, more than the API.
func (r request) bench(ctx context.Context, dir string, pg *cluster.Postgres, times int) (bench, error) {
	script := filepath.Join(dir, "request.sql")
	if err := os.WriteFile(script, []byte(r.script()), 0o600); err != nil {
		return bench{}, err
	}
	path, err := pg.Program("pgbench")
	if err != nil {
		return bench{}, err
	}
	cmd := exec.CommandContext(ctx, path, "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", "2", "-t", strconv.Itoa(times), "-f", script, pg.URL("trial")) //nolint:gosec // a program of the server
	out, err := cmd.CombinedOutput()
	if err != nil {
		return bench{}, fmt.Errorf("pgbench: %w\n%s\n%s", err, out, r.script())
	}
	var b bench
	t, l := tps.FindSubmatch(out), latency.FindSubmatch(out)
	if t == nil || l == nil {
		return b, fmt.Errorf("pgbench told no rate:\n%s", out)
	}
	if b.rate, err = strconv.ParseFloat(string(t[1]), 64); err == nil {
		b.meanMS, err = strconv.ParseFloat(string(l[1]), 64)
	}
	return b, err
}
