package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Stage is what the clusters of one trial share: a folder, the servers, and binaries.
type Stage struct {
	Dir      string
	Postgres *Postgres
	Redis    *Redis

	begun    time.Time
	binaries map[string]string // by build tag
	clusters int
}

// NewStage makes the folder and starts the servers.
func NewStage(ctx context.Context, name string) (s *Stage, err error) {
	s = &Stage{begun: time.Now(), binaries: map[string]string{}}
	if s.Dir, _, err = Folder(name); err != nil {
		return nil, err
	}
	s.Say("logs in %s", s.Dir)
	if s.Postgres, err = StartPostgres(ctx, PostgresOptions{Dir: s.Dir}); err != nil {
		return nil, err
	}
	if s.Redis, err = StartRedis(ctx, RedisOptions{Dir: s.Dir, AOF: true}); err != nil {
		s.Postgres.Close()
		return nil, err
	}
	return s, nil
}

// Close ends the servers; good also removes the folder.
func (s *Stage) Close(good bool) {
	s.Redis.Close()
	s.Postgres.Close()
	if good {
		_ = os.RemoveAll(s.Dir)
	}
}

// Binary is wafleet built with a tag ("" = none), once.
func (s *Stage) Binary(ctx context.Context, tag string) (string, error) {
	if b := s.binaries[tag]; b != "" {
		return b, nil
	}
	var tags []string
	if tag != "" {
		tags = []string{tag}
	}
	b, err := Build(ctx, s.Dir, tags...)
	s.binaries[tag] = b
	return b, err
}

// Start starts a cluster on a database and Redis names of its own. plants are the bugs planted in it, "" = none. The
// options need no binary, folder, database or Redis.
func (s *Stage) Start(ctx context.Context, name, plants string, o Options) (c *Cluster, err error) {
	s.clusters++
	name = fmt.Sprintf("%s%d", name, s.clusters)
	tag := ""
	if plants != "" {
		tag = "plant"
		o.Settings = append(o.Settings, "WAFLEET_PLANT="+plants)
	}
	if o.Binary == "" {
		if o.Binary, err = s.Binary(ctx, tag); err != nil {
			return nil, err
		}
	}
	if o.Database == "" {
		if o.Database, err = s.Postgres.CreateDatabase(ctx, name); err != nil {
			return nil, err
		}
	}
	o.Dir, o.Redis = filepath.Join(s.Dir, name), s.Redis.URL()
	o.Settings = append([]string{"REDIS_PREFIX=" + name + ":"}, o.Settings...)
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		return nil, err
	}
	return Start(ctx, o)
}

// Say prints a line with the time since the trial began.
func (s *Stage) Say(format string, args ...any) {
	fmt.Printf("%5.0fs  %s\n", time.Since(s.begun).Seconds(), fmt.Sprintf(format, args...))
}

// SettleTime is long enough for a second repeat, 5 minutes after an outcome became unknown.
const SettleTime = 7 * time.Minute

// Finish lets every session come back, one more message go both ways, and everything settle; then it audits. A cluster
// that doesn't settle is a finding.
func (c *Cluster) Finish(ctx context.Context, connected, settled time.Duration) (*Report, error) {
	if _, err := c.AwaitConnected(ctx, connected); err != nil {
		return nil, fmt.Errorf("not every session logged in again: %w", err)
	}
	if err := c.Talk(ctx, "afterwards", 1); err != nil {
		return nil, err
	}
	unsettled := c.Settle(ctx, settled)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r, err := c.Audit(ctx)
	if err == nil && unsettled != nil {
		r.found(Unfinal, "%v", unsettled)
	}
	return r, err
}

// EnvNumber reads a setting of a trial, a number above 0.
func EnvNumber(name string, otherwise int) (int, error) {
	text := os.Getenv(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, errors.Join(fmt.Errorf("%s=%q is not a number above 0", name, text), err)
	}
	return n, nil
}
