package main

import (
	"bufio"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
	"go.mau.fi/whatsmeow"
	"go.mau.fi/whatsmeow/proto/waE2E"
	"go.mau.fi/whatsmeow/store/sqlstore"
	"go.mau.fi/whatsmeow/types"
	"go.mau.fi/whatsmeow/types/events"
	waLog "go.mau.fi/whatsmeow/util/log"
	"google.golang.org/protobuf/proto"
	_ "modernc.org/sqlite" // registers "sqlite"

	"github.com/wafleet/wafleet/trials/cluster"
)

// bareSettings is what the bare process is told in its environment, as JSON.
type bareSettings struct {
	Simulator string   `json:"simulator"` // http://127.0.0.1:…
	Dialect   string   `json:"dialect"`   // "pgx" or "sqlite"
	Database  string   `json:"database"`  // data source
	Pool      int      `json:"pool"`
	Numbers   []string `json:"numbers"` // one session each
}

// loadDone is the bare process's answer to a load.
type loadDone struct {
	First  time.Time `json:"first"` // the first SendMessage
	Errors int       `json:"errors"`
	Error  string    `json:"error,omitempty"` // one of them
	Ground ground    `json:"ground"`
}

const bareEnv = "WAFLEET_TRIAL_BARE"

// bare is the process that the gateway is compared with: whatsmeow as its documentation says, on its own store, with one
// goroutine per session that sends in a loop. It takes loads on its standard input and answers on its standard output.
func bare(ctx context.Context) error {
	in, out := io.Reader(os.Stdin), io.Writer(os.Stdout)
	var s bareSettings
	if err := json.Unmarshal([]byte(os.Getenv(bareEnv)), &s); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	db, err := sql.Open(s.Dialect, s.Database)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer db.Close() //nolint:errcheck // everything is committed
	db.SetMaxOpenConns(s.Pool)
	db.SetMaxIdleConns(s.Pool)
	sqlstore.PostgresArrayWrapper = func(v any) interface {
		driver.Valuer
		sql.Scanner
	} {
		return array{v}
	}
	container := sqlstore.NewWithDB(db, s.Dialect, waLog.Noop)
	if err := container.Upgrade(ctx); err != nil {
		return fmt.Errorf("upgrade whatsmeow's tables: %w", err)
	}
	web, err := simulatorClient(ctx, s.Simulator)
	if err != nil {
		return err
	}
	clients, err := pairBare(ctx, &s, container, web)
	if err != nil {
		return err
	}
	defer func() {
		for _, c := range clients {
			c.Disconnect()
		}
	}()
	answer := json.NewEncoder(out)
	ground, err := groundOfPool(ctx, db, s.Dialect)
	if err != nil {
		return fmt.Errorf("settings of the database: %w", err)
	}
	if err := answer.Encode(loadDone{Ground: ground}); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var l load
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("load: %w", err)
		}
		done := sendBare(ctx, clients, l)
		if err := answer.Encode(done); err != nil {
			return err
		}
	}
	return lines.Err()
}

// sendBare does one load and returns when the last SendMessage has.
func sendBare(ctx context.Context, clients []*whatsmeow.Client, l load) loadDone {
	var done loadDone
	var mu sync.Mutex
	var failed atomic.Int64
	var all sync.WaitGroup
	done.First = time.Now()
	for session := range l.Sessions {
		all.Go(func() {
			for k := session; k < l.Messages; k += l.Sessions {
				to := types.NewJID(l.recipient(k), types.DefaultUserServer)
				sctx, cancel := context.WithTimeout(ctx, sendLimit)
				_, err := clients[session].SendMessage(sctx, to, &waE2E.Message{Conversation: proto.String(l.text(k))})
				cancel()
				if err != nil {
					failed.Add(1)
					mu.Lock()
					done.Error = err.Error()
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	done.Errors = int(failed.Load())
	return done
}

// pairBare links one client to every number and waits until all are logged in.
func pairBare(ctx context.Context, s *bareSettings, container *sqlstore.Container, web *http.Client) ([]*whatsmeow.Client, error) {
	clients := make([]*whatsmeow.Client, len(s.Numbers))
	errs := make([]error, len(s.Numbers))
	slots := make(chan struct{}, pairsAtOnce)
	var all sync.WaitGroup
	for i, number := range s.Numbers {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			c := whatsmeow.NewClient(container.NewDevice(), waLog.Noop)
			c.SetPreLoginHTTPClient(web)
			c.SetWebsocketHTTPClient(web)
			clients[i], errs[i] = c, pairOne(ctx, c, s.Simulator, number)
		})
	}
	all.Wait()
	return clients, errors.Join(errs...)
}

func pairOne(ctx context.Context, c *whatsmeow.Client, simulator, number string) error {
	ctx, cancel := context.WithTimeout(ctx, pairLimit)
	defer cancel()
	settled := make(chan struct{})
	var once sync.Once
	c.AddEventHandler(func(evt any) {
		if _, ok := evt.(*events.OfflineSyncCompleted); ok && c.Store.ID != nil {
			once.Do(func() { close(settled) })
		}
	})
	codes, err := c.GetQRChannel(ctx)
	if err != nil {
		return fmt.Errorf("pair %s: %w", lastDigits(number), err)
	}
	if err := c.Connect(); err != nil {
		return fmt.Errorf("connect %s: %w", lastDigits(number), err)
	}
	scanned := false
	for {
		select {
		case item, ok := <-codes:
			if !ok {
				codes = nil
				continue
			}
			if item.Event == "code" && !scanned {
				scanned = true
				if err := scan(ctx, simulator, number, item.Code); err != nil {
					return err
				}
			}
		case <-settled:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("pair %s: not logged in: %w", lastDigits(number), ctx.Err())
		}
	}
}

// simulatorClient trusts the simulator's certificates and returns an HTTP client that connects to it, whatever address is
// asked for.
func simulatorClient(ctx context.Context, simulator string) (*http.Client, error) {
	var root struct {
		Pub string `json:"pub"`
	}
	if err := cluster.Call(ctx, http.MethodGet, simulator+"/sim/root", "", nil, nil, &root); err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(root.Pub)
	if err != nil || len(key) != len(whatsmeow.WACertPubKey) {
		return nil, errors.New("the simulator named no root key")
	}
	copy(whatsmeow.WACertPubKey[:], key)
	u, err := url.Parse(simulator)
	if err != nil {
		return nil, err
	}
	d := &net.Dialer{Timeout: 5 * time.Second}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return d.DialContext(ctx, network, u.Host)
	}
	return &http.Client{Transport: &http.Transport{DialTLSContext: dial, DialContext: dial}}, nil
}

// array writes lists as PostgreSQL reads them, which is what whatsmeow asks its users to bring.
type array struct{ list any }

// Value implements driver.Valuer.
func (a array) Value() (driver.Value, error) {
	var items []string
	switch list := a.list.(type) {
	case []string:
		for _, s := range list {
			items = append(items, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s)+`"`)
		}
	case [][]byte:
		for _, b := range list {
			items = append(items, `"\\x`+hex.EncodeToString(b)+`"`)
		}
	default:
		return nil, fmt.Errorf("array of %T", a.list)
	}
	return "{" + strings.Join(items, ",") + "}", nil
}

// Scan implements sql.Scanner. whatsmeow never reads a list.
func (array) Scan(any) error { return errors.ErrUnsupported }

func lastDigits(number string) string {
	return strings.Repeat("x", max(0, len(number)-4)) + number[max(0, len(number)-4):]
}
