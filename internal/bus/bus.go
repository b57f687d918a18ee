// Package bus carries nudges between the parts of a fleet: "look now", "this key was revoked", "this
// message changed".
//
// A nudge is never the truth. Whatever it announces is a row already, and whoever listens also polls,
// so a lost nudge costs a second and nothing else. From that follow the rules of both forms:
//
//   - Publish never waits longer than a second, and after one that was not answered not at all for five, so a server
//     that is away does not cost every row its time-out. Its error is for the log, never for the caller's
//     caller: the row is committed.
//   - Nothing is kept, repeated or put in order. A subscriber hears what is published while it is
//     connected, at most once per publishing.
//   - A handler runs on the bus's goroutine and must not block: it marks something and wakes somebody.
//   - After stop has returned no new call of that handler begins.
//
// Local joins the parts of one process, Redis those of several. Both pass the same suite.
package bus

import (
	"context"
	"errors"
	"slices"
)

// ErrClosed says that the bus was closed.
var ErrClosed = errors.New("bus is closed")

// Topics that all processes share, and what travels in their payload.
const (
	// TopicSend wakes the lanes: a message was queued, or may go again. Payload: session id.
	TopicSend = "whatsapp"
	// TopicUnassigned wakes the claim loop of every worker: a session without a live owner has work.
	// Payload: session id.
	TopicUnassigned = "wa-unassigned"
	// TopicDispatch wakes the dispatching job of the scheduler: a message wants another number. Payload: empty.
	TopicDispatch = "dispatch"
	// TopicMedia wakes the owner of a session that has a command of class media. Payload: session id.
	TopicMedia = "whatsapp_media"
	// TopicAvatars is the same for class avatar.
	TopicAvatars = "whatsapp_avatars"
	// TopicWebhooks wakes the delivery loop. Payload: organization id or empty.
	TopicWebhooks = "webhooks"
	// TopicMessage says that a message's status changed. Payload: message id.
	TopicMessage = "message-status"
	// TopicSession says that a session's observed or desired state changed. Payload: session id.
	TopicSession = "session-changed"
	// TopicKeys says that API keys changed, so that caches drop them. Payload: key id or empty.
	TopicKeys = "keys-changed"
)

// TopicControl wakes the command loop of the worker with this WORKER_ID. Payload: session id, or empty
// when it is about the worker itself.
func TopicControl(workerID string) string { return "wa-control-" + workerID }

// Bus carries nudges. Its methods are safe for use by several goroutines.
type Bus interface {
	// Publish tells every present subscriber of the topic. It returns within a second.
	Publish(ctx context.Context, topic, payload string) error
	// Subscribe calls fn for every publishing on these topics until stop is called or the bus is
	// closed. fn may be called by several goroutines at once and must not block. stop may be called
	// more than once, and also by fn.
	Subscribe(ctx context.Context, fn func(topic, payload string), topics ...string) (stop func(), err error)
	// Ping asks whether nudges can travel now. It returns within a second.
	Ping(ctx context.Context) error
	// Close ends every subscription and joins the goroutines of the bus.
	Close() error
}

func checkTopics(fn func(topic, payload string), topics []string) error {
	if fn == nil {
		return errors.New("subscribe: no handler")
	}
	if len(topics) == 0 {
		return errors.New("subscribe: no topics")
	}
	if slices.Contains(topics, "") {
		return errors.New("subscribe: empty topic")
	}
	return nil
}
