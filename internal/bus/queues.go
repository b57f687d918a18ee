package bus

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/wafleet/wafleet/internal/fleet"
)

// queues are the topics that are about one session and are cut into shards: their payload is the session's id.
var queues = []string{TopicSend, TopicUnassigned, TopicMedia, TopicAvatars}

// Queue is the name under which nudges about a session travel where the fleet has count shards:
// "whatsapp", or "whatsapp-1" for a session of shard 1.
func Queue(topic string, id fleet.SessionID, count int) string {
	if count <= 1 || !slices.Contains(queues, topic) {
		return topic
	}
	return shardName(topic, fleet.ShardOf(id, count))
}

func shardName(topic string, index int) string { return topic + "-" + strconv.Itoa(index) }

// Queues are the names that a worker of this shard listens on. Shard 0 listens on the bare names too: a
// producer that does not shard yet, or not any more, uses those.
func Queues(s fleet.Shard) []string {
	var out []string
	for _, i := range s.Indexes() {
		for _, topic := range queues {
			if i == 0 {
				out = append(out, topic)
			}
			if s.Count > 1 {
				out = append(out, shardName(topic, i))
			}
		}
	}
	return out
}

// Topic is the topic that a name of Queues belongs to; any other name is its own.
func Topic(name string) string {
	i := strings.LastIndexByte(name, '-')
	if i < 0 || !slices.Contains(queues, name[:i]) {
		return name
	}
	if _, err := strconv.ParseUint(name[i+1:], 10, 32); err != nil {
		return name
	}
	return name[:i]
}

// ClassTopic is the topic that wakes whoever does commands of this class for sessions it owns. Control
// commands travel to their owner by name, under TopicControl.
func ClassTopic(class fleet.CommandClass) string {
	switch class {
	case fleet.ClassMedia:
		return TopicMedia
	case fleet.ClassAvatar:
		return TopicAvatars
	default:
		return TopicUnassigned
	}
}

// Sharded returns a bus that publishes what is about a session under the name of its shard, where the
// fleet has count shards. Its subscribers name what they listen to, as Queues does.
func Sharded(b Bus, count int) Bus {
	if count <= 1 {
		return b
	}
	return &sharded{b, count}
}

type sharded struct {
	Bus
	count int
}

// Publish implements Bus.
func (b *sharded) Publish(ctx context.Context, topic, payload string) error {
	return b.Bus.Publish(ctx, Queue(topic, fleet.SessionID(payload), b.count), payload)
}
