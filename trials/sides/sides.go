// Package sides starts the two sides of a comparison at rest: the gateway in one process on a SQLite file, and whatsmeow
// on its own store on a copy of the same file, so that both hold the same sessions with the same keys.
package sides

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// stopTime bounds the graceful stop of a side.
const stopTime = time.Minute

// Bench is a simulator with the sessions of one gateway, and where everything lies.
type Bench struct {
	Dir      string
	Gateway  string // binary
	bare     string // binary
	settings []string
	cluster  *cluster.Cluster
	sessions int
}

// Open builds both binaries and starts the simulator, with no session yet. settings are NAME=value for the gateway.
func Open(ctx context.Context, dir string, settings ...string) (b *Bench, err error) {
	b = &Bench{Dir: dir, bare: filepath.Join(dir, "bare"), settings: settings}
	if b.Gateway, err = cluster.Build(ctx, dir); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", b.bare, "github.com/wafleet/wafleet/trials/bare") //nolint:gosec // a folder of ours
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the bare side: %w\n%s", err, out)
	}
	if b.cluster, err = cluster.Start(ctx, cluster.Options{Binary: b.Gateway, Dir: dir, Settings: settings}); err != nil {
		return nil, err
	}
	return b, b.stopPairing()
}

// Close ends what still runs.
func (b *Bench) Close() { b.cluster.Close() }

// Simulator is its URL.
func (b *Bench) Simulator() string { return b.cluster.Sim }

// Pair brings the gateway to so many sessions in all, and stops it again.
func (b *Bench) Pair(ctx context.Context, sessions int) error {
	if err := b.cluster.Restart(ctx, "up"); err != nil {
		return err
	}
	if err := b.cluster.Pair(ctx, sessions-b.sessions); err != nil {
		return err
	}
	b.sessions = sessions
	if err := cluster.Pause(ctx, 3*time.Second); err != nil { // what phones send after a pairing
		return err
	}
	return b.stopPairing()
}

func (b *Bench) stopPairing() error {
	if code, err := b.cluster.Process("up").Stop(syscall.SIGTERM, stopTime); err != nil || code != 0 {
		return errors.Join(err, fmt.Errorf("the gateway ended with %d after SIGTERM", code))
	}
	return nil
}

// Online is how many sessions are logged in at the simulator.
func (b *Bench) Online(ctx context.Context) (int, error) {
	var stats struct {
		Online int `json:"online"`
	}
	err := cluster.Call(ctx, http.MethodGet, b.cluster.Sim+"/sim/stats", "", nil, nil, &stats)
	return stats.Online, err
}

// AwaitOnline looks often until all sessions are logged in.
func (b *Bench) AwaitOnline(ctx context.Context, within time.Duration) error {
	return often(ctx, within, func() error {
		n, err := b.Online(ctx)
		if err == nil && n < b.sessions {
			err = fmt.Errorf("%d of %d sessions are online", n, b.sessions)
		}
		return err
	})
}

// Side is one running process of the comparison.
type Side struct {
	*cluster.Process
	Started time.Time
	API     string        // of the gateway
	Ready   time.Duration // of the gateway: until API and /readyz answered
	vitals  func(ctx context.Context) (Vitals, error)
}

// Vitals are what a process says of itself, and what the system says of it.
type Vitals struct {
	Goroutines  int
	Heap, Stack int64 // bytes in use
	RSS         int64 // bytes
	Anonymous   int64 // bytes of RSS that belong to no file
	CPU         time.Duration
}

// Vitals reads them. What the system says comes first: a process that is asked makes garbage of the answer.
func (s *Side) Vitals(ctx context.Context) (Vitals, error) {
	all, anonymous, err := Resident(s.PID())
	if err != nil {
		return Vitals{}, err
	}
	cpu, err := s.CPU()
	if err != nil {
		return Vitals{}, err
	}
	v, err := s.vitals(ctx)
	v.RSS, v.Anonymous, v.CPU = all, anonymous, cpu
	return v, err
}

// End stops it by SIGTERM.
func (s *Side) End() error {
	code, err := s.Stop(syscall.SIGTERM, stopTime)
	if err == nil && code != 0 {
		err = fmt.Errorf("ended with %d after SIGTERM (log: %s)", code, s.LogPath())
	}
	return err
}

// StartGateway starts "up" on the folder that Pair filled, and returns when it is ready.
func (b *Bench) StartGateway(ctx context.Context) (*Side, error) {
	api, ops, err := freePorts(ctx)
	if err != nil {
		return nil, err
	}
	env := append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.Dir, "LISTEN=" + api, "OPS_LISTEN=" + ops}, b.settings...)
	s := &Side{Started: time.Now(), API: "http://" + api}
	s.Process, err = cluster.StartProcess(cluster.ProcessOptions{
		Path: b.Gateway, Args: []string{"up", "--data-dir=" + filepath.Join(b.Dir, "data"), "--simulator=" + b.cluster.Sim},
		Env: env, Log: filepath.Join(b.Dir, "gateway.log"), Dir: b.Dir,
	})
	if err != nil {
		return nil, err
	}
	err = often(ctx, time.Minute, func() error {
		return errors.Join(answers(ctx, s.API+"/openapi.json"), answers(ctx, "http://"+ops+"/readyz"))
	})
	s.Ready = time.Since(s.Started)
	s.vitals = func(ctx context.Context) (v Vitals, err error) {
		m, err := Metrics(ctx, "http://"+ops)
		return Vitals{
			Goroutines: int(m["go_goroutines"]), Heap: int64(m["go_memstats_heap_inuse_bytes"]), Stack: int64(m["go_memstats_stack_inuse_bytes"]),
		}, err
	}
	return s, err
}

// StartBare starts whatsmeow by itself on a copy of the gateway's file. The gateway must have stopped.
func (b *Bench) StartBare(ctx context.Context) (*Side, error) {
	copied := filepath.Join(b.Dir, "bare.db")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(copied + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	for _, suffix := range []string{"", "-wal"} {
		if err := copyFile(copied+suffix, filepath.Join(b.Dir, "data", "wafleet.db"+suffix)); err != nil {
			return nil, err
		}
	}
	s := &Side{Started: time.Now()}
	var err error
	s.Process, err = cluster.StartProcess(cluster.ProcessOptions{
		Path: b.bare, Args: []string{"-simulator", b.cluster.Sim, "-database", copied},
		Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.Dir}, Log: filepath.Join(b.Dir, "bare.log"), Dir: b.Dir,
	})
	if err != nil {
		return nil, err
	}
	url, err := s.Find(ctx, `bare whatsmeow on (http://\S+)`)
	s.vitals = func(ctx context.Context) (v Vitals, err error) {
		var stats struct {
			Goroutines int   `json:"goroutines"`
			Heap       int64 `json:"heapInUse"`
			Stack      int64 `json:"stackInUse"`
		}
		err = cluster.Call(ctx, http.MethodGet, url, "", nil, nil, &stats)
		return Vitals{Goroutines: stats.Goroutines, Heap: stats.Heap, Stack: stats.Stack}, err
	}
	return s, err
}

func copyFile(to, from string) error {
	in, err := os.Open(from) //nolint:gosec // a folder of ours
	if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(from, "-wal") {
		return nil // everything is in the file itself
	}
	if err != nil {
		return err
	}
	defer in.Close()          //nolint:errcheck // it is read
	out, err := os.Create(to) //nolint:gosec // a folder of ours
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Metrics reads /metrics of a wafleet process. Names come with their labels.
func Metrics(ctx context.Context, ops string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ops+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it is read
	all := map[string]float64{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if i := strings.LastIndexByte(lines.Text(), ' '); i > 0 && lines.Text()[0] != '#' {
			all[lines.Text()[:i]], _ = strconv.ParseFloat(lines.Text()[i+1:], 64)
		}
	}
	return all, nil
}

// Resident is the resident memory of a process in bytes, and the part of it that belongs to no file. Linux only.
func Resident(pid int) (all, anonymous int64, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			all = kib << 10
		case "RssAnon:":
			anonymous = kib << 10
		}
	}
	return all, anonymous, nil
}

// often is cluster.Until with a short pause, for what is timed.
func often(ctx context.Context, within time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		if cluster.Pause(ctx, 3*time.Millisecond) != nil {
			return fmt.Errorf("not within %s: %w", within, err)
		}
	}
}

func answers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

func freePorts(ctx context.Context) (one, two string, err error) {
	var listeners [2]net.Listener
	for i := range listeners {
		if listeners[i], err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return "", "", err
		}
		defer listeners[i].Close() //nolint:errcheck // it accepted nothing
	}
	return listeners[0].Addr().String(), listeners[1].Addr().String(), nil
}
