package wasim

import (
	"bytes"
	"compress/zlib"
	"context"
	"fmt"
	"maps"
	"time"

	"go.mau.fi/whatsmeow/appstate"
	"go.mau.fi/whatsmeow/proto/waE2E"
	"go.mau.fi/whatsmeow/proto/waHistorySync"
	"go.mau.fi/whatsmeow/store"
	waLog "go.mau.fi/whatsmeow/util/log"
	"google.golang.org/protobuf/proto"
)

// companionActive starts the phone's first sync with a new companion. The caller holds the server's lock.
func (p *Phone) companionActive(d *device) {
	if p.srv.opts.PhonesOff || d.syncing {
		return
	}
	d.syncing = p.srv.spawn(func() { p.firstSync(p.srv.life, d) })
}

// firstSync sends what a phone sends after linking a device: first the keys to app state, in which the companion
// finds its push name, then names and LIDs of contacts as history. In the other order, or with a notification
// before the keys, clients ask for the keys, which they cannot before they have a session.
func (p *Phone) firstSync(ctx context.Context, d *device) {
	p.srv.mu.Lock()
	named, name := len(p.account.appState[string(appstate.WAPatchCriticalBlock)]) > 0, p.account.pushName
	p.srv.mu.Unlock()
	if !named {
		if err := p.pushAppState(appstate.BuildSettingPushName(name)); err != nil {
			p.warn("push name", err)
		}
	}
	p.shareKeys(ctx, d.id)
	contacts := p.knownContacts()
	chunks := []*waHistorySync.HistorySync{p.bootstrapHistory(contacts)}
	if len(contacts) > 0 {
		chunks = append(chunks, p.nameHistory(contacts))
	}
	for _, h := range chunks {
		if err := p.sendHistory(ctx, d.id, h); err != nil {
			p.warn("history", err)
		}
	}
}

func (p *Phone) knownContacts() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.contacts)
}

// bootstrapHistory tells the LIDs of the account and its contacts, and the tokens that people gave it.
func (p *Phone) bootstrapHistory(contacts map[string]string) *waHistorySync.HistorySync {
	h := history(waHistorySync.HistorySync_INITIAL_BOOTSTRAP)
	p.srv.mu.Lock()
	defer p.srv.mu.Unlock()
	known := []*account{p.account}
	for _, pn := range sortedKeys(contacts) {
		if a := p.srv.byPN[pn]; a != nil && a != p.account {
			known = append(known, a)
		}
	}
	for _, a := range known {
		h.PhoneNumberToLidMappings = append(h.PhoneNumberToLidMappings, &waHistorySync.PhoneNumberToLIDMapping{
			PnJID: proto.String(a.jid(false, 0).String()), LidJID: proto.String(a.jid(true, 0).String()),
		})
	}
	for _, pn := range sortedKeys(p.account.trusted) {
		given := p.account.trusted[pn]
		h.Conversations = append(h.Conversations, &waHistorySync.Conversation{
			ID: proto.String(p.srv.byPN[pn].jid(true, 0).String()), TcToken: given.token, TcTokenTimestamp: proto.Uint64(uint64(given.at.Unix())),
		})
	}
	return h
}

// nameHistory tells the push names of contacts.
func (p *Phone) nameHistory(contacts map[string]string) *waHistorySync.HistorySync {
	h := history(waHistorySync.HistorySync_PUSH_NAME)
	for _, pn := range sortedKeys(contacts) {
		id := pn + "@s.whatsapp.net"
		h.Pushnames = append(h.Pushnames, &waHistorySync.Pushname{ID: proto.String(id), Pushname: proto.String(contacts[pn])})
	}
	return h
}

func history(typ waHistorySync.HistorySync_HistorySyncType) *waHistorySync.HistorySync {
	return &waHistorySync.HistorySync{SyncType: typ.Enum(), ChunkOrder: proto.Uint32(1), Progress: proto.Uint32(100)}
}

// sendHistory sends one chunk inside the message itself.
func (p *Phone) sendHistory(ctx context.Context, dev uint16, h *waHistorySync.HistorySync) error {
	raw, err := proto.Marshal(h)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	w := zlib.NewWriter(&packed)
	if _, err = w.Write(raw); err != nil {
		return err
	}
	if err = w.Close(); err != nil {
		return err
	}
	return p.sendToCompanion(ctx, dev, &waE2E.Message{ProtocolMessage: &waE2E.ProtocolMessage{
		Type: waE2E.ProtocolMessage_HISTORY_SYNC_NOTIFICATION.Enum(),
		HistorySyncNotification: &waE2E.HistorySyncNotification{
			SyncType:   waE2E.HistorySyncType(h.GetSyncType()).Enum(),
			ChunkOrder: h.ChunkOrder, Progress: h.Progress, InitialHistBootstrapInlinePayload: packed.Bytes(),
		},
	}}, nil)
}

// syncKey returns the id of the key to app state, made on first use. The caller holds the cipher lock.
func (p *Phone) syncKey(ctx context.Context) ([]byte, error) {
	if id, err := p.signal.AppStateKeys.GetLatestAppStateSyncKeyID(ctx); err != nil || id != nil {
		return id, err
	}
	id := append([]byte{0, 0}, randomBytes(4)...) // device, epoch
	fingerprint, err := proto.Marshal(&waE2E.AppStateSyncKeyFingerprint{
		RawID: proto.Uint32(1), CurrentIndex: proto.Uint32(1), DeviceIndexes: []uint32{0},
	})
	if err != nil {
		return nil, err
	}
	return id, p.signal.AppStateKeys.PutAppStateSyncKey(ctx, id, store.AppStateSyncKey{
		Data: randomBytes(32), Fingerprint: fingerprint, Timestamp: time.Now().UnixMilli(),
	})
}

// shareKeys gives a companion the key to app state, after which it may be told of changes.
func (p *Phone) shareKeys(ctx context.Context, dev uint16) {
	msg, err := p.keyShare(ctx)
	if err == nil {
		err = p.sendToCompanion(ctx, dev, msg, func() {
			if d := p.account.devices[dev]; d != nil {
				d.synced = true
			}
		})
	}
	if err != nil {
		p.warn("share keys", err)
	}
}

func (p *Phone) keyShare(ctx context.Context) (*waE2E.Message, error) {
	p.cipher.Lock()
	defer p.cipher.Unlock()
	id, err := p.syncKey(ctx)
	if err != nil {
		return nil, err
	}
	key, err := p.signal.AppStateKeys.GetAppStateSyncKey(ctx, id)
	if err != nil {
		return nil, err
	}
	var fingerprint waE2E.AppStateSyncKeyFingerprint
	if err = proto.Unmarshal(key.Fingerprint, &fingerprint); err != nil {
		return nil, err
	}
	return &waE2E.Message{ProtocolMessage: &waE2E.ProtocolMessage{
		Type: waE2E.ProtocolMessage_APP_STATE_SYNC_KEY_SHARE.Enum(),
		AppStateSyncKeyShare: &waE2E.AppStateSyncKeyShare{Keys: []*waE2E.AppStateSyncKey{{
			KeyID:   &waE2E.AppStateSyncKeyId{KeyID: id},
			KeyData: &waE2E.AppStateSyncKeyData{KeyData: key.Data, Fingerprint: &fingerprint, Timestamp: proto.Int64(key.Timestamp)},
		}}},
	}}, nil
}

// pushAppState makes a change on the phone. Companions that have the keys are told.
func (p *Phone) pushAppState(change appstate.PatchInfo) error {
	ctx := p.srv.life
	p.cipher.Lock()
	defer p.cipher.Unlock()
	key, err := p.syncKey(ctx)
	if err != nil {
		return err
	}
	name := string(change.Type)
	version, hash, err := p.signal.AppState.GetAppStateVersion(ctx, name)
	if err != nil {
		return err
	}
	state := appstate.HashState{Version: version, Hash: hash}
	processor := appstate.NewProcessor(p.signal, waLog.Noop)
	// A patch builds on all before it, also on those that companions made.
	catchUp := func() error {
		p.srv.mu.Lock()
		patches := p.account.patches(name, int(state.Version))
		p.srv.mu.Unlock()
		list, err := appstate.ParsePatchList(ctx, &node{Tag: "collection", Attrs: attrs{"name": name}, Content: []node{patches}}, nil)
		if err != nil {
			return fmt.Errorf("read patches: %w", err)
		}
		if _, state, err = processor.DecodePatches(ctx, list, state, true); err != nil {
			return fmt.Errorf("apply patches: %w", err)
		}
		return nil
	}
	if err = catchUp(); err != nil {
		return err
	}
	patch, err := processor.EncodePatch(ctx, key, state, change)
	if err != nil {
		return err
	}
	p.srv.mu.Lock()
	err = p.srv.addPatch(p.account, name, patch, nil)
	p.srv.mu.Unlock()
	if err != nil {
		return err
	}
	return catchUp()
}
