package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"go.mau.fi/util/dbutil"
)

// badConnTries is how often a statement is tried on another connection when the pool's had died unnoticed, as
// database/sql does for statements that it finds a connection for itself.
const badConnTries = 3

// Exec runs a statement, in ctx's transaction if there is one, and returns how many rows it touched.
//
// Outside a transaction it keeps its connection until it has that number. database/sql reads it under the connection's
// lock: once the connection is back in the pool, that would be a wait for whatever statement somebody else runs on it,
// and no context ends such a wait.
func Exec(ctx context.Context, db *dbutil.Database, q string, args ...any) (int64, error) {
	if tx, ok := db.Execable(ctx).(dbutil.Transaction); ok {
		return affected(tx.ExecContext(ctx, q, args...))
	}
	for try := 1; ; try++ {
		n, err := execAlone(ctx, db, q, args)
		if try == badConnTries || !errors.Is(err, driver.ErrBadConn) { // the driver says so only of what it did not send
			return n, err
		}
	}
}

func execAlone(ctx context.Context, db *dbutil.Database, q string, args []any) (int64, error) {
	conn, err := db.AcquireConn(ctx)
	if err != nil {
		return 0, err
	}
	if logged, ok := conn.(*dbutil.LoggingExecable); ok {
		if c, ok := logged.UnderlyingExecable.(*sql.Conn); ok {
			defer func() { _ = c.Close() }() // gives it back to the pool
		}
	}
	return affected(conn.ExecContext(ctx, q, args...))
}

func affected(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
