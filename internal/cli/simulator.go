package cli

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/wafleet/wafleet/internal/config"
	"github.com/wafleet/wafleet/internal/store"
	"github.com/wafleet/wafleet/internal/wa"
)

// simulation is the flag that turns a process into a simulated one. It is a flag and nothing else: no
// setting in an environment or a file can make a real process talk to a simulator.
type simulation struct {
	Simulator string `placeholder:"URL" help:"Talk to the simulator at this loopback address instead of WhatsApp. A database is simulated or real from its first use on, and stays so."`
}

// mode is the mode of the database that goes with the flag.
func (s *simulation) mode() store.Mode {
	if s.Simulator != "" {
		return store.ModeSimulated
	}
	return store.ModeReal
}

// address checks the flag and returns host:port.
func (s *simulation) address() (string, error) {
	bad := func(problem string) error {
		return &usageError{&config.Error{Setting: "--simulator", Problem: problem}}
	}
	u, err := url.Parse(s.Simulator)
	if err != nil || u.Scheme != "http" || u.Host == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.User != nil {
		return "", bad("must be a plain address such as http://127.0.0.1:7700")
	}
	ip := net.ParseIP(u.Hostname())
	if u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "", bad("must be on this machine (127.0.0.1, ::1 or localhost): a process that trusts a simulator's certificate trusts whoever answers there")
	}
	if u.Port() == "" {
		return net.JoinHostPort(u.Hostname(), "80"), nil
	}
	return u.Host, nil
}

// network is WhatsApp, or the simulator of the flag.
func (s *simulation) network(ctx context.Context, log *slog.Logger) (*wa.Network, error) {
	if s.Simulator == "" {
		return wa.RealNetwork(), nil
	}
	addr, err := s.address()
	if err != nil {
		return nil, err
	}
	root, err := fetchRoot(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("simulator at %s: %w (start one with: wafleet sim)", s.Simulator, err)
	}
	n, err := wa.SimulatedNetwork(root, dialLoopback(addr))
	if err != nil {
		return nil, fmt.Errorf("simulator at %s: %w", s.Simulator, err)
	}
	log.WarnContext(ctx, "SIMULATED: this process talks to a simulator and reaches no real person", slog.String("simulator", s.Simulator))
	return n, nil
}

// dialLoopback connects to the simulator whatever the address asked for.
func dialLoopback(addr string) wa.DialFunc {
	d := &net.Dialer{Timeout: 5 * time.Second}
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if remote, ok := conn.RemoteAddr().(*net.TCPAddr); !ok || !remote.IP.IsLoopback() {
			_ = conn.Close()
			return nil, errors.New("simulator is not on this machine")
		}
		return conn, nil
	}
}

// fetchRoot asks the simulator which key its certificates chain to.
func fetchRoot(ctx context.Context, addr string) (root [32]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	transport := &http.Transport{DialContext: dialLoopback(addr)}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/sim/root", nil)
	if err != nil {
		return root, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return root, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	var answer struct {
		Pub string `json:"pub"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 4096)).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
		return root, fmt.Errorf("/sim/root answered %s and no key", resp.Status)
	}
	raw, err := hex.DecodeString(answer.Pub)
	if err != nil || len(raw) != len(root) {
		return root, errors.New("/sim/root did not answer with a key")
	}
	copy(root[:], raw)
	return root, nil
}
