package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/wafleet/wafleet/internal/config"
	"github.com/wafleet/wafleet/internal/seal"
)

// Files of the data folder.
const (
	databaseFile = "wafleet.db"
	dataKeyFile  = "data.key"
	lookupFile   = "lookup.key"
	adminKeyFile = "admin.key"
)

// sqlitePath is the file of a SQLite database, "" for PostgreSQL.
func sqlitePath(s *config.Storage) string {
	switch {
	case s.Postgres():
		return ""
	case s.DatabaseURL == "":
		return filepath.Join(s.DataDir, databaseFile)
	default:
		return strings.TrimPrefix(s.DatabaseURL.Reveal(), "sqlite:")
	}
}

// databaseURL is what store.Open takes.
func databaseURL(s *config.Storage) string {
	if path := sqlitePath(s); path != "" {
		return "sqlite:" + path
	}
	return s.DatabaseURL.Reveal()
}

// errLocked: another process holds the file.
var errLocked = errors.New("is in use by another process")

// lockDatabase keeps every other "up" from a SQLite file, until release is called or the process ends,
// however it ends. SQLite's own locks are held per statement only.
func lockDatabase(path string) (release func(), err error) {
	release, err = lockFile(path + ".lock")
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("database %s %w: stop the other \"wafleet up\", or give this one another DATA_DIR", path, errLocked)
	}
	if err != nil {
		return nil, fmt.Errorf("lock database %s: %w", path, err)
	}
	return release, nil
}

// folderKeys fills in DATA_KEY and LOOKUP_KEY from the data folder where the settings have none. With
// create it makes missing ones; made are the files of those. Whether a new key fits the database is
// seen when that is open.
func folderKeys(s *config.Storage, k *config.Keys, create bool) (made []string, err error) {
	for _, f := range []struct {
		setting, file string
		key           *config.Secret
	}{{"DATA_KEY", dataKeyFile, &k.DataKey}, {"LOOKUP_KEY", lookupFile, &k.LookupKey}} {
		if *f.key != "" {
			continue
		}
		path := filepath.Join(s.DataDir, f.file)
		raw, err := os.ReadFile(path) //nolint:gosec // the operator names the folder
		switch {
		case err == nil:
			if _, err := seal.ParseKey(string(raw)); err != nil {
				return made, fmt.Errorf("%s: %w", path, err)
			}
			*f.key = config.Secret(strings.TrimSpace(string(raw)))
		case !errors.Is(err, fs.ErrNotExist):
			return made, fmt.Errorf("%s can't be read: %w", f.setting, err)
		case !create:
			return made, &usageError{&config.Error{
				Setting: f.setting,
				Problem: fmt.Sprintf("is not set and %s does not exist: give the same as to the other processes, or the DATA_DIR of \"wafleet up\"", path),
			}}
		default:
			text := seal.NewKey().Encode()
			if err := writeSecret(path, text); err != nil {
				return made, fmt.Errorf("make %s: %w", f.setting, err)
			}
			made = append(made, path)
			*f.key = config.Secret(text)
		}
	}
	return made, nil
}

// writeSecret writes a file that only its owner can read, and never over another one.
func writeSecret(path, text string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the operator names the folder
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	if _, err := f.WriteString(text + "\n"); err != nil {
		return err
	}
	return f.Sync()
}
