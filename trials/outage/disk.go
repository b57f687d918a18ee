package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/wafleet/wafleet/trials/cluster"
)

// smallDiskEnv tells a process of this program that it has a small file system, in "up/data" below this folder.
const smallDiskEnv = "WAFLEET_OUTAGE_DISK"

// diskSize is the size of the small file system in MiB.
const diskSize = 48

const verdictFile = "verdict.json"

// withoutRoom runs "up" on SQLite on a small file system of its own. Making one takes rights: this program starts itself
// again in a user namespace, where anybody has them.
func withoutRoom(ctx context.Context, o options, v *verdict) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir := filepath.Join(o.dir, "disk")
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", //nolint:gosec // folders of ours
		fmt.Sprintf(`mount -t tmpfs -o size=%dm none "$1" && exec "$2"`, diskSize), "sh", data, self)
	cmd.Env = append(os.Environ(), smallDiskEnv+"="+dir, "BINARY="+o.binary, "SESSIONS="+strconv.Itoa(o.sessions))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("on a small disk (a user namespace is needed for it): %w", err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, verdictFile)) //nolint:gosec // a folder of ours
	if err != nil {
		return err
	}
	var found verdict
	if err := json.Unmarshal(raw, &found); err != nil {
		return err
	}
	v.add(&found)
	return nil
}

// onSmallDisk is what withoutRoom runs.
func onSmallDisk(ctx context.Context) error {
	o, err := readOptions()
	if err != nil {
		return err
	}
	var v verdict
	dir := os.Getenv(smallDiskEnv)
	c, err := cluster.Start(ctx, cluster.Options{Binary: os.Getenv("BINARY"), Dir: dir})
	if err != nil {
		return err
	}
	defer c.Close()
	t, err := begin(ctx, c, o.sessions, &v)
	if err != nil {
		return err
	}
	ballast := filepath.Join(dir, "data", "ballast")
	err = t.outage(ctx, "the disk is full", true, func(ctx context.Context) error { return fill(ctx, ballast, 30*time.Second) })
	if err != nil {
		return err
	}
	if err := t.end(ctx); err != nil {
		return err
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, verdictFile), raw, 0o600) //nolint:gosec // a folder of ours
}

// fill takes all room there is for a time, and what becomes free meanwhile too.
func fill(ctx context.Context, path string, d time.Duration) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) //nolint:gosec // a folder of ours
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(path)) }() //nolint:gosec // the file just made
	chunk := []byte(strings.Repeat("x", 4096))
	for end := time.Now().Add(d); time.Now().Before(end); {
		for {
			if _, err := f.Write(chunk); errors.Is(err, syscall.ENOSPC) {
				break
			} else if err != nil {
				return err
			}
		}
		if err := cluster.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
