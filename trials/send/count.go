package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/wafleet/wafleet/internal/wasim"
	"github.com/wafleet/wafleet/trials/cluster"
)

// quiet is how long nothing may be decrypted before what is missing counts as lost.
const quiet = 20 * time.Second

// oracle reads the simulator's log.
type oracle struct{ simulator string }

// mark is the present end of the log.
func (o oracle) mark(ctx context.Context) (int64, error) {
	var page struct {
		Next int64 `json:"next"`
	}
	err := cluster.Call(ctx, http.MethodGet, o.simulator+"/sim/log?tail=1", "", nil, nil, &page)
	return page.Next, err
}

// decrypted is what the recipients' phones read of a load.
type decrypted struct {
	messages int // each counted once
	doubled  int // shown to somebody twice
	last     time.Time
}

// await reads the log behind mark until every message of the load was decrypted by its recipient's phone, or nothing more
// comes. Copies for the sender's own phone do not count.
func (o oracle) await(ctx context.Context, mark int64, l load) (decrypted, error) {
	var d decrypted
	seen := map[string]bool{}
	grew := time.Now()
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		var page struct {
			Entries []wasim.Entry `json:"entries"`
			Next    int64         `json:"next"`
		}
		url := o.simulator + "/sim/log?limit=10000&kind=decrypted&after=" + strconv.FormatInt(mark, 10)
		if err := cluster.Call(ctx, http.MethodGet, url, "", nil, nil, &page); err != nil {
			return d, err
		}
		mark = page.Next
		for _, e := range page.Entries {
			switch {
			case e.Session != e.Recipient || e.Duplicate || !l.owns(e.Text):
			case seen[e.Text]:
				d.doubled++
			default:
				seen[e.Text] = true
				d.messages++
				d.last, grew = e.At, time.Now()
			}
		}
		if d.messages == l.Messages || time.Since(grew) > quiet {
			return d, nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return d, fmt.Errorf("read %d of %d messages: %w", d.messages, l.Messages, context.Cause(ctx))
		}
	}
}
