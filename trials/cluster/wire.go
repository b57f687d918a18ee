package cluster

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Wire is one kept-alive HTTP connection for loads that are measured. net/http's client takes as much processor time for
// a request as a small server does, on the processors that both sides share. It belongs to one goroutine at a time.
type Wire struct {
	conn net.Conn
	read *bufio.Reader
	host string
	out  bytes.Buffer
}

// DialWire connects to the host of a base URL.
func DialWire(ctx context.Context, base string) (*Wire, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{Timeout: callTime}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	return &Wire{conn: conn, read: bufio.NewReader(conn), host: u.Host}, nil
}

// Post posts a JSON body with a bearer key and returns the answer. headers are whole lines that end in CR LF. It takes at
// most half a minute; after an error the connection is of no use.
func (w *Wire) Post(path, key, headers string, body []byte) (status int, answer []byte, err error) {
	w.out.Reset()
	w.out.WriteString("POST " + path + " HTTP/1.1\r\nHost: " + w.host + "\r\nAuthorization: Bearer " + key +
		"\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n" + headers + "\r\n")
	w.out.Write(body)
	if err := w.conn.SetDeadline(time.Now().Add(callTime)); err != nil {
		return 0, nil, err
	}
	if _, err := w.conn.Write(w.out.Bytes()); err != nil {
		return 0, nil, fmt.Errorf("POST %s: %w", path, err)
	}
	resp, err := http.ReadResponse(w.read, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("POST %s: %w", path, err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is read to its end
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// Close ends the connection.
func (w *Wire) Close() { _ = w.conn.Close() }
