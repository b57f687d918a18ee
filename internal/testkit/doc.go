// Package testkit is what tests of several packages share: private databases, waiting without sleeping, a log that
// ends up in the test's output, and a watchdog that makes a stopped fake clock visible.
//
// It is imported by _test files only and imports no other package of this module, so it can serve every layer.
// It must never skip a test because a service is missing: a suite that is green because it did not run proves nothing.
//
// PostgreSQL and Redis are not started here. scripts/test-services starts private ones and says where they are through
// [PostgresEnv] and [RedisEnv]; a test that needs one fails, with the command to use, when the variable is empty.
//
// Lifecycle: everything a function hands out belongs to the test that asked and is removed by its cleanup. Cleanups run
// last in, first out, so a pool opened on a DSN from here and closed with t.Cleanup is closed before its database goes.
//
// Inside a testing/synctest bubble only [SQLite], [Logger] and [Watchdog] make sense: sockets to real servers never
// block durably, and [Eventually] waits on the clock of whoever calls it.
package testkit
