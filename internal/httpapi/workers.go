package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/wafleet/wafleet/internal/fleet"
)

// Worker is a process that holds sessions.
type Worker struct {
	WorkerID    string     `json:"workerId" example:"worker-1"`
	Owner       string     `json:"owner" doc:"The id with this start's own mark, as leases carry it."`
	Version     string     `json:"version"`
	Sessions    int        `json:"sessions"`
	MaxSessions int        `json:"maxSessions"`
	ShardCount  int        `json:"shardCount" doc:"Into how many parts it cuts the fleet's sessions; 1: not at all."`
	ShardIndex  int        `json:"shardIndex" doc:"Which part it is for; -1: all of them."`
	Draining    bool       `json:"draining" doc:"It claims nothing: it stops, or was drained."`
	Alive       bool       `json:"alive" doc:"Its last beat is at most 35 s old. What a worker that is not alive held is moving, or has moved, to others."`
	StartedAt   *time.Time `json:"startedAt"`
	BeatAt      *time.Time `json:"beatAt" doc:"When it last said that it lives."`
}

func workerView(w fleet.WorkerInfo) Worker {
	return Worker{
		WorkerID: w.ID, Owner: w.Owner, Version: w.Version, Sessions: w.Sessions, MaxSessions: w.MaxSessions,
		ShardCount: max(w.Shard.Count, 1), ShardIndex: w.Shard.Index, Draining: w.Draining || w.Drain, Alive: w.Alive, StartedAt: when(w.StartedAt), BeatAt: when(w.BeatAt),
	}
}

func registerWorkers(api huma.API, d *deps) {
	huma.Register(api, huma.Operation{
		OperationID: "list-workers", Method: http.MethodGet, Path: "/api/admin/workers", Tags: []string{"Workers"},
		Summary: "List workers", Security: adminSecurity,
	}, func(ctx context.Context, _ *struct{}) (*reply[Page[Worker]], error) {
		rows, err := d.store.Workers(ctx)
		if err != nil {
			return nil, err
		}
		return wholeList(rows, workerView), nil
	})
}
