package wasim

import (
	"context"
	"maps"
	"strings"
	"sync"

	"go.mau.fi/libsignal/logger"
	"go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/util/keys"
	waLog "go.mau.fi/whatsmeow/util/log"
)

// phoneStore keeps a phone's keys and sessions in memory. What a phone does not need comes from the no-op store.
type phoneStore struct {
	*store.NoopStore

	mu         sync.Mutex
	identities map[string][32]byte
	sessions   map[string][]byte
	preKeys    map[uint32]*keys.PreKey
	lastPreKey uint32
	syncKeys   map[string]store.AppStateSyncKey
	lastKey    []byte
	versions   map[string]uint64
	hashes     map[string][128]byte
	macs       map[string][]byte
}

// newPhoneDevice makes a phone's identity and the Signal store around it.
func newPhoneDevice() *store.Device {
	m := &phoneStore{
		NoopStore: &store.NoopStore{}, identities: map[string][32]byte{}, sessions: map[string][]byte{},
		preKeys: map[uint32]*keys.PreKey{}, syncKeys: map[string]store.AppStateSyncKey{},
		versions: map[string]uint64{}, hashes: map[string][128]byte{}, macs: map[string][]byte{},
	}
	identity := keys.NewKeyPair()
	return &store.Device{
		Log: waLog.Noop, NoiseKey: keys.NewKeyPair(), IdentityKey: identity, SignedPreKey: identity.CreateSignedPreKey(1),
		RegistrationID: fromBigEndian(randomBytes(2)) + 1, AdvSecretKey: randomBytes(32), Initialized: true,
		Identities: m, Sessions: m, PreKeys: m, SenderKeys: m, AppStateKeys: m, AppState: m, Contacts: m, ChatSettings: m,
		MsgSecrets: m, PrivacyTokens: m, NCTSalt: m, EventBuffer: m, LIDs: m, Container: m,
	}
}

func (m *phoneStore) PutIdentity(_ context.Context, address string, key [32]byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.identities[address] = key
	return nil
}

func (m *phoneStore) DeleteIdentity(_ context.Context, address string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.identities, address)
	return nil
}

func (m *phoneStore) IsTrustedIdentity(_ context.Context, address string, key [32]byte) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known, ok := m.identities[address]
	return !ok || known == key, nil
}

func (m *phoneStore) GetSession(_ context.Context, address string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sessions[address], nil
}

func (m *phoneStore) HasSession(_ context.Context, address string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.sessions[address]
	return ok, nil
}

func (m *phoneStore) GetManySessions(_ context.Context, addresses []string) (map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[string][]byte, len(addresses))
	for _, a := range addresses {
		out[a] = m.sessions[a]
	}
	return out, nil
}

func (m *phoneStore) PutSession(_ context.Context, address string, session []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions[address] = session
	return nil
}

func (m *phoneStore) PutManySessions(_ context.Context, sessions map[string][]byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.Copy(m.sessions, sessions)
	return nil
}

func (m *phoneStore) DeleteSession(_ context.Context, address string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, address)
	return nil
}

func (m *phoneStore) DeleteAllSessions(_ context.Context, phone string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.sessions, func(address string, _ []byte) bool { return strings.HasPrefix(address, phone+":") })
	return nil
}

// GenOnePreKey makes a one-time key that is good for one session.
func (m *phoneStore) GenOnePreKey(context.Context) (*keys.PreKey, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastPreKey++
	k := keys.NewPreKey(m.lastPreKey)
	m.preKeys[k.KeyID] = k
	return k, nil
}

func (m *phoneStore) GetPreKey(_ context.Context, id uint32) (*keys.PreKey, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.preKeys[id], nil
}

func (m *phoneStore) RemovePreKey(_ context.Context, id uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.preKeys, id)
	return nil
}

func (m *phoneStore) PutAppStateSyncKey(_ context.Context, id []byte, key store.AppStateSyncKey) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.syncKeys[string(id)], m.lastKey = key, id
	return nil
}

func (m *phoneStore) GetAppStateSyncKey(_ context.Context, id []byte) (*store.AppStateSyncKey, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k, ok := m.syncKeys[string(id)]; ok {
		return &k, nil
	}
	return nil, nil //nolint:nilnil // the store's contract for an unknown key
}

func (m *phoneStore) GetLatestAppStateSyncKeyID(context.Context) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastKey, nil
}

func (m *phoneStore) PutAppStateVersion(_ context.Context, name string, version uint64, hash [128]byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.versions[name], m.hashes[name] = version, hash
	return nil
}

func (m *phoneStore) GetAppStateVersion(_ context.Context, name string) (uint64, [128]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.versions[name], m.hashes[name], nil
}

func (m *phoneStore) PutAppStateMutationMACs(_ context.Context, name string, _ uint64, mutations []store.AppStateMutationMAC) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range mutations {
		m.macs[name+"|"+string(x.IndexMAC)] = x.ValueMAC
	}
	return nil
}

func (m *phoneStore) DeleteAppStateMutationMACs(_ context.Context, name string, indexes [][]byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range indexes {
		delete(m.macs, name+"|"+string(x))
	}
	return nil
}

func (m *phoneStore) GetAppStateMutationMAC(_ context.Context, name string, index []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.macs[name+"|"+string(index)], nil
}

var quietOnce sync.Once

// quietSignalLibrary stops libsignal from printing to stdout each ciphertext that it has seen before. Its logger
// is a global, so this is done once per process and before any phone works.
func quietSignalLibrary() {
	quietOnce.Do(func() {
		var l logger.Loggable = silentLogger{}
		logger.Setup(&l)
	})
}

type silentLogger struct{}

func (silentLogger) Debug(string, string)   {}
func (silentLogger) Info(string, string)    {}
func (silentLogger) Warning(string, string) {}
func (silentLogger) Error(string, string)   {}
func (silentLogger) Configure(string)       {}
