package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// pipe is a transaction of PostgreSQL whose statements travel together: it costs as many round trips as
// it has flushes, and not as it has statements.
type pipe struct {
	s      *Store
	conn   *pgx.Conn
	queued []Statement
}

// rollbackLimit bounds the rollback after an error; a connection that can't do it is closed.
const rollbackLimit = 2 * time.Second

// inPipe runs fn in a transaction of its own. fn queues statements, flushes where it must know their
// answers to go on, and leaves the last ones queued: they travel with the commit.
func (s *Store) inPipe(ctx context.Context, fn func(ctx context.Context, p *pipe) error) error {
	for try := 1; ; try++ {
		err := s.onConn(ctx, func(conn *pgx.Conn) error {
			p := &pipe{s: s, conn: conn, queued: []Statement{{Text: "BEGIN"}}}
			err := fn(ctx, p)
			if err == nil {
				p.queue(Statement{Text: "COMMIT"})
				err = p.flush(ctx)
			}
			if err != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
				p.rollback(ctx)
			}
			return err
		})
		// Of a connection that had died unnoticed in the pool nothing was sent, as database/sql does for its own.
		if try == badConnTries || err == nil || !errors.Is(err, driver.ErrBadConn) && !pgconn.SafeToRetry(err) {
			return unavailable(err)
		}
	}
}

// onConn lends fn one of the pool's connections.
func (s *Store) onConn(ctx context.Context, fn func(conn *pgx.Conn) error) (err error) {
	conn, err := s.db.RawDB.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }() // gives it back
	return conn.Raw(func(dc any) error {
		c, ok := dc.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("a connection of the type %T", dc)
		}
		return fn(c.Conn())
	})
}

func (p *pipe) queue(st ...Statement) { p.queued = append(p.queued, st...) }

// flush sends what is queued and reads the answers. After an error nothing of the transaction stays.
func (p *pipe) flush(ctx context.Context) (err error) {
	var b pgx.Batch
	for _, st := range p.queued {
		b.Queue(p.s.sql(st.Text), st.Args...)
	}
	results := p.conn.SendBatch(ctx, &b)
	defer func() { err = errors.Join(err, results.Close()) }()
	for _, st := range p.queued {
		if err := st.end(st.read(results)); err != nil {
			return err
		}
	}
	p.queued = nil
	return nil
}

func (st *Statement) read(results pgx.BatchResults) error {
	if st.Row == nil {
		_, err := results.Exec()
		return err
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := st.Row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (p *pipe) rollback(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackLimit)
	defer cancel()
	if _, err := p.conn.Exec(ctx, "ROLLBACK"); err != nil {
		_ = p.conn.Close(ctx) // the pool throws it away
	}
}
