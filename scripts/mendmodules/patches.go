package main

const (
	whatsmeow = "go.mau.fi/whatsmeow"
	mauUtil   = "go.mau.fi/util"
	websocket = "github.com/coder/websocket"
)

// lockSwap is one package whose locks are made durable.
type lockSwap struct {
	module, dir string // dir inside the module, "." for its root
	pkg         string // the package's name
	files       map[string]int
}

// lockSwaps lists each file with the number of sync.Mutex and sync.RWMutex it is known to hold. A lock that upstream adds
// or removes changes the number, the script stops, and somebody looks at what the new lock is held across.
//
// Left alone: websocket/compress.go (a package variable, held for a map access only; shared by bubbles and the world
// outside, and a Cond must not wake across that border) and ws_js.go (another platform).
var lockSwaps = []lockSwap{
	{whatsmeow, ".", "whatsmeow", map[string]int{"client.go": 17, "qrchan.go": 1}},
	{whatsmeow, "socket", "socket", map[string]int{"framesocket.go": 1, "noisesocket.go": 1}},
	{whatsmeow, "appstate", "appstate", map[string]int{"keys.go": 1}},
	{whatsmeow, "store", "store", map[string]int{}}, // none of its own; a patch below needs the durable lock
	{whatsmeow, "store/sqlstore", "sqlstore", map[string]int{"store.go": 2, "lidmap.go": 1}},
	{websocket, ".", "websocket", map[string]int{"conn.go": 4}},
}

// patch replaces one exact piece of text, which must occur exactly once.
type patch struct {
	name         string // as in docs/mended-modules.md
	module, file string
	from, to     string
}

var patches = []patch{
	{
		name: "event-getchan-race", module: mauUtil, file: "exsync/event.go",
		from: `func (e *Event) GetChan() EventChan {
	e.l.RLock()
	defer e.l.RUnlock()
`,
		to: `func (e *Event) GetChan() EventChan {
	e.l.Lock()
	defer e.l.Unlock()
`,
	},
	{
		name: "disconnect-callback-race", module: whatsmeow, file: "socket/framesocket.go",
		from: `	OnDisconnect func(ctx context.Context, remote bool)
`,
		to: `	OnDisconnect func(ctx context.Context, remote bool)
	callLock     durableMutex // held for reading or writing OnDisconnect, never across a wait
`,
	},
	{
		name: "disconnect-callback-race", module: whatsmeow, file: "socket/framesocket.go",
		from: `	if fs.OnDisconnect != nil {
		go fs.OnDisconnect(fs.parentCtx, code == 0)
	}
`,
		to: `	fs.callLock.Lock()
	onDisconnect := fs.OnDisconnect
	fs.callLock.Unlock()
	if onDisconnect != nil {
		go onDisconnect(fs.parentCtx, code == 0)
	}
`,
	},
	{
		name: "disconnect-callback-race", module: whatsmeow, file: "socket/noisesocket.go",
		from: `	fs.OnDisconnect = func(ctx context.Context, remote bool) {
		disconnectHandler(ctx, ns, remote)
	}
`,
		to: `	fs.callLock.Lock()
	fs.OnDisconnect = func(ctx context.Context, remote bool) {
		disconnectHandler(ctx, ns, remote)
	}
	fs.callLock.Unlock()
`,
	},
	{
		name: "disconnect-callback-race", module: whatsmeow, file: "socket/noisesocket.go",
		from: `			ns.fs.OnDisconnect = nil
`,
		to: `			ns.fs.callLock.Lock()
			ns.fs.OnDisconnect = nil
			ns.fs.callLock.Unlock()
`,
	},
	{
		name: "device-delete-race", module: whatsmeow, file: "store/store.go",
		from: `	device.ID = nil
	device.LID = types.EmptyJID
	device.Deleted = true
	device.SetAllStores(&NoopStore{ErrDeviceDeleted})
	return nil
`,
		to: `	device.Deleted = true
	return nil
`,
	},
	{
		name: "readpump-leak", module: whatsmeow, file: "socket/framesocket.go",
		from: `	fs.Frames <- data
`,
		to: `	select {
	case fs.Frames <- data:
	case <-fs.cancelCtx.Done():
	}
`,
	},
	{
		name: "device-save-race", module: whatsmeow, file: "store/store.go",
		from: `type Device struct {
	Log waLog.Logger
`,
		to: `type Device struct {
	saveLock  durableMutex // held from changing a field until the row with it is written
	fieldLock sync.Mutex   // held for reading or writing LID or PushName, never across a wait

	Log waLog.Logger
`,
	},
	{
		name: "device-save-race", module: whatsmeow, file: "store/store.go",
		from: `import (
	"context"
`,
		to: `import (
	"context"
	"sync"
`,
	},
	{
		name: "device-save-race", module: whatsmeow, file: "store/store.go",
		from: `	return device.LID
}
`,
		to: `	device.fieldLock.Lock()
	defer device.fieldLock.Unlock()
	return device.LID
}

// GetPushName returns the push name; safe beside Change.
func (device *Device) GetPushName() string {
	device.fieldLock.Lock()
	defer device.fieldLock.Unlock()
	return device.PushName
}

// Change applies f and saves the device, one change at a time. f returns false when there is nothing to save.
func (device *Device) Change(ctx context.Context, f func(*Device) bool) (changed bool, err error) {
	device.saveLock.Lock()
	defer device.saveLock.Unlock()
	device.fieldLock.Lock()
	changed = f(device)
	device.fieldLock.Unlock()
	if !changed {
		return false, nil
	}
	return true, device.saveLocked(ctx)
}
`,
	},
	{
		name: "device-save-race", module: whatsmeow, file: "store/store.go",
		from: `func (device *Device) Save(ctx context.Context) error {
`,
		to: `func (device *Device) Save(ctx context.Context) error {
	device.saveLock.Lock()
	defer device.saveLock.Unlock()
	return device.saveLocked(ctx)
}

func (device *Device) saveLocked(ctx context.Context) error {
`,
	},
	{
		name: "device-save-race", module: whatsmeow, file: "appstate.go",
		from: `		cli.Store.PushName = mutation.Action.GetPushNameSetting().GetName()
		err := cli.Store.Save(ctx)
`,
		to: `		_, err := cli.Store.Change(ctx, func(device *store.Device) bool {
			device.PushName = mutation.Action.GetPushNameSetting().GetName()
			return true
		})
`,
	},
	{
		name: "device-save-race", module: whatsmeow, file: "connectionevents.go",
		from: `		cli.Store.LID = nodeLID
		err := cli.Store.Save(ctx)
`,
		to: `		_, err := cli.Store.Change(ctx, func(device *store.Device) bool {
			device.LID = nodeLID
			return true
		})
`,
	},
	{
		name: "device-save-race", module: whatsmeow, file: "message.go",
		from: `	if cli.Store.LIDMigrationTimestamp == 0 && decoded.GetChatDbMigrationTimestamp() > 0 {
		cli.Store.LIDMigrationTimestamp = int64(decoded.GetChatDbMigrationTimestamp())
		err = cli.Store.Save(ctx)
`,
		to: `	changed, err := cli.Store.Change(ctx, func(device *store.Device) bool {
		if device.LIDMigrationTimestamp != 0 || decoded.GetChatDbMigrationTimestamp() == 0 {
			return false
		}
		device.LIDMigrationTimestamp = int64(decoded.GetChatDbMigrationTimestamp())
		return true
	})
	if changed {
`,
	},
	{
		name: "device-save-race", module: whatsmeow, file: "message.go",
		from: `	if cli.Store.LIDMigrationTimestamp == 0 && settings.GetChatDbLidMigrationTimestamp() > 0 {
		cli.Store.LIDMigrationTimestamp = settings.GetChatDbLidMigrationTimestamp()
		err := cli.Store.Save(ctx)
`,
		to: `	changed, err := cli.Store.Change(ctx, func(device *store.Device) bool {
		if device.LIDMigrationTimestamp != 0 || settings.GetChatDbLidMigrationTimestamp() <= 0 {
			return false
		}
		device.LIDMigrationTimestamp = settings.GetChatDbLidMigrationTimestamp()
		return true
	})
	if changed {
`,
	},
	{
		name: "device-save-race", module: whatsmeow, file: "message.go",
		from: `	if nonce != "" && nonce != cli.Store.CompanionMetaNonce {
		cli.Store.CompanionMetaNonce = nonce
		err := cli.Store.Save(ctx)
`,
		to: `	changed, err := cli.Store.Change(ctx, func(device *store.Device) bool {
		if nonce == "" || nonce == device.CompanionMetaNonce {
			return false
		}
		device.CompanionMetaNonce = nonce
		return true
	})
	if changed {
`,
	},
	{
		name: "device-save-race", module: whatsmeow, file: "presence.go",
		from: `len(cli.Store.PushName) == 0`, to: `len(cli.Store.GetPushName()) == 0`,
	},
	{
		name: "device-save-race", module: whatsmeow, file: "presence.go",
		from: `attrs["name"] = cli.Store.PushName`, to: `attrs["name"] = cli.Store.GetPushName()`,
	},
}
