package testkit

import (
	"path/filepath"
	"testing"
)

// SQLite returns the path of a database file for this test. The file does not exist yet; it, its -wal and its -shm are
// removed with the test's directory.
func SQLite(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "wafleet.db")
}
