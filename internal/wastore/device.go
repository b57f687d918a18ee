package wastore

import (
	"context"
	"fmt"

	wmstore "go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/store/sqlstore"
	"go.mau.fi/whatsmeow/types"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Device reads a device for one generation: a fresh object behind this fence. fleet.ErrNotFound:
// there is none, and a session that was ever paired must not pair by itself because of that.
func (f *Fence) Device(ctx context.Context, jid string) (*wmstore.Device, error) {
	id, err := types.ParseJID(jid)
	if err != nil || id.User == "" {
		return nil, fmt.Errorf("read device: %w: %q is not a device JID", fleet.ErrInvalid, jid)
	}
	d, err := read(ctx, f, func(ctx context.Context) (*wmstore.Device, error) { return f.c.raw.GetDevice(ctx, id) })
	if err != nil {
		return nil, fmt.Errorf("read device of session %s: %w", f.term.SessionID, err)
	}
	if d == nil {
		return nil, fmt.Errorf("device of session %s: %w", f.term.SessionID, fleet.ErrNotFound)
	}
	f.wrap(d, id)
	return d, nil
}

// NewDevice makes the keys of a device that is about to pair. Nothing is stored before it is saved,
// which whatsmeow does when the phone has accepted it.
func (f *Fence) NewDevice() *wmstore.Device {
	d := f.c.raw.NewDevice()
	d.LIDs = &lidStore{f}
	d.Container = &deviceContainer{f}
	return d
}

// wrap puts the fence around everything the device stores.
func (f *Fence) wrap(d *wmstore.Device, jid types.JID) {
	d.SetAllStores(f.store(jid))
	d.LIDs = &lidStore{f}
	d.Container = &deviceContainer{f}
	d.Initialized = true
}

type deviceContainer struct{ f *Fence }

var _ wmstore.DeviceContainer = (*deviceContainer)(nil)

// PutDevice saves the device. The first save of a new device is the end of a pairing: WhatsApp may
// have given it the JID of one that was revoked, whose row would keep its old keys and fail at the
// next login, so the row starts over.
func (c *deviceContainer) PutDevice(ctx context.Context, d *wmstore.Device) error {
	if d.ID == nil {
		return sqlstore.ErrDeviceIDMustBeSet
	}
	jid := *d.ID
	fresh := !d.Initialized
	if fresh {
		c.f.wrap(d, jid) // before whatsmeow sees a device without stores and gives it raw ones
	}
	err := c.f.do(ctx, func(ctx context.Context) error {
		if fresh {
			if err := c.startOver(ctx, jid.String()); err != nil {
				return err
			}
		}
		return c.f.c.raw.PutDevice(ctx, d)
	})
	if err != nil {
		d.Initialized = !fresh
		return fmt.Errorf("save device of session %s: %w", c.f.term.SessionID, err)
	}
	return nil
}

func (c *deviceContainer) startOver(ctx context.Context, jid string) error {
	other, err := c.f.c.store.DeviceInUse(ctx, jid, c.f.term.SessionID)
	if err != nil {
		return err
	}
	if other {
		return fleet.ErrNumberInUse
	}
	if err := c.f.c.store.ForgetFormerDevice(ctx, jid); err != nil { // first: it waits for whoever deletes the old one's keys
		return err
	}
	if _, err := c.f.c.db.Exec(ctx, `DELETE FROM whatsmeow_device WHERE jid=$1`, jid); err != nil {
		return err
	}
	if parsed, err := types.ParseJID(jid); err == nil {
		c.f.committed(ctx, c.f.store(parsed).forget)
	}
	return nil
}

// DeleteDevice marks the session's login as revoked. whatsmeow calls it by itself on 401, 403 and
// 406; the keys stay, unused, so that what happened can be looked into. Only a device that no
// session refers to, of a pairing that failed half-way, is deleted.
func (c *deviceContainer) DeleteDevice(ctx context.Context, d *wmstore.Device) error {
	if d.ID == nil {
		return sqlstore.ErrDeviceIDMustBeSet
	}
	err := c.f.do(ctx, func(ctx context.Context) error {
		known, err := c.f.c.store.RevokeDevice(ctx, c.f.term.SessionID, d.ID.String())
		if err != nil || known {
			return err
		}
		return c.f.c.raw.DeleteDevice(ctx, d)
	})
	if err != nil {
		return fmt.Errorf("revoke device of session %s: %w", c.f.term.SessionID, err)
	}
	return nil
}
