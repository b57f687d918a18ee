package testkit

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// RedisServer is a Redis server of one test, which may empty, fill, freeze and kill it. It keeps its port and, by its
// append-only file, what it was told up to a second before a Kill.
type RedisServer struct {
	t    testing.TB
	dir  string
	port int
	cmd  *exec.Cmd
}

// NewRedisServer starts one on a free loopback port; it ends with the test.
func NewRedisServer(t testing.TB) *RedisServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it is TCP
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	s := &RedisServer{t: t, dir: t.TempDir(), port: port}
	s.Start()
	t.Cleanup(s.Kill)
	return s
}

// Addr is its host:port.
func (s *RedisServer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Start starts it (again) and waits until it answers.
func (s *RedisServer) Start() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.cmd = exec.Command("redis-server",
		"--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.dir, "--save", "", "--appendonly", "yes", "--appendfsync", "everysec")
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("start redis-server: %v", err)
	}
	Eventually(s.t, 10*time.Second, func() error {
		_, err := s.do("PING")
		return err
	})
}

// Do sends one command and fails the test if the server refuses it.
func (s *RedisServer) Do(words ...string) string {
	s.t.Helper()
	got, err := s.do(words...)
	if err != nil {
		s.t.Fatalf("%v: %v", words, err)
	}
	return got
}

func (s *RedisServer) do(words ...string) (string, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, DisableCache: true, Dialer: net.Dialer{Timeout: time.Second}})
	if err != nil {
		return "", err
	}
	defer client.Close()
	r := client.Do(s.t.Context(), client.B().Arbitrary(words...).Build())
	if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
		return "", err
	}
	m, err := r.ToAny()
	return fmt.Sprint(m), errors.Join(err)
}

// Kill ends it by SIGKILL.
func (s *RedisServer) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // its end is the point
	s.cmd = nil
}

// Freeze stops it without ending it; Thaw lets it go on.
func (s *RedisServer) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw ends a Freeze.
func (s *RedisServer) Thaw() { s.signal(syscall.SIGCONT) }

func (s *RedisServer) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("signal redis-server: %v", err)
	}
}
