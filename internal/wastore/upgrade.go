package wastore

import (
	"context"
	"fmt"

	"go.mau.fi/whatsmeow/store/sqlstore"

	"github.com/wafleet/wafleet/internal/store"
)

// Upgrade brings whatsmeow's own tables to the linked version. It has no lock between processes, so
// it runs inside store.Migrate's guard.
func Upgrade(s *store.Store) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		if err := sqlstore.NewWithDB(s.DB().RawDB, s.DB().Dialect.String(), nil).Upgrade(ctx); err != nil {
			return fmt.Errorf("upgrade whatsmeow's tables: %w", err)
		}
		return nil
	}
}
