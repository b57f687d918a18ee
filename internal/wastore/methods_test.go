package wastore_test

import (
	"context"
	"reflect"
	"regexp"
	"testing"
	"time"

	wmstore "go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/types"

	"github.com/wafleet/wafleet/internal/store/storetest"
)

// method is one method that whatsmeow calls on what it believes to be its store.
type method struct {
	name        string
	write       bool
	global      bool // a fact about WhatsApp, written without a fence
	noop        bool // changes no row when it works
	offline     bool // asks the database nothing
	missIsError bool
	before      func(ctx context.Context, d *wmstore.Device) error // what the write needs to find
	call        func(ctx context.Context, d *wmstore.Device) error
}

var (
	key32  = [32]byte{1, 2, 3}
	secret = []byte("secret")
	hash   = [32]byte{9}
)

func reads[T any](fn func(ctx context.Context, d *wmstore.Device) (T, error)) func(context.Context, *wmstore.Device) error {
	return func(ctx context.Context, d *wmstore.Device) error {
		_, err := fn(ctx, d)
		return err
	}
}

func on(fn func(ctx context.Context, s wmstore.AllSessionSpecificStores) error) func(context.Context, *wmstore.Device) error {
	return func(ctx context.Context, d *wmstore.Device) error { return fn(ctx, all(d)) }
}

func token(user types.JID) wmstore.PrivacyToken {
	return wmstore.PrivacyToken{User: user, Token: []byte("token"), Timestamp: time.Unix(1_000_000, 0)}
}

// methods is every method of every store interface. TestEveryStoreMethodIsCovered holds it to that.
var methods = []method{
	{name: "PutIdentity", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutIdentity(ctx, "5511900000002:0", key32)
	})},
	{
		name: "DeleteIdentity", write: true,
		before: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			return s.PutIdentity(ctx, "5511900000003:0", key32)
		}),
		call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			return s.DeleteIdentity(ctx, "5511900000003:0")
		}),
	},
	{
		name: "DeleteAllIdentities", write: true,
		before: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			return s.PutIdentity(ctx, "5511900000004:1", key32)
		}),
		call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			return s.DeleteAllIdentities(ctx, "5511900000004")
		}),
	},
	{name: "IsTrustedIdentity", call: reads(func(ctx context.Context, d *wmstore.Device) (bool, error) {
		return d.Identities.IsTrustedIdentity(ctx, "5511900000009:0", key32)
	})},

	{name: "PutSession", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutSession(ctx, "5511900000002:0", []byte("session"))
	})},
	{name: "PutManySessions", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutManySessions(ctx, map[string][]byte{"5511900000002:0": []byte("a"), "5511900000002:5": []byte("b"), "100000000000002_1:0": nil})
	})},
	{
		name: "DeleteSession", write: true,
		before: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			return s.PutSession(ctx, "5511900000005:0", []byte("x"))
		}),
		call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			return s.DeleteSession(ctx, "5511900000005:0")
		}),
	},
	{
		name: "DeleteAllSessions", write: true,
		before: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			return s.PutSession(ctx, "5511900000006:3", []byte("x"))
		}),
		call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			return s.DeleteAllSessions(ctx, "5511900000006")
		}),
	},
	{
		name: "MigratePNToLID", write: true,
		before: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			return s.PutSession(ctx, "5511900000007:0", []byte("x"))
		}),
		call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			return s.MigratePNToLID(ctx, types.JID{User: "5511900000007", Server: types.DefaultUserServer}, types.JID{User: "100000000000007", Server: types.HiddenUserServer})
		}),
	},
	{name: "GetSession", call: reads(func(ctx context.Context, d *wmstore.Device) ([]byte, error) { return d.Sessions.GetSession(ctx, "1:0") })},
	{name: "HasSession", call: reads(func(ctx context.Context, d *wmstore.Device) (bool, error) { return d.Sessions.HasSession(ctx, "1:0") })},
	{name: "GetManySessions", call: reads(func(ctx context.Context, d *wmstore.Device) (map[string][]byte, error) {
		return d.Sessions.GetManySessions(ctx, []string{"1:0", "2:0"})
	})},

	{name: "GetOrGenPreKeys", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		_, err := s.GetOrGenPreKeys(ctx, 5)
		return err
	})},
	{name: "GenOnePreKey", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		_, err := s.GenOnePreKey(ctx)
		return err
	})},
	{
		name: "MarkPreKeysAsUploaded", write: true,
		before: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			_, err := s.GetOrGenPreKeys(ctx, 3)
			return err
		}),
		call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			return s.MarkPreKeysAsUploaded(ctx, 3)
		}),
	},
	{
		name: "RemovePreKey", write: true,
		before: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
			_, err := s.GetOrGenPreKeys(ctx, 3)
			return err
		}),
		call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error { return s.RemovePreKey(ctx, 1) }),
	},
	{name: "GetPreKey", call: reads(func(ctx context.Context, d *wmstore.Device) (any, error) { return d.PreKeys.GetPreKey(ctx, 999) })},
	{name: "UploadedPreKeyCount", call: reads(func(ctx context.Context, d *wmstore.Device) (int, error) { return d.PreKeys.UploadedPreKeyCount(ctx) })},

	{name: "PutSenderKey", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutSenderKey(ctx, "group@g.us", "5511900000002:0", []byte("key"))
	})},
	{name: "GetSenderKey", call: reads(func(ctx context.Context, d *wmstore.Device) ([]byte, error) {
		return d.SenderKeys.GetSenderKey(ctx, "g", "u")
	})},

	{name: "PutAppStateSyncKey", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutAppStateSyncKey(ctx, []byte("id"), wmstore.AppStateSyncKey{Data: []byte("d"), Fingerprint: []byte("f"), Timestamp: 1})
	})},
	{name: "GetAppStateSyncKey", call: reads(func(ctx context.Context, d *wmstore.Device) (any, error) {
		return d.AppStateKeys.GetAppStateSyncKey(ctx, []byte("none"))
	})},
	{name: "GetLatestAppStateSyncKeyID", call: reads(func(ctx context.Context, d *wmstore.Device) ([]byte, error) {
		return d.AppStateKeys.GetLatestAppStateSyncKeyID(ctx)
	})},
	{name: "GetAllAppStateSyncKeys", call: reads(func(ctx context.Context, d *wmstore.Device) (any, error) {
		return d.AppStateKeys.GetAllAppStateSyncKeys(ctx)
	})},

	{name: "PutAppStateVersion", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutAppStateVersion(ctx, "regular", 2, [128]byte{1})
	})},
	{name: "PutAppStateMutationMACs", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutAppStateMutationMACs(ctx, "regular", 2, []wmstore.AppStateMutationMAC{{IndexMAC: key32[:], ValueMAC: key32[:]}})
	})},
	{name: "DeleteAppStateMutationMACs", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.DeleteAppStateMutationMACs(ctx, "regular", [][]byte{key32[:]})
	})},
	{name: "DeleteAppStateVersion", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.DeleteAppStateVersion(ctx, "regular")
	})},
	{name: "GetAppStateVersion", call: reads(func(ctx context.Context, d *wmstore.Device) (uint64, error) {
		v, _, err := d.AppState.GetAppStateVersion(ctx, "none")
		return v, err
	})},
	{name: "GetAppStateMutationMAC", call: reads(func(ctx context.Context, d *wmstore.Device) ([]byte, error) {
		return d.AppState.GetAppStateMutationMAC(ctx, "none", key32[:])
	})},

	{name: "PutPushName", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		_, _, err := s.PutPushName(ctx, otherPN, "Push")
		return err
	})},
	{name: "PutBusinessName", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		_, _, err := s.PutBusinessName(ctx, otherPN, "Business")
		return err
	})},
	{name: "PutContactName", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutContactName(ctx, otherPN, "Full Name", "First")
	})},
	{name: "PutAllContactNames", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutAllContactNames(ctx, []wmstore.ContactEntry{{JID: otherLID, FirstName: "F", FullName: "F N"}})
	})},
	{name: "PutManyRedactedPhones", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutManyRedactedPhones(ctx, []wmstore.RedactedPhoneEntry{{JID: otherLID, RedactedPhone: "+55…02"}})
	})},
	{name: "GetContact", call: reads(func(ctx context.Context, d *wmstore.Device) (types.ContactInfo, error) {
		return d.Contacts.GetContact(ctx, otherPN)
	})},
	{name: "GetAllContacts", call: reads(func(ctx context.Context, d *wmstore.Device) (any, error) { return d.Contacts.GetAllContacts(ctx) })},

	{name: "PutMutedUntil", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutMutedUntil(ctx, otherPN, wmstore.MutedForever)
	})},
	{name: "PutPinned", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutPinned(ctx, otherPN, true)
	})},
	{name: "PutArchived", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutArchived(ctx, otherPN, true)
	})},
	{name: "GetChatSettings", call: reads(func(ctx context.Context, d *wmstore.Device) (any, error) {
		return d.ChatSettings.GetChatSettings(ctx, otherPN)
	})},

	{name: "PutMessageSecret", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutMessageSecret(ctx, otherPN, ownJID, "3EB001", secret)
	})},
	{name: "PutMessageSecrets", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutMessageSecrets(ctx, []wmstore.MessageSecretInsert{
			{Chat: otherPN, Sender: ownJID, ID: "3EB002", Secret: secret}, {Chat: otherPN, Sender: ownJID, ID: "3EB003", Secret: secret},
		})
	})},
	{name: "GetMessageSecret", call: reads(func(ctx context.Context, d *wmstore.Device) ([]byte, error) {
		b, _, err := d.MsgSecrets.GetMessageSecret(ctx, otherPN, ownJID, "none")
		return b, err
	})},

	{name: "PutPrivacyTokens", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutPrivacyTokens(ctx, token(otherLID), token(otherPN), token(otherLID))
	})},
	{name: "DeleteExpiredPrivacyTokens", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		_, err := s.DeleteExpiredPrivacyTokens(ctx, time.Unix(2_000_000, 0))
		return err
	})},
	{name: "GetPrivacyToken", call: reads(func(ctx context.Context, d *wmstore.Device) (any, error) {
		return d.PrivacyTokens.GetPrivacyToken(ctx, otherPN)
	})},

	{name: "PutNCTSalt", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutNCTSalt(ctx, []byte("salt"))
	})},
	{name: "DeleteNCTSalt", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error { return s.DeleteNCTSalt(ctx) })},
	{name: "GetNCTSalt", call: reads(func(ctx context.Context, d *wmstore.Device) ([]byte, error) { return d.NCTSalt.GetNCTSalt(ctx) })},

	{name: "PutBufferedEvent", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.PutBufferedEvent(ctx, hash, []byte("hello"), time.Unix(1, 0))
	})},
	{name: "ClearBufferedEventPlaintext", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.ClearBufferedEventPlaintext(ctx, hash)
	})},
	{name: "DoDecryptionTxn", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.DoDecryptionTxn(ctx, func(ctx context.Context) error {
			return s.PutSenderKey(ctx, "other@g.us", "5511900000002:0", []byte("key"))
		})
	})},
	{name: "DeleteOldBufferedHashes", write: false, offline: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.DeleteOldBufferedHashes(ctx)
	})},
	{name: "GetBufferedEvent", call: reads(func(ctx context.Context, d *wmstore.Device) (any, error) {
		return d.EventBuffer.GetBufferedEvent(ctx, [32]byte{77})
	})},
	{name: "AddOutgoingEvent", write: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.AddOutgoingEvent(ctx, otherPN, "3EB004", "wa", []byte("out"))
	})},
	{name: "DeleteOldOutgoingEvents", write: true, noop: true, call: on(func(ctx context.Context, s wmstore.AllSessionSpecificStores) error {
		return s.DeleteOldOutgoingEvents(ctx)
	})},
	{name: "GetOutgoingEvent", missIsError: true, call: reads(func(ctx context.Context, d *wmstore.Device) ([]byte, error) {
		_, b, err := d.EventBuffer.GetOutgoingEvent(ctx, otherPN, otherLID, "none")
		return b, err
	})},

	{name: "PutDevice", write: true, call: func(ctx context.Context, d *wmstore.Device) error {
		d.PushName = "Fleet " + time.Now().String()
		return d.Save(ctx)
	}},
	{name: "DeleteDevice", write: true, call: func(ctx context.Context, d *wmstore.Device) error { return d.Container.DeleteDevice(ctx, d) }},

	{name: "PutLIDMapping", write: true, global: true, call: func(ctx context.Context, d *wmstore.Device) error {
		return d.LIDs.PutLIDMapping(ctx, otherLID, otherPN)
	}},
	{name: "PutManyLIDMappings", write: true, global: true, call: func(ctx context.Context, d *wmstore.Device) error {
		return d.LIDs.PutManyLIDMappings(ctx, []wmstore.LIDMapping{{LID: otherLID, PN: otherPN}})
	}},
	{name: "GetPNForLID", call: reads(func(ctx context.Context, d *wmstore.Device) (types.JID, error) {
		return d.LIDs.GetPNForLID(ctx, otherLID)
	})},
	{name: "GetLIDForPN", call: reads(func(ctx context.Context, d *wmstore.Device) (types.JID, error) {
		return d.LIDs.GetLIDForPN(ctx, otherPN)
	})},
	{name: "GetManyLIDsForPNs", call: reads(func(ctx context.Context, d *wmstore.Device) (any, error) {
		return d.LIDs.GetManyLIDsForPNs(ctx, []types.JID{otherPN, ownJID})
	})},
}

var writeName = regexp.MustCompile(`^(Put|Delete|Migrate|Remove|Mark|Gen|GetOrGen|Clear|Do|Add|Set|Update|Insert|Save|Store|Upsert)`)

// TestEveryStoreMethodIsCovered: a whatsmeow that has a new method can't bring an unfenced write.
func TestEveryStoreMethodIsCovered(t *testing.T) {
	listed := map[string]method{}
	for _, m := range methods {
		if _, twice := listed[m.name]; twice {
			t.Errorf("%s is listed twice", m.name)
		}
		listed[m.name] = m
	}
	w := newWorld(t, storetest.SQLite(t))
	d := w.fence(t).device(t)
	for iface, impl := range map[reflect.Type]any{
		reflect.TypeFor[wmstore.AllSessionSpecificStores](): d.Sessions,
		reflect.TypeFor[wmstore.LIDStore]():                 d.LIDs,
		reflect.TypeFor[wmstore.DeviceContainer]():          d.Container,
	} {
		typ := reflect.TypeOf(impl)
		for f := range typ.Elem().Fields() {
			if f.Anonymous {
				t.Errorf("%v embeds %s: its methods would be there without anybody having fenced them", typ, f.Name)
			}
		}
		for method := range iface.Methods() {
			name := method.Name
			m, ok := listed[name]
			if !ok {
				t.Errorf("%v.%s is in no test: add it to methods, and fence it if it writes", iface, name)
				continue
			}
			if writeName.MatchString(name) != m.write && name != "DeleteOldBufferedHashes" {
				t.Errorf("%s: listed as write = %v, its name says otherwise", name, m.write)
			}
			delete(listed, name)
		}
	}
	for name := range listed {
		t.Errorf("%s is listed and in no interface any more", name)
	}
	// Every store of a device is the fenced one.
	v := reflect.ValueOf(d).Elem()
	for _, field := range []string{
		"Identities", "Sessions", "PreKeys", "SenderKeys", "AppStateKeys", "AppState", "Contacts",
		"ChatSettings", "MsgSecrets", "PrivacyTokens", "NCTSalt", "EventBuffer",
	} {
		if got := v.FieldByName(field).Elem().Type(); got != reflect.TypeOf(d.Sessions) {
			t.Errorf("Device.%s is a %v, want the fenced store", field, got)
		}
	}
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.Type.Kind() == reflect.Interface && f.Name != "Log" && v.Field(i).IsNil() {
			t.Errorf("Device.%s is nil: a new store of whatsmeow that nobody has fenced", f.Name)
		}
	}
}
