package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// planted runs a crash of PostgreSQL once more with a worker that acknowledges before it commits: the audit must find
// what that loses, or it would find nothing else either.
func planted(ctx context.Context, o options, v *verdict) (err error) {
	if o.binary, err = cluster.Build(ctx, o.dir, "plant"); err != nil {
		return err
	}
	var own verdict
	s, err := start(ctx, o, "plant", &own, "WAFLEET_PLANT=ack-first")
	if err != nil {
		return err
	}
	defer s.close()
	v.Planted++
	storm := s.Storm(ctx, "planted", pause)
	for range 3 {
		err = errors.Join(err, s.pg.Crash(), s.pg.Start(ctx))
		if _, awaited := s.AwaitConnected(ctx, settle); awaited != nil {
			err = errors.Join(err, awaited)
		}
	}
	if err = errors.Join(err, storm.End()); err != nil {
		return err
	}
	_ = s.Settle(ctx, 40*time.Second) // what is lost is never told, so it does not
	report, err := s.Audit(ctx)
	if err != nil {
		return err
	}
	lost := 0
	for _, f := range report.Findings {
		if f.Kind == cluster.Lost && strings.Contains(f.Text, "never received") { // not what is still on its way out
			lost++
		}
	}
	fmt.Printf("ack-first: %d messages lost\n", lost)
	if lost > 0 {
		v.Caught++
	}
	return nil
}
