package wasim

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func seqs(es []Entry) []int64 {
	var out []int64
	for _, e := range es {
		out = append(out, e.Seq)
	}
	return out
}

func TestTheLogAnswersQueriesInOrder(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, e := range []Entry{
		{Kind: KindMessage, Dir: DirIn, Session: "1", Sender: "1", Recipient: "2", ID: "a", Worker: "w1"},
		{Kind: KindMessage, Dir: DirOut, Session: "2", Sender: "1", Recipient: "2", ID: "a", Worker: "w2", SessionID: "s2"},
		{Kind: KindAck, Dir: DirOut, Session: "1", ID: "a", Worker: "w1"},
		{SessionID: "s2", Worker: "w2", Epoch: 2},
	} {
		s.NoteLease(e)
	}
	for name, tc := range map[string]struct {
		q    Query
		want []int64
	}{
		"everything":             {Query{}, []int64{1, 2, 3, 4}},
		"by session":             {Query{Session: "1"}, []int64{1, 3}},
		"by sender":              {Query{Sender: "1"}, []int64{1, 2}},
		"by recipient":           {Query{Recipient: "2", Dir: DirIn}, []int64{1}},
		"by id and kind":         {Query{ID: "a", Kind: KindMessage}, []int64{1, 2}},
		"by worker":              {Query{Worker: "w2"}, []int64{2, 4}},
		"by session id":          {Query{SessionID: "s2"}, []int64{2, 4}},
		"leases get their kind":  {Query{Kind: KindLease}, []int64{4}},
		"after":                  {Query{After: 2}, []int64{3, 4}},
		"after the end":          {Query{After: 9}, nil},
		"the oldest of them":     {Query{Limit: 2}, []int64{1, 2}},
		"the newest of them":     {Query{Tail: 2}, []int64{3, 4}},
		"nothing matches at all": {Query{ID: "zz"}, nil},
	} {
		if diff := cmp.Diff(tc.want, seqs(s.Log(tc.q))); diff != "" {
			t.Errorf("%s: Log(%+v) (-want +got):\n%s", name, tc.q, diff)
		}
	}
}

func TestAFullLogForgetsTheOldestAndKeepsCounting(t *testing.T) {
	s, err := New(Options{LogLimit: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 40 {
		s.NoteLease(Entry{})
	}
	es := s.Log(Query{})
	if len(es) > 16 || es[len(es)-1].Seq != 40 {
		t.Errorf("log has %d entries up to %d, want at most 16 up to 40", len(es), es[len(es)-1].Seq)
	}
	for i, e := range es {
		if e.Seq != es[0].Seq+int64(i) {
			t.Fatalf("entry %d has seq %d after %d: a gap", i, e.Seq, es[0].Seq)
		}
	}
	if got := s.Log(Query{After: 39}); len(got) != 1 || got[0].Seq != 40 {
		t.Errorf("Log after 39 = %v, want entry 40", seqs(got))
	}
}

func TestAWatchWakesOnNewEntriesUntilItIsEnded(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	wake, stop := s.Watch()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s.NoteLease(Entry{At: at, SessionID: "s"})
	s.NoteLease(Entry{})
	<-wake
	if es := s.Log(Query{}); len(es) != 2 || !es[0].At.Equal(at) || es[1].At.IsZero() {
		t.Errorf("entries after the wake-up = %+v, want two, the first with its own time", es)
	}
	stop()
	s.NoteLease(Entry{})
	select {
	case <-wake:
		t.Error("a watch woke after it was ended")
	default:
	}
}
