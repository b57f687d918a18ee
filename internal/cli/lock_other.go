//go:build !unix

package cli

import "errors"

// lockFile needs a lock that ends with the process.
func lockFile(string) (release func(), err error) {
	return nil, errors.New("a SQLite database needs a Unix system: use PostgreSQL here")
}
