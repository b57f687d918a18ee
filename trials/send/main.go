// Command send compares the gateway's sends with those of the bare library: messages per second from the first request to
// the last decryption at the recipients' phones, and processor time per message, on the same database server and through
// the same simulator, with 1, 16 and 50 sessions.
//
//	MESSAGES=5000 SESSIONS="1 16 50" DATABASE="postgres sqlite" ROUNDS=2 go run ./trials/send
//
// SETTINGS="LOG_LEVEL=warn" and TAGS="…" change the gateway, for experiments.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/wafleet/wafleet/trials/cluster"
)

func main() {
	run := compare
	if os.Getenv(bareEnv) != "" {
		run = bare
	}
	cluster.Main("bench-send", run)
}

// options are read from the environment, as make gives them.
type options struct {
	messages, rounds int
	sessions         []int
	databases        []string
	settings, tags   []string // of the gateway, for experiments
}

func readOptions() (options, error) {
	o := options{messages: 5000, rounds: 2, sessions: []int{1, 16, 50}, databases: []string{postgres, sqlite}}
	o.settings, o.tags = strings.Fields(os.Getenv("SETTINGS")), strings.Fields(os.Getenv("TAGS"))
	for name, into := range map[string]*int{"MESSAGES": &o.messages, "ROUNDS": &o.rounds} {
		text := os.Getenv(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return o, fmt.Errorf("%s=%q is not a number above 0", name, text)
		}
		*into = n
	}
	if text := os.Getenv("SESSIONS"); text != "" {
		o.sessions = nil
		for word := range strings.FieldsSeq(text) {
			n, err := strconv.Atoi(word)
			if err != nil || n < 1 || n > 1000 {
				return o, fmt.Errorf("SESSIONS=%q: %q is not a number from 1 to 1000", text, word)
			}
			o.sessions = append(o.sessions, n)
		}
	}
	if text := os.Getenv("DATABASE"); text != "" {
		o.databases = strings.Fields(text)
		for _, name := range o.databases {
			if name != postgres && name != sqlite {
				return o, fmt.Errorf("DATABASE=%q: %q is neither %s nor %s", text, name, postgres, sqlite)
			}
		}
	}
	return o, nil
}
