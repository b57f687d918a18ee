package wa

import (
	"context"
	"log/slog"
	"time"

	"go.mau.fi/whatsmeow/appstate"
)

// resyncTime bounds one full sync of a collection.
const resyncTime = 2 * time.Minute

// resync fetches a collection anew whose patches don't verify, if the handler allows it. whatsmeow holds its lock for
// app state while it tells us, so the fetch runs beside. The stronger remedies, which ask the phone for a recovery or
// reset all collections, can unlink the device and are never used.
func (s *Socket) resync(l *life, name appstate.WAPatchName) {
	h := s.opts.Handler.Resync
	if h == nil {
		return
	}
	allowed := false
	if !s.did(l, "resync", nil, func() error { allowed = h(l.ctx, string(name)); return nil }) || !allowed || !s.calls.enter() {
		return
	}
	go func() {
		defer s.calls.leave()
		ctx, cancel := context.WithTimeout(l.ctx, resyncTime)
		defer cancel()
		err := s.fetchAll(ctx, l, name)
		s.log.LogAttrs(l.ctx, slog.LevelWarn, "app state did not verify and was fetched anew", slog.String("collection", string(name)), slog.Any("err", err))
	}()
}

// fetchAll syncs a collection from its beginning. If that fails too, the version from before is put back: without one
// whatsmeow would fetch everything again with every change that the phone makes.
func (s *Socket) fetchAll(ctx context.Context, l *life, name appstate.WAPatchName) error {
	states := l.client.Store.AppState
	version, hash, err := states.GetAppStateVersion(ctx, string(name))
	if err != nil {
		return err
	}
	err = l.client.FetchAppState(ctx, name, true, false)
	if err == nil || version == 0 || ctx.Err() != nil {
		return err
	}
	if back := states.PutAppStateVersion(ctx, string(name), version, hash); back != nil {
		return back
	}
	return err
}
