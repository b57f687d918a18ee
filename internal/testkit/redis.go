package testkit

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"

	"github.com/redis/rueidis"
)

// RedisEnv names the environment variable with the host:port of a Redis server that tests may write to.
const RedisEnv = "WAFLEET_TEST_REDIS"

// Redis returns the host:port of the test server and a prefix, ending in a colon, that no other test has. Keys and
// channels of a test must begin with it; the keys are deleted when the test ends. A test that empties the server
// (FLUSHALL) or stops it needs a server of its own. It fails the test when no server was named.
func Redis(t testing.TB) (addr, prefix string) {
	t.Helper()
	addr = os.Getenv(RedisEnv)
	if addr == "" {
		t.Fatalf("%s is empty: this test needs a Redis server; run `make test`, or `scripts/test-services -- go test ./...`", RedisEnv)
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		t.Fatalf("connect to the Redis server of %s: %v", RedisEnv, err)
	}
	prefix = "test:" + strings.ToLower(rand.Text()[:12]) + ":"
	t.Cleanup(func() {
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), serverTimeout)
		defer cancel()
		if err := deletePrefix(ctx, client, prefix); err != nil {
			t.Errorf("delete the keys of %s: %v", prefix, err)
		}
	})
	return addr, prefix
}

func deletePrefix(ctx context.Context, client rueidis.Client, prefix string) error {
	var cursor uint64
	for {
		page, err := client.Do(ctx, client.B().Scan().Cursor(cursor).Match(prefix+"*").Count(1000).Build()).AsScanEntry()
		if err != nil {
			return err
		}
		if len(page.Elements) > 0 {
			if err := client.Do(ctx, client.B().Unlink().Key(page.Elements...).Build()).Error(); err != nil {
				return err
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return nil
		}
	}
}
