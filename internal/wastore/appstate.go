package wastore

import (
	"context"

	"go.mau.fi/whatsmeow/store"
)

func (s *deviceStore) PutAppStateSyncKey(ctx context.Context, id []byte, key store.AppStateSyncKey) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.PutAppStateSyncKey(ctx, id, key) })
}

func (s *deviceStore) GetAppStateSyncKey(ctx context.Context, id []byte) (*store.AppStateSyncKey, error) {
	return read(ctx, s.f, func(ctx context.Context) (*store.AppStateSyncKey, error) { return s.raw.GetAppStateSyncKey(ctx, id) })
}

func (s *deviceStore) GetLatestAppStateSyncKeyID(ctx context.Context) ([]byte, error) {
	return read(ctx, s.f, s.raw.GetLatestAppStateSyncKeyID)
}

func (s *deviceStore) GetAllAppStateSyncKeys(ctx context.Context) ([]*store.AppStateSyncKey, error) {
	return read(ctx, s.f, s.raw.GetAllAppStateSyncKeys)
}

func (s *deviceStore) PutAppStateVersion(ctx context.Context, name string, version uint64, hash [128]byte) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.PutAppStateVersion(ctx, name, version, hash) })
}

func (s *deviceStore) GetAppStateVersion(ctx context.Context, name string) (version uint64, hash [128]byte, err error) {
	hash, err = read(ctx, s.f, func(ctx context.Context) (h [128]byte, err error) {
		version, h, err = s.raw.GetAppStateVersion(ctx, name)
		return h, err
	})
	return version, hash, err
}

func (s *deviceStore) DeleteAppStateVersion(ctx context.Context, name string) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.DeleteAppStateVersion(ctx, name) })
}

func (s *deviceStore) PutAppStateMutationMACs(ctx context.Context, name string, version uint64, mutations []store.AppStateMutationMAC) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.PutAppStateMutationMACs(ctx, name, version, mutations) })
}

func (s *deviceStore) DeleteAppStateMutationMACs(ctx context.Context, name string, indexMACs [][]byte) error {
	return s.f.do(ctx, func(ctx context.Context) error { return s.raw.DeleteAppStateMutationMACs(ctx, name, indexMACs) })
}

func (s *deviceStore) GetAppStateMutationMAC(ctx context.Context, name string, indexMAC []byte) ([]byte, error) {
	return read(ctx, s.f, func(ctx context.Context) ([]byte, error) { return s.raw.GetAppStateMutationMAC(ctx, name, indexMAC) })
}
