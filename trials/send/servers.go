package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// child is a process of the trial.
type child struct {
	cmd  *exec.Cmd
	out  string // path
	errs string
	done chan struct{}
}

func start(ctx context.Context, dir, name string, env []string, path string, args ...string) (*child, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	c := &child{cmd: cmd, out: filepath.Join(dir, name+".out"), errs: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	out, err := os.Create(c.out)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	errs, err := os.Create(c.errs)
	if err != nil {
		return nil, err
	}
	defer errs.Close()
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait(); close(c.done) }()
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}

func (c *child) find(ctx context.Context, path, pattern string) (string, error) {
	re := regexp.MustCompile(pattern)
	var found string
	err := until(ctx, pattern, func() (bool, error) {
		raw, err := os.ReadFile(path)
		if err != nil {
			return false, err
		}
		if m := re.FindSubmatch(raw); m != nil {
			found = string(m[1])
			return true, nil
		}
		select {
		case <-c.done:
			return false, fmt.Errorf("ended: %s", raw)
		default:
			return false, nil
		}
	})
	return found, err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func startPostgres(ctx context.Context, dir string) (url string, stop func(), err error) {
	raw, err := exec.CommandContext(ctx, "scripts/need", "--postgres-bin").Output()
	if err != nil {
		return "", nil, err
	}
	bin := strings.TrimSpace(string(raw))
	data := filepath.Join(dir, "postgres")
	var cred *syscall.SysProcAttr
	if os.Getuid() == 0 {
		cred = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if err := os.Mkdir(data, 0o700); err != nil {
			return "", nil, err
		}
		_ = os.Chown(data, 65534, 65534)
	}
	init := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", "wafleet", "-A", "trust", "-E", "UTF8", "--no-locale")
	init.SysProcAttr, init.Dir = cred, data
	if out, err := init.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	conf := fmt.Sprintf(`
listen_addresses='127.0.0.1'
port=%d
unix_socket_directories=''
max_connections=200
shared_buffers=256MB
max_wal_size=4GB
checkpoint_timeout=30min
shared_preload_libraries='pg_stat_statements'
pg_stat_statements.max=1000
timezone='UTC'
`, port)
	f, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return "", nil, err
	}
	_, err = f.WriteString(conf)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", nil, err
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data)
	cmd.SysProcAttr, cmd.Dir = cred, data
	log, err := os.Create(filepath.Join(dir, "postgres.log"))
	if err != nil {
		return "", nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() { _ = cmd.Process.Signal(syscall.SIGINT); _ = cmd.Wait() }
	url = fmt.Sprintf("postgres://wafleet@127.0.0.1:%d/", port)
	err = until(ctx, "PostgreSQL", func() (bool, error) {
		c, err := pgx.Connect(ctx, url+"postgres?sslmode=disable")
		if err != nil {
			return false, nil
		}
		return true, c.Close(ctx)
	})
	if err != nil {
		stop()
		return "", nil, err
	}
	return url, stop, nil
}

var _ = bufio.NewReader
