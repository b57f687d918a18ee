package bus

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wafleet/wafleet/internal/fleet"
)

const (
	even fleet.SessionID = "0000000a-1111-4222-8333-444444444444"
	odd  fleet.SessionID = "00000001-0000-4000-8000-000000000000"
)

func TestWithOneShardEveryNameIsTheBareOne(t *testing.T) {
	for _, topic := range []string{TopicSend, TopicUnassigned, TopicMedia, TopicAvatars} {
		for _, count := range []int{0, 1} {
			if got := Queue(topic, odd, count); got != topic {
				t.Errorf("Queue(%q, odd, %d) = %q, want %q", topic, count, got, topic)
			}
		}
	}
	for _, s := range []fleet.Shard{{}, {Count: 1}, {Count: 1, Index: fleet.AllShards}} {
		if d := cmp.Diff([]string{"whatsapp", "wa-unassigned", "whatsapp_media", "whatsapp_avatars"}, Queues(s)); d != "" {
			t.Errorf("Queues(%s) (-want +got):\n%s", s, d)
		}
	}
	if b := NewLocal(); Sharded(b, 1) != Bus(b) {
		t.Error("one shard makes another bus")
	}
}

func TestNudgesTravelUnderTheNameOfTheSessionsShard(t *testing.T) {
	for _, tc := range []struct {
		topic string
		id    fleet.SessionID
		want  string
	}{
		{TopicSend, odd, "whatsapp-1"},
		{TopicSend, even, "whatsapp-0"},
		{TopicUnassigned, odd, "wa-unassigned-1"},
		{TopicMedia, odd, "whatsapp_media-1"},
		{TopicAvatars, even, "whatsapp_avatars-0"},
		{TopicControl("w1"), odd, "wa-control-w1"},
		{TopicWebhooks, odd, "webhooks"},
		{TopicSession, odd, "session-changed"},
	} {
		if got := Queue(tc.topic, tc.id, 2); got != tc.want {
			t.Errorf("Queue(%q, %s, 2) = %q, want %q", tc.topic, tc.id, got, tc.want)
		}
	}
}

// heard publishes on one side and says what workers of these shards are told.
func TestShardZeroHearsTheBareNamesTooAndNobodyHearsAnotherShard(t *testing.T) {
	for _, tc := range []struct {
		name  string
		count int // of the producer
		shard fleet.Shard
		id    fleet.SessionID
		want  []string
	}{
		{"its own shard", 2, fleet.Shard{Count: 2, Index: 1}, odd, []string{TopicSend}},
		{"another shard", 2, fleet.Shard{Count: 2, Index: 0}, odd, nil},
		{"a producer that does not shard reaches shard 0", 1, fleet.Shard{Count: 2, Index: 0}, even, []string{TopicSend}},
		{"and not shard 1", 1, fleet.Shard{Count: 2, Index: 1}, odd, nil},
		{"a process that is for all", 2, fleet.Shard{Count: 2, Index: fleet.AllShards}, odd, []string{TopicSend}},
		{"a producer that shards where the worker does not", 2, fleet.Shard{Count: 1}, even, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := NewLocal()
			var heard []string
			stop, err := b.Subscribe(t.Context(), func(name, payload string) {
				if payload != string(tc.id) {
					t.Errorf("heard of %q, want %q", payload, tc.id)
				}
				heard = append(heard, Topic(name))
			}, Queues(tc.shard)...)
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			if err := Sharded(b, tc.count).Publish(t.Context(), TopicSend, string(tc.id)); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(heard, tc.want) {
				t.Errorf("heard %v, want %v", heard, tc.want)
			}
		})
	}
}

func TestANameIsOnlyTakenApartWhenItIsAShardsName(t *testing.T) {
	for name, want := range map[string]string{
		"whatsapp": TopicSend, "whatsapp-0": TopicSend, "wa-unassigned": TopicUnassigned, "wa-unassigned-12": TopicUnassigned,
		"whatsapp_media-3": TopicMedia, "whatsapp-x": "whatsapp-x", "whatsapp-": "whatsapp-",
		TopicControl("whatsapp-1"): "wa-control-whatsapp-1", TopicControl("w-1"): "wa-control-w-1", "keys-changed": "keys-changed",
	} {
		if got := Topic(name); got != want {
			t.Errorf("Topic(%q) = %q, want %q", name, got, want)
		}
	}
}
