package wa

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"go.mau.fi/whatsmeow"
)

// DialFunc opens a connection, as net.Dialer.DialContext does.
type DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// ErrMixedNetworks says that a process is either real or simulated, and while a socket runs it trusts one certificate only.
var ErrMixedNetworks = errors.New("this process already talks to another WhatsApp network")

// Network is where sockets connect to: WhatsApp itself or a simulator.
type Network struct {
	simulated bool
	root      [32]byte
	dial      DialFunc
}

// whatsmeow keeps the key that server certificates must chain to in one variable for the whole process. realRoot is
// what it held before anybody changed it.
var realRoot = whatsmeow.WACertPubKey

// process guards that variable.
var process struct {
	sync.Mutex
	mode    string // "", "real" or "simulated": fixed by the first network that is used
	running int    // sockets running now
}

const (
	modeReal      = "real"
	modeSimulated = "simulated"
)

// RealNetwork is WhatsApp. A socket on it ends with ErrMixedNetworks in a process that made a simulated network.
func RealNetwork() *Network {
	d := &net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}
	return &Network{root: realRoot, dial: d.DialContext}
}

// SimulatedNetwork is a simulator whose certificates chain to root; dial must reach it, whatever address it is asked
// for. It changes what the whole process trusts, so it fails with ErrMixedNetworks if a socket of another network is
// running, or ran on the real one.
func SimulatedNetwork(root [32]byte, dial DialFunc) (*Network, error) {
	if dial == nil {
		return nil, errors.New("simulated network: no dial function")
	}
	n := &Network{simulated: true, root: root, dial: dial}
	process.Lock()
	defer process.Unlock()
	if err := n.trustLocked(); err != nil {
		return nil, err
	}
	return n, nil
}

// Simulated reports whether this is a simulator.
func (n *Network) Simulated() bool { return n.simulated }

func (n *Network) mode() string {
	if n.simulated {
		return modeSimulated
	}
	return modeReal
}

// trustLocked makes the process trust this network. The caller holds process.
func (n *Network) trustLocked() error {
	if process.mode != "" && process.mode != n.mode() {
		return ErrMixedNetworks
	}
	if whatsmeow.WACertPubKey != n.root {
		if process.running > 0 {
			return ErrMixedNetworks
		}
		whatsmeow.WACertPubKey = n.root
	}
	process.mode = n.mode()
	return nil
}

// acquire is called by each socket before it dials; release when it has ended.
func (n *Network) acquire() (release func(), err error) {
	process.Lock()
	defer process.Unlock()
	if err := n.trustLocked(); err != nil {
		return nil, err
	}
	process.running++
	return sync.OnceFunc(func() {
		process.Lock()
		defer process.Unlock()
		process.running--
	}), nil
}

// transport gives HTTP over connections from dial. For the simulator the URLs stay https, but a connection that
// DialTLSContext returns is taken as it is: no certificate and no name lookup are needed.
func (n *Network) transport(dial DialFunc) *http.Transport {
	if n.simulated {
		return &http.Transport{DialTLSContext: dial, DialContext: dial}
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dial,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second, ExpectContinueTimeout: time.Second,
	}
}
