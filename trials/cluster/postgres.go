package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions of StartPostgres.
type PostgresOptions struct {
	Dir string // its data go into a folder below this one; other users must be able to enter it
	// Settings go in front of the defaults, which are those of a server that must not lose anything: fsync,
	// synchronous_commit and full_page_writes on.
	Settings map[string]string
}

// Postgres is a private PostgreSQL server on a loopback port. It keeps port and data over Stop, Kill and Start.
type Postgres struct {
	bin, dir, password string
	port               int
	user               *syscall.Credential
	process            *Process
	before             time.Duration // CPU time of servers that ended
}

// StartPostgres makes a database cluster and starts its server.
func StartPostgres(ctx context.Context, o PostgresOptions) (*Postgres, error) {
	bin, err := postgresBin(ctx)
	if err != nil {
		return nil, err
	}
	p := &Postgres{bin: bin, dir: filepath.Join(o.Dir, "postgres"), password: rand.Text()}
	if p.user, err = unprivileged(p.dir); err != nil {
		return nil, err
	}
	if p.port, err = freePort(ctx); err != nil {
		return nil, err
	}
	secret := filepath.Join(p.dir, "password")
	if err := os.WriteFile(secret, []byte(p.password+"\n"), 0o600); err != nil {
		return nil, err
	}
	if p.user != nil {
		if err := os.Chown(secret, int(p.user.Uid), int(p.user.Gid)); err != nil {
			return nil, err
		}
	}
	data := filepath.Join(p.dir, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", "wafleet", "-A", "password", "--pwfile="+secret, "-E", "UTF8", "--no-locale", "--no-sync") //nolint:gosec // a folder of ours
	initdb.Dir, initdb.Env = p.dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir}
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: p.user}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	settings := map[string]string{
		"listen_addresses": "127.0.0.1", "port": strconv.Itoa(p.port), "unix_socket_directories": "", "max_connections": "300",
		"shared_buffers": "128MB", "max_wal_size": "2GB", "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on",
		"log_min_messages": "warning", "log_line_prefix": "%m [%p] %d ", "timezone": "UTC",
	}
	maps.Copy(settings, o.Settings)
	var conf strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, settings[name])
	}
	f, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0) //nolint:gosec // a folder of ours
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString(conf.String())
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return p, p.Start(ctx)
}

// Start starts the server again and waits until it answers.
func (p *Postgres) Start(ctx context.Context) error {
	var err error
	p.process, err = StartProcess(ProcessOptions{
		Path: filepath.Join(p.bin, "postgres"), Args: []string{"-D", filepath.Join(p.dir, "data")}, Dir: p.dir, User: p.user,
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "LC_ALL=C"}, Log: filepath.Join(filepath.Dir(p.dir), "postgres.log"),
	})
	if err != nil {
		return err
	}
	return Until(ctx, time.Minute, func() error {
		return p.exec(ctx, `SELECT 1`)
	})
}

// Stop ends the server: connections are cut, data are flushed ("fast").
func (p *Postgres) Stop() error { return p.end(syscall.SIGINT) }

// Crash ends the server as a power cut does: nothing is flushed, and the next start recovers.
func (p *Postgres) Crash() error { return p.end(syscall.SIGQUIT) }

func (p *Postgres) end(sig syscall.Signal) error {
	if cpu, err := treeCPU(p.process.PID()); err == nil {
		p.before += cpu
	}
	_, err := p.process.Stop(sig, 30*time.Second)
	return err
}

// Freeze stops every process of the server without ending it, so that connections stay open and nothing answers; Thaw
// lets them go on.
func (p *Postgres) Freeze() error { return p.signalAll(syscall.SIGSTOP) }

// Thaw ends a Freeze.
func (p *Postgres) Thaw() error { return p.signalAll(syscall.SIGCONT) }

func (p *Postgres) signalAll(sig syscall.Signal) error {
	err := p.process.Signal(sig) // first, so that it makes no new ones
	for _, pid := range children(p.process.PID()) {
		_ = syscall.Kill(pid, sig)
	}
	return err
}

// Close ends the server for good, frozen or not.
func (p *Postgres) Close() {
	_ = p.Thaw()
	_ = p.end(syscall.SIGQUIT)
}

// CPU is the user and system time of all its processes since StartPostgres, those that ended among them. Linux only.
func (p *Postgres) CPU() (time.Duration, error) {
	cpu, err := treeCPU(p.process.PID())
	return p.before + cpu, err
}

// Program is the path of a program that came with the server, such as pgbench.
func (p *Postgres) Program(name string) (string, error) {
	return exec.LookPath(filepath.Join(p.bin, name))
}

// Port is where it listens on 127.0.0.1.
func (p *Postgres) Port() int { return p.port }

// LogPath is the file with the server's log.
func (p *Postgres) LogPath() string { return p.process.LogPath() }

// URL is how to connect to a database of it, as its superuser.
func (p *Postgres) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword("wafleet", p.password), Host: "127.0.0.1:" + strconv.Itoa(p.port),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// CreateDatabase makes an empty database and returns its URL.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) (string, error) {
	return p.URL(name), p.exec(ctx, `CREATE DATABASE `+pgx.Identifier{name}.Sanitize())
}

// exec runs one statement in the server's own database.
func (p *Postgres) exec(ctx context.Context, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect to the private PostgreSQL (log: %s): %w", p.LogPath(), err)
	}
	defer conn.Close(ctx) //nolint:errcheck // one statement
	_, err = conn.Exec(ctx, statement)
	return err
}

// postgresBin finds the server's programs, and has them installed where that is possible.
func postgresBin(ctx context.Context) (string, error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return "", err
	}
	need := filepath.Join(root, "scripts", "need")
	if out, err := exec.CommandContext(ctx, need, "postgres").CombinedOutput(); err != nil { //nolint:gosec // a script of ours
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	out, err := exec.CommandContext(ctx, need, "--postgres-bin").Output() //nolint:gosec // a script of ours
	if err != nil {
		return "", fmt.Errorf("find PostgreSQL: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// moduleRoot is the folder of go.mod.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/wafleet/wafleet").Output()
	if err != nil {
		return "", fmt.Errorf("find the module's folder: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// unprivileged makes a server's folder, and returns whom the server runs as: nobody where we are root, because
// PostgreSQL refuses root, else ourselves (nil).
func unprivileged(dir string) (*syscall.Credential, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // nil is "as we are" for the process
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, _ := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, _ := strconv.ParseUint(nobody.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(dir, int(uid), int(gid))
}
