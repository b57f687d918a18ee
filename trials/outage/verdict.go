package main

import (
	"fmt"
	"strings"

	"github.com/wafleet/wafleet/trials/cluster"
)

// verdict sums up what all parts of a run found.
type verdict struct {
	Outages, Messages    int
	Lost, Doubled, Other int // findings of the audits
	Refused, Wrong       int // answers that were no acceptance, and those that were not 503 with Retry-After
	TermsLost            int // while the pool was exhausted
	Logouts, Ended       int // of sessions; of processes, by themselves
	Planted, Caught      int // bugs
}

// of adds the audit of one cluster.
func (v *verdict) of(r *cluster.Report) {
	v.Messages += r.Sent + r.Said
	v.Lost += r.Count(cluster.Lost)
	v.Doubled += r.Count(cluster.Doubled)
	v.Other += r.Count() - r.Count(cluster.Lost, cluster.Doubled)
}

// add adds the verdict of another process.
func (v *verdict) add(w *verdict) {
	v.Outages += w.Outages
	v.Messages += w.Messages
	v.Lost += w.Lost
	v.Doubled += w.Doubled
	v.Other += w.Other
	v.Refused += w.Refused
	v.Wrong += w.Wrong
	v.TermsLost += w.TermsLost
	v.Logouts += w.Logouts
	v.Ended += w.Ended
}

func (v *verdict) good() bool {
	return v.Lost+v.Doubled+v.Other+v.Wrong+v.TermsLost+v.Logouts+v.Ended == 0 && v.Caught == v.Planted
}

// String is the last line: every figure and its goal.
func (v *verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "outage: %d lost, %d doubled, %d otherwise wrong of %d messages over %d outages; ", v.Lost, v.Doubled, v.Other, v.Messages, v.Outages)
	fmt.Fprintf(&b, "%d of %d refusals not 503 with Retry-After, %d terms lost while the pool was exhausted, %d logouts, %d processes ended; ",
		v.Wrong, v.Refused, v.TermsLost, v.Logouts, v.Ended)
	fmt.Fprintf(&b, "%d of %d planted bugs caught (goal 0, 0, 0; 0, 0, 0, 0; %d)", v.Caught, v.Planted, v.Planted)
	return b.String()
}
