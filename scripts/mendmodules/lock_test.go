package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mau.fi/whatsmeow/socket"
	waLog "go.mau.fi/whatsmeow/util/log"
)

func TestWaitingForADurableLockLetsTheFakeClockRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu durableMutex
		began := time.Now()
		mu.Lock()
		var waiter sync.WaitGroup
		waiter.Go(func() {
			mu.Lock()
			defer mu.Unlock()
		})
		time.Sleep(75 * time.Second) // the holder waits for the clock, as SendMessage does for its ack
		mu.Unlock()
		waiter.Wait()
		if got, want := time.Since(began), 75*time.Second; got != want {
			t.Errorf("the second goroutine had the lock after %s, want %s", got, want)
		}
	})
}

func TestDurableLocksExclude(t *testing.T) {
	var mu durableRWMutex
	var all sync.WaitGroup
	writes := 0 // the race detector sees to it that the lock orders the accesses
	for range 8 {
		all.Go(func() {
			for range 500 {
				mu.Lock()
				writes++
				mu.Unlock()
				mu.RLock()
				if writes < 1 {
					t.Errorf("writes = %d after one of mine, want at least 1", writes)
				}
				mu.RUnlock()
			}
		})
	}
	all.Wait()
	if writes != 8*500 {
		t.Errorf("writes = %d, want %d", writes, 8*500)
	}
	mu.RLock()
	mu.RLock()
	if mu.TryLock() {
		t.Error("TryLock succeeded beside two readers")
	}
	mu.RUnlock()
	mu.RUnlock()
	if !mu.TryLock() {
		t.Error("TryLock failed on a free lock")
	}
}

func TestUnlockingAFreeLockPanics(t *testing.T) {
	for name, unlock := range map[string]func(){
		"Unlock":       func() { new(durableRWMutex).Unlock() },
		"RUnlock":      func() { new(durableRWMutex).RUnlock() },
		"Mutex.Unlock": func() { new(durableMutex).Unlock() },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of a free lock did not panic", name)
				}
			}()
			unlock()
		})
	}
}

func TestSwapLocksReplacesTypesAndOnlyThem(t *testing.T) {
	tests := []struct {
		name, source, want string
		count              int
	}{
		{
			"the import goes with the last use",
			"package p\n\nimport (\n\t\"sync\"\n\t\"time\"\n)\n\ntype a struct {\n\tsync.Mutex\n\tb sync.RWMutex\n\tc time.Time // sync.Mutex\n}\n",
			"package p\n\nimport (\n\t\n\t\"time\"\n)\n\ntype a struct {\n\tdurableMutex\n\tb durableRWMutex\n\tc time.Time // sync.Mutex\n}\n",
			2,
		},
		{
			"the import stays for something else",
			"package p\n\nimport \"sync\"\n\nvar m sync.Mutex\nvar o sync.Once\n",
			"package p\n\nimport \"sync\"\n\nvar m durableMutex\nvar o sync.Once\n",
			1,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, count, err := swapLocks([]byte(tt.source))
			if err != nil || count != tt.count {
				t.Errorf("swapLocks = %d, %v, want %d", count, err, tt.count)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("swapLocks (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPatchRefusesTextItWasNotWrittenFor(t *testing.T) {
	for name, source := range map[string]string{"gone": "nothing here", "twice": "old old"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f.go")
			if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := (patch{from: "old", to: "new"}).apply(path); err == nil {
				t.Errorf("patch applied to %q, want an error", source)
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != source {
				t.Errorf("the file holds %q, %v after a refused patch, want %q", got, err, source)
			}
		})
	}
}

func TestALockThatUpstreamAddsStopsTheScript(t *testing.T) {
	dir := t.TempDir()
	source := "package p\n\nimport \"sync\"\n\nvar known, added sync.Mutex\n\nvar third sync.Mutex\n"
	if err := os.WriteFile(filepath.Join(dir, "f.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	err := lockSwap{pkg: "p", files: map[string]int{"f.go": 1}}.apply(dir)
	if err == nil || !strings.Contains(err.Error(), "holds 2 locks, 1 were expected") {
		t.Errorf("apply to a file with one lock more = %v, want an error with both numbers", err)
	}
}

func TestEveryPatchIsExplained(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "mended-modules.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range patches {
		if !strings.Contains(string(doc), "`"+p.name+"`") {
			t.Errorf("docs/mended-modules.md does not mention `%s`", p.name)
		}
	}
}

// mended reports whether this test binary was built with the copies: test binaries carry no list of modules, but the
// compiler noted where a function of the socket package comes from.
func mended() bool {
	file, _ := runtime.FuncForPC(reflect.ValueOf(socket.NewFrameSocket).Pointer()).FileLine(0)
	return strings.Contains(filepath.ToSlash(file), "/.cache/mended/")
}

// A socket holds its lock while it dials. With sync.Mutex a Close during the dial stops the fake clock for ever; that is
// why this test is not run on the unmodified modules.
func TestTheMendedSocketLetsTheFakeClockRun(t *testing.T) {
	if !mended() {
		t.Skip("built with the unmodified modules: make test builds with -modfile=.cache/sim.mod")
	}
	synctest.Test(t, func(t *testing.T) {
		errSlow := errors.New("no answer for 20 seconds")
		frames := socket.NewFrameSocket(waLog.Noop, &http.Client{Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				time.Sleep(20 * time.Second)
				return nil, errSlow
			},
		}})
		began := time.Now()
		dialled := make(chan error, 1)
		go func() { dialled <- frames.Connect(t.Context()) }()
		synctest.Wait()
		frames.Close(0)
		if got, want := time.Since(began), 20*time.Second; got != want {
			t.Errorf("Close during a dial returned after %s, want %s", got, want)
		}
		if err := <-dialled; !errors.Is(err, errSlow) {
			t.Errorf("Connect = %v, want %v", err, errSlow)
		}
	})
}
