package wa

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/appstate"
	"go.mau.fi/whatsmeow/types/events"

	"github.com/wafleet/wafleet/internal/fleet"
)

// handle gets every event of the client. False means "not handled": for messages and receipts whatsmeow then sends no
// acknowledgement, and WhatsApp delivers again.
func (s *Socket) handle(l *life, evt any) bool {
	if !s.calls.enter() {
		s.m.late.Inc()
		return false
	}
	defer s.calls.leave()
	if l.ctx.Err() != nil {
		s.m.late.Inc()
		return false
	}
	switch e := evt.(type) {
	case *events.Message:
		return s.message(l, e)
	case *events.Receipt:
		return s.receipt(l, e)
	case *events.UndecryptableMessage:
		s.m.undecryptable.Inc()

	case *events.Connected:
		s.connectedEvent(l)
	case *events.OfflineSyncCompleted:
		s.endOffline(l, e.Count, "")
		s.post(note{offlineDone: true})
	case *events.PushNameSetting:
		s.ownName(l, e.Action.GetName())
	case *events.AppStateSyncComplete:
		// The first sync of a collection emits nothing for its entries. This event comes from the goroutine that wrote
		// the field.
		if e.Name == appstate.WAPatchCriticalBlock {
			s.ownName(l, l.client.Store.PushName)
		}
	case *events.AppStateSyncError:
		s.m.syncErrors.Inc()
		s.resync(l, e.Name)
	case *events.KeepAliveTimeout:
		s.m.pingTimeouts.Inc()
	case *events.NotifyAccountReachoutTimelock:
		s.m.reachout.Inc()
		s.limited(l, timeLock(e))

	case *events.QR:
		s.post(note{codes: e.Codes})
	case *events.PairSuccess:
		s.pairedEvent(l, e)
	case *events.PairError:
		if !errors.Is(e.Error, whatsmeow.ErrPairRejectedLocally) { // acceptPair knows the better reason
			s.finish(pairFailed(e.Error))
		}
	case *events.PairPasskeyRequest:
		s.finish(End{Reason: ReasonPasskey, Err: errPasskey})
	case *events.PairPasskeyError: // it wanted one, and not even that could be read
		s.finish(End{Reason: ReasonPasskey, Err: fmt.Errorf("%w (%w)", errPasskey, e.Error)})
	case *events.QRScannedWithoutMultidevice:
		s.log.LogAttrs(l.ctx, slog.LevelWarn, "code scanned by a phone without linked devices")

	case *events.Disconnected:
		s.post(note{lost: true})
	case *events.ManualLoginReconnect:
		s.post(note{restart: true})
	case *events.StreamReplaced:
		s.finish(End{Reason: ReasonReplaced})
	case *events.LoggedOut:
		// whatsmeow deletes the device after it has told us, which marks the row as revoked: leave it the time.
		s.post(note{decided: &decided{loggedOut(e), tidyTime}})
	case *events.TemporaryBan:
		s.finish(End{
			Reason: ReasonTempBanned, Code: int(events.ConnectFailureTempBanned), Expire: e.Expire, Err: errors.New(e.Code.String()),
		})
	case *events.ClientOutdated:
		s.finish(End{Reason: ReasonClientOutdated, Code: int(events.ConnectFailureClientOutdated)})
	case *events.ConnectFailure:
		s.finish(connectFailure(e.Reason, e.Message))
	case *events.CATRefreshError:
		s.finish(End{Reason: ReasonConnectFailure, Err: e.Error})
	case *events.StreamError:
		s.finish(streamError(e.Code))

	default:
		if !known(evt) {
			s.m.unhandled.Inc()
			s.log.LogAttrs(l.ctx, slog.LevelWarn, "event of an unknown type", slog.String("type", fmt.Sprintf("%T", evt)))
		}
	}
	return true
}

// known lists the events that are left alone on purpose. What is neither here nor in handle is counted.
func known(evt any) bool {
	switch evt.(type) {
	case *events.KeepAliveRestored, *events.OfflineSyncPreview, *events.HistorySync, *events.PairPasskeyConfirmation,
		*events.ChatPresence, *events.Presence, *events.IdentityChange, *events.PrivacySettings, *events.Picture,
		*events.UserAbout, *events.Blocklist, *events.MediaRetry,
		*events.JoinedGroup, *events.GroupInfo,
		*events.NewsletterJoin, *events.NewsletterLeave, *events.NewsletterMuteChange, *events.NewsletterLiveUpdate,
		*events.Contact, *events.PushName, *events.BusinessName, *events.Pin, *events.Star, *events.DeleteForMe,
		*events.Mute, *events.Archive, *events.MarkChatAsRead, *events.ClearChat, *events.DeleteChat,
		*events.UnarchiveChatsSetting, *events.UserStatusMute, *events.LabelEdit, *events.LabelAssociationChat,
		*events.LabelAssociationMessage, *events.AppState,
		*events.CallOffer, *events.CallAccept, *events.CallPreAccept, *events.CallTransport, *events.CallOfferNotice,
		*events.CallRelayLatency, *events.CallTerminate, *events.CallReject, *events.UnknownCallEvent:
		return true
	default:
		return false
	}
}

func (s *Socket) connectedEvent(l *life) {
	s.ready.Store(true)
	if l.ctx.Err() != nil { // ended in between: finish has said "not ready" before we said "ready"
		s.ready.Store(false)
		return
	}
	s.post(note{ready: true})
	if h := s.opts.Handler.Ready; h != nil {
		s.told(l, "ready", func() { h(l.ctx) })
	}
}

func (s *Socket) ownName(l *life, name string) {
	name = clean(name)
	if name == "" {
		return
	}
	if before := s.lastName.Swap(&name); before != nil && *before == name {
		return
	}
	if h := s.opts.Handler.PushName; h != nil {
		s.told(l, "push_name", func() { h(l.ctx, name) })
	}
}

// protect calls one of our handlers and turns a panic into an error: whatsmeow would recover it too, and acknowledge.
func protect(handler string, m *fleet.Inbound, call func() error) error {
	err, panicked := caught(call)
	if err == nil {
		return nil
	}
	return &HandlerError{Handler: handler, Inbound: m, Panic: panicked, Err: err}
}

// caught calls f and turns a panic into an error.
func caught(f func() error) (err error, panicked bool) {
	defer func() {
		if r := recover(); r != nil {
			err, panicked = fmt.Errorf("panic: %v\n%s", r, debug.Stack()), true
		}
	}()
	return f(), false
}

// did calls a handler that may fail. If it does, the generation is over before whatsmeow hears of it.
func (s *Socket) did(l *life, handler string, m *fleet.Inbound, call func() error) bool {
	start := time.Now()
	err := protect(handler, m, call)
	s.m.handlerTime.WithLabelValues(handler).Observe(time.Since(start).Seconds())
	if err == nil {
		return l.ctx.Err() == nil // under an ended context nothing may be acknowledged, success or not
	}
	if l.ctx.Err() != nil { // it failed because the generation ended
		return false
	}
	kind := "error"
	if he := new(HandlerError); errors.As(err, &he) && he.Panic {
		kind = "panic"
	}
	s.m.handlerFails.WithLabelValues(kind).Inc()
	s.finish(End{Reason: ReasonHandler, Err: err})
	return false
}

// told calls a handler that can't fail, but may panic.
func (s *Socket) told(l *life, handler string, call func()) {
	s.did(l, handler, nil, func() error { call(); return nil })
}
