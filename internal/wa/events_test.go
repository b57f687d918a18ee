package wa

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestAnEventOfAnUnknownTypeIsCountedAndNotPassedOver(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := NewSocket(Options{Metrics: NewMetrics(reg)})
	if ok := s.handle(&life{ctx: t.Context()}, struct{ News string }{"of tomorrow"}); !ok {
		t.Error("handle of an unknown event = false, want it acknowledged")
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := 0.0
	for _, m := range families {
		if m.GetName() == "wafleet_wa_unhandled_events_total" {
			counted = m.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if counted != 1 {
		t.Errorf("unhandled events = %v, want 1", counted)
	}
}
