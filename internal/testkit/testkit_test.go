package testkit_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"

	"github.com/wafleet/wafleet/internal/testkit"
)

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatalf("connect to %s: %v", dsn, err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func TestEachPostgresDatabaseIsItsOwn(t *testing.T) {
	first, second := testkit.Postgres(t), testkit.Postgres(t)
	if first == second {
		t.Fatalf("Postgres gave %q twice", first)
	}
	if _, err := connect(t, first).Exec(t.Context(), `CREATE TABLE mine (n int)`); err != nil {
		t.Fatal(err)
	}
	var seen bool
	err := connect(t, second).QueryRow(t.Context(), `SELECT to_regclass('mine') IS NOT NULL`).Scan(&seen)
	if err != nil || seen {
		t.Errorf("table of the first database visible in the second = %v, %v, want false", seen, err)
	}
}

func TestAPostgresDatabaseIsDroppedWithItsTest(t *testing.T) {
	server := connect(t, testkit.Postgres(t))
	var name string
	t.Run("a test that forgets to close its connection", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), testkit.Postgres(t))
		if err != nil {
			t.Fatal(err)
		}
		name = conn.Config().Database
	})
	var exists bool
	err := server.QueryRow(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)`, name).Scan(&exists)
	if err != nil || exists {
		t.Errorf("database %s exists after its test = %v, %v, want false", name, exists, err)
	}
}

func TestATemplateIsPreparedOnceAndCopiedForEach(t *testing.T) {
	server := connect(t, testkit.Postgres(t))
	template := "testkit_self_" + server.Config().Database[len("test_"):]
	t.Cleanup(func() {
		_, err := server.Exec(context.WithoutCancel(t.Context()), `DROP DATABASE IF EXISTS `+template)
		if err != nil {
			t.Errorf("drop the template: %v", err)
		}
	})
	var prepared atomic.Int64
	prepare := func(dsn string) error {
		prepared.Add(1)
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			return err
		}
		_, err = conn.Exec(t.Context(), `CREATE TABLE seeded AS SELECT 7 AS n`)
		return errors.Join(err, conn.Close(t.Context()))
	}
	dsns := make([]string, 4)
	// What a process killed in the middle of preparing leaves behind.
	if _, err := server.Exec(t.Context(), `CREATE DATABASE `+template+`_draft`); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range dsns {
		all.Go(func() { dsns[i] = testkit.PostgresFrom(t, template, prepare) })
	}
	all.Wait()
	if got := prepared.Load(); got != 1 {
		t.Errorf("prepare ran %d times for 4 databases asked for at once, want 1", got)
	}
	for _, dsn := range dsns {
		var n int
		if err := connect(t, dsn).QueryRow(t.Context(), `SELECT n FROM seeded`).Scan(&n); err != nil || n != 7 {
			t.Errorf("copy of the template holds %d, %v, want 7", n, err)
		}
	}
}

func TestRedisPrefixesAreApartAndEmptiedAfterwards(t *testing.T) {
	addr, outer := testkit.Redis(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var inner string
	t.Run("a test that leaves a key behind", func(t *testing.T) {
		_, inner = testkit.Redis(t)
		if err := client.Do(t.Context(), client.B().Set().Key(inner+"k").Value("v").Build()).Error(); err != nil {
			t.Fatal(err)
		}
	})
	if inner == outer {
		t.Errorf("two tests share the prefix %q", inner)
	}
	n, err := client.Do(t.Context(), client.B().Exists().Key(inner+"k").Build()).AsInt64()
	if err != nil || n != 0 {
		t.Errorf("EXISTS %sk after its test = %d, %v, want 0", inner, n, err)
	}
}

func TestSQLiteFilesAreFresh(t *testing.T) {
	first, second := testkit.SQLite(t), testkit.SQLite(t)
	if first == second || !filepath.IsAbs(first) {
		t.Errorf("SQLite = %q and %q, want two absolute paths", first, second)
	}
	if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat(%q) = %v, want not exist", first, err)
	}
}

func TestEventuallyReturnsAsSoonAsTheCheckPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, calls := time.Now(), 0
		testkit.Eventually(t, time.Minute, func() error {
			if calls++; calls < 3 {
				return errors.New("not yet")
			}
			return nil
		})
		if got, want := time.Since(began), 15*time.Millisecond; got != want {
			t.Errorf("two pauses took %s, want %s", got, want)
		}
	})
}

// stalledEnv makes this binary run the test that hangs; the parent watches how it ends.
const stalledEnv = "WAFLEET_TESTKIT_STALL"

func TestTheWatchdogNamesWhoStopsTheFakeClock(t *testing.T) {
	if os.Getenv(stalledEnv) != "" {
		var progress atomic.Int64
		defer testkit.Watchdog(t, 200*time.Millisecond, &progress)()
		synctest.Test(t, func(*testing.T) {
			progress.Add(1)
			var mu sync.Mutex
			mu.Lock()
			go waitsForTheMutex(&mu)
			time.Sleep(time.Hour)
			mu.Unlock()
		})
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), stalledEnv+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("a bubble that hangs on a mutex ended with %v, want exit code 3; output:\n%s", err, out)
	}
	for _, want := range []string{"the fake clock stands still", "waitsForTheMutex", t.Name()} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the report lacks %q:\n%s", want, out)
		}
	}
}

func waitsForTheMutex(mu *sync.Mutex) {
	mu.Lock()
	defer mu.Unlock()
}

func TestTheWatchdogKeepsQuietWhileThereIsProgress(t *testing.T) {
	var progress atomic.Int64
	stop := testkit.Watchdog(t, 30*time.Second, &progress)
	synctest.Test(t, func(*testing.T) {
		for range 1000 {
			time.Sleep(time.Minute)
			progress.Add(1)
		}
	})
	stop()
	stop() // a second call is harmless
}
