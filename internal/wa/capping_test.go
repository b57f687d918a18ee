package wa

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	waBinary "go.mau.fi/whatsmeow/binary"

	"github.com/wafleet/wafleet/internal/fleet"
)

func TestTheStateOfANewChatCapIsReadInWhateverFormItsNumbersHave(t *testing.T) {
	const field = `{"data":{"xwa2_notify_new_chat_messages_capping_info_update":`
	capped := fleet.NumberLimit{Kind: fleet.LimitNewChats, Active: true, Until: time.Unix(1_800_000_000, 0), Detail: "CAPPED", Used: 7, Quota: 7}
	tests := []struct {
		name    string
		content any
		want    fleet.NumberLimit
		ok      bool
	}{
		{"numbers", []byte(field + `{"capping_status":"CAPPED","total_quota":7,"used_quota":7,"cycle_end_timestamp":1800000000}}}`), capped, true},
		{"strings", []byte(field + `{"capping_status":"CAPPED","total_quota":"7","used_quota":"7","cycle_end_timestamp":"1800000000"}}}`), capped, true},
		{"no quota and nonsense", []byte(field + `{"capping_status":"NONE","total_quota":-1,"used_quota":null,"cycle_end_timestamp":{}}}}`), fleet.NumberLimit{Kind: fleet.LimitNewChats, Detail: "NONE", Quota: -1}, true},
		{"another notification", []byte(`{"data":{"xwa2_notify_account_reachout_timelock":{"is_active":true}}}`), fleet.NumberLimit{}, false},
		{"null", []byte(field + `null}}`), fleet.NumberLimit{}, false},
		{"not JSON", []byte("x"), fleet.NumberLimit{}, false},
		{"no content", nil, fleet.NumberLimit{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := cappingOf(&waBinary.Node{Tag: "notification", Attrs: waBinary.Attrs{"type": "mex"}, Content: []waBinary.Node{{Tag: "update", Content: tt.content}}})
			if diff := cmp.Diff(tt.want, got); diff != "" || ok != tt.ok {
				t.Errorf("cappingOf = %v (-want +got):\n%s", ok, diff)
			}
		})
	}
	if _, ok := cappingOf(&waBinary.Node{Tag: "message"}); ok {
		t.Error("a message was taken for a cap")
	}
}
