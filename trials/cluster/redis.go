package cluster

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// RedisOptions of StartRedis.
type RedisOptions struct {
	Dir string // its data go into a folder below this one; other users must be able to enter it
	AOF bool   // keep what is written in a file, synced once a second; else nothing survives an end
}

// Redis is a private Redis server on a loopback port. It keeps its port over Stop, Kill and Start.
type Redis struct {
	o       RedisOptions
	dir     string
	port    int
	user    *syscall.Credential
	process *Process
}

// StartRedis starts a server.
func StartRedis(ctx context.Context, o RedisOptions) (*Redis, error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, filepath.Join(root, "scripts", "need"), "redis").CombinedOutput(); err != nil { //nolint:gosec // a script of ours
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	r := &Redis{o: o, dir: filepath.Join(o.Dir, "redis")}
	if r.user, err = unprivileged(r.dir); err != nil {
		return nil, err
	}
	if r.port, err = freePort(ctx); err != nil {
		return nil, err
	}
	return r, r.Start(ctx)
}

// Start starts the server again and waits until it answers.
func (r *Redis) Start(ctx context.Context) error {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return err
	}
	aof := "no"
	if r.o.AOF {
		aof = "yes"
	}
	r.process, err = StartProcess(ProcessOptions{
		Path: path, Dir: r.dir, User: r.user, Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir}, Log: filepath.Join(r.o.Dir, "redis.log"),
		Args: []string{
			"--bind", "127.0.0.1", "--port", strconv.Itoa(r.port), "--dir", r.dir, "--save", "", "--appendonly", aof,
			"--appendfsync", "everysec", "--maxmemory", "256mb", "--maxmemory-policy", "noeviction", "--databases", "1",
		},
	})
	if err != nil {
		return err
	}
	return Until(ctx, 30*time.Second, func() error { return r.ping(ctx) })
}

func (r *Redis) ping(ctx context.Context) error {
	if got, err := r.Do(ctx, "PING"); err != nil || got != "+PONG" {
		return fmt.Errorf("redis answers %q, %w", got, err)
	}
	return nil
}

// Do gives the server one command in a line and returns the first line of its answer as it comes over the wire.
func (r *Redis) Do(ctx context.Context, command string) (string, error) {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", r.Addr())
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // one question
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

// Forget deletes what the server kept in files; it must not run.
func (r *Redis) Forget() error { return os.RemoveAll(filepath.Join(r.dir, "appendonlydir")) }

// Stop ends the server in order.
func (r *Redis) Stop() error {
	_, err := r.process.Stop(syscall.SIGTERM, 10*time.Second)
	return err
}

// Crash ends the server by SIGKILL.
func (r *Redis) Crash() { r.process.Kill() }

// Freeze stops the server without ending it; Thaw lets it go on.
func (r *Redis) Freeze() error { return r.process.Signal(syscall.SIGSTOP) }

// Thaw ends a Freeze.
func (r *Redis) Thaw() error { return r.process.Signal(syscall.SIGCONT) }

// Close ends the server for good.
func (r *Redis) Close() { r.process.Kill() }

// CPU is the user and system time of the server that runs now. Linux only.
func (r *Redis) CPU() (time.Duration, error) { return r.process.CPU() }

// Addr is its host:port.
func (r *Redis) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

// URL is what REDIS_URL takes.
func (r *Redis) URL() string { return "redis://" + r.Addr() }
