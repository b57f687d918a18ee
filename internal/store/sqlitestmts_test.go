package store

import (
	"path/filepath"
	"testing"

	"github.com/wafleet/wafleet/internal/fleet"
	"github.com/wafleet/wafleet/internal/seal"
)

func TestAPreparedStatementIsReadTwiceAtOnceAndUsedAgain(t *testing.T) {
	ring, err := seal.NewRing(seal.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Options{URL: "sqlite:" + filepath.Join(t.TempDir(), "x.db"), Ring: ring})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := s.db.RawDB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const text = `WITH RECURSIVE n (v) AS (VALUES (1) UNION ALL SELECT v+1 FROM n WHERE v<?1) SELECT v FROM n`
	read := func(limit int, each func(v int)) {
		rows, err := conn.QueryContext(t.Context(), text, limit)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var v int
			if err := rows.Scan(&v); err != nil {
				t.Fatal(err)
			}
			each(v)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		sum := 0
		// The same text again while its first result is being read.
		read(3, func(v int) { read(2, func(w int) { sum += v * w }) })
		if sum != 18 {
			t.Fatalf("sum of products = %d, want 18", sum)
		}
	}
	err = conn.Raw(func(c any) error {
		if p, ok := c.(*preparing); !ok || len(p.idle) != 1 {
			t.Errorf("the connection is %T and remembers %v, want the one text", c, p.idle)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAStatementThatFailedIsUsedAgain(t *testing.T) {
	ring, err := seal.NewRing(seal.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Options{URL: "sqlite:" + filepath.Join(t.TempDir(), "x.db"), Ring: ring})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.exec(t.Context(), `CREATE TABLE once (id TEXT PRIMARY KEY, at INTEGER)`); err != nil {
		t.Fatal(err)
	}
	for i, id := range []fleet.OrgID{"a", "a", "b", "b", "c"} {
		_, err := s.exec(t.Context(), `INSERT INTO once (id, at) VALUES ($1, @now@)`, id)
		if again := i == 1 || i == 3; (err != nil) != again {
			t.Errorf("insert %d of %s = %v", i, id, err)
		}
	}
	var rows int
	if err := s.row(t.Context(), `SELECT count(*) FROM once WHERE at<=@now@ AND at>@now@-60000`).Scan(&rows); err != nil || rows != 3 {
		t.Errorf("rows = %d, %v, want 3", rows, err)
	}
}
