// Command bare is what the gateway's size is compared with: one process with whatsmeow on its own store and nothing
// around it. It opens every device of a database, stays connected, and tells on /stats how it is.
package main

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/store"
	"go.mau.fi/whatsmeow/store/sqlstore"
	"go.mau.fi/whatsmeow/types/events"
	waLog "go.mau.fi/whatsmeow/util/log"
	_ "modernc.org/sqlite" // registers "sqlite"
)

// opening is how many sockets are opened at a time, as the gateway's RESTORE_CONCURRENCY.
const opening = 10

// stats is the answer of /stats.
type stats struct {
	Online     int64 `json:"online"` // devices that have logged in
	Goroutines int   `json:"goroutines"`
	HeapInUse  int64 `json:"heapInUse"`  // bytes
	StackInUse int64 `json:"stackInUse"` // bytes
}

func main() {
	simulator := flag.String("simulator", "", "its `URL`")
	database := flag.String("database", "", "SQLite `file` with the devices")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *simulator, *database); err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, simulator, file string) error {
	web, err := simulatorClient(ctx, simulator)
	if err != nil {
		return err
	}
	// As the gateway opens it.
	source := url.URL{Scheme: "file", Opaque: file, RawQuery: "_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=foreign_keys(1)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"}
	db, err := sql.Open("sqlite", source.String())
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer db.Close() //nolint:errcheck // everything is committed
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	container := sqlstore.NewWithDB(db, "sqlite", waLog.Noop)
	if err := container.Upgrade(ctx); err != nil {
		return fmt.Errorf("upgrade whatsmeow's tables: %w", err)
	}
	devices, err := container.GetAllDevices(ctx)
	if err != nil {
		return fmt.Errorf("read devices: %w", err)
	}
	var online atomic.Int64
	done, err := serveStats(ctx, &online)
	if err != nil {
		return err
	}
	clients := connect(ctx, devices, web, &online)
	<-ctx.Done()
	for _, c := range clients {
		c.Disconnect()
	}
	<-done
	return nil
}

// connect opens all of them and keeps those that could be opened.
func connect(ctx context.Context, devices []*store.Device, web *http.Client, online *atomic.Int64) []*whatsmeow.Client {
	clients := make([]*whatsmeow.Client, len(devices))
	slots := make(chan struct{}, opening)
	var all sync.WaitGroup
	for i, device := range devices {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			c := whatsmeow.NewClient(device, waLog.Noop)
			c.SetPreLoginHTTPClient(web)
			c.SetWebsocketHTTPClient(web)
			in := make(chan struct{})
			var once sync.Once
			c.AddEventHandler(func(evt any) {
				if _, ok := evt.(*events.Connected); ok {
					once.Do(func() { online.Add(1); close(in) })
				}
			})
			clients[i] = c
			if err := c.ConnectContext(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "bare: connect:", err)
				return
			}
			select {
			case <-in:
			case <-ctx.Done():
			}
		})
	}
	all.Wait()
	return clients
}

// serveStats listens on a free loopback port and prints its address.
func serveStats(ctx context.Context, online *atomic.Int64) (done <-chan struct{}, err error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		_ = json.NewEncoder(w).Encode(stats{online.Load(), runtime.NumGoroutine(), int64(m.HeapInuse), int64(m.StackInuse)})
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(ln) }()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Printf("bare whatsmeow on http://%s/stats\n", ln.Addr())
	return ended, nil
}

// simulatorClient trusts the simulator's certificates and returns an HTTP client that connects to it, whatever address is
// asked for.
func simulatorClient(ctx context.Context, simulator string) (*http.Client, error) {
	u, err := url.Parse(simulator)
	if err != nil {
		return nil, err
	}
	d := &net.Dialer{Timeout: 5 * time.Second}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return d.DialContext(ctx, network, u.Host)
	}
	web := &http.Client{Transport: &http.Transport{DialTLSContext: dial, DialContext: dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, simulator+"/sim/root", nil)
	if err != nil {
		return nil, err
	}
	resp, err := web.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the simulator for its key: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is read
	var root struct {
		Pub string `json:"pub"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&root); err != nil {
		return nil, fmt.Errorf("read the simulator's key: %w", err)
	}
	key, err := hex.DecodeString(root.Pub)
	if err != nil || len(key) != len(whatsmeow.WACertPubKey) {
		return nil, errors.New("the simulator named no key")
	}
	copy(whatsmeow.WACertPubKey[:], key)
	return web, nil
}
