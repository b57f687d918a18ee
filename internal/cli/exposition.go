package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// exposition puts the metrics of several processes together, as text for Prometheus: a family's samples
// must stand together under one heading.
type exposition struct {
	order    []string
	families map[string]*family
}

type family struct{ heading, samples strings.Builder }

// add takes the metrics that one of our processes answered with, and gives each sample a label such as
// shard="1", or none.
func (e *exposition) add(text, label string) {
	if e.families == nil {
		e.families = map[string]*family{}
	}
	var now *family
	fresh := false
	for line := range strings.Lines(text) {
		switch rest, comment := strings.CutPrefix(line, "# "); {
		case comment:
			words := strings.SplitN(rest, " ", 3)
			if len(words) < 3 {
				continue
			}
			if words[0] == "HELP" || now == nil {
				now, fresh = e.families[words[1]], false
				if now == nil {
					now, fresh = &family{}, true
					e.families[words[1]] = now
					e.order = append(e.order, words[1])
				}
			}
			if fresh {
				now.heading.WriteString(line)
			}
		case now == nil || strings.TrimSpace(line) == "":
		case label == "":
			now.samples.WriteString(line)
		default:
			now.samples.WriteString(labelled(line, label))
		}
	}
}

// labelled is a sample with one more label in front.
func labelled(sample, label string) string {
	i := strings.IndexAny(sample, "{ ")
	switch {
	case i < 0:
		return sample
	case sample[i] == '{':
		return sample[:i+1] + label + "," + sample[i+1:]
	default:
		return sample[:i] + "{" + label + "}" + sample[i:]
	}
}

// String is all of it.
func (e *exposition) String() string {
	var b strings.Builder
	for _, name := range e.order {
		b.WriteString(e.families[name].heading.String())
		b.WriteString(e.families[name].samples.String())
	}
	return b.String()
}

// gathered is what a registry would answer over HTTP.
func gathered(reg *prometheus.Registry) (string, error) {
	answer := &answer{header: http.Header{}}
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(answer, &http.Request{Method: http.MethodGet, Header: http.Header{}})
	if answer.status != 0 && answer.status != http.StatusOK {
		return "", fmt.Errorf("gather metrics: %s", strings.TrimSpace(answer.String()))
	}
	return answer.String(), nil
}

// answer keeps what a handler writes.
type answer struct {
	bytes.Buffer
	header http.Header
	status int
}

func (a *answer) Header() http.Header    { return a.header }
func (a *answer) WriteHeader(status int) { a.status = status }

// mostMetrics bounds what is read of one child.
const mostMetrics = 16 << 20

func copyMost(w io.Writer, r io.Reader) (int64, error) {
	return io.Copy(w, io.LimitReader(r, mostMetrics))
}
