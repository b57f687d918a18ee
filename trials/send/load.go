package main

import (
	"fmt"
	"strings"
	"time"
)

const (
	people      = 64 // who is written to
	circle      = 8  // of them by one session
	clients     = 32 // closed-loop HTTP clients of the gateway
	pool        = 16 // database connections of each side
	pairsAtOnce = 8
	pairLimit   = 2 * time.Minute
	sendLimit   = 30 * time.Second
)

// load is one run of sends: message k goes from session k mod Sessions to one of the people of its circle.
type load struct {
	Name     string `json:"name"` // what the texts begin with
	Sessions int    `json:"sessions"`
	Messages int    `json:"messages"`
}

// session says who sends message k.
func (l load) session(k int) int { return k % l.Sessions }

// recipient says who gets message k, in digits.
func (l load) recipient(k int) string {
	return number(5000 + (l.session(k)*circle+k/l.Sessions%circle)%people)
}

// text is what message k says: no two messages say the same.
func (l load) text(k int) string {
	return fmt.Sprintf("%s/%d Your order is on its way and will be with you tomorrow.", l.Name, k)
}

// owns reports whether a text belongs to the load.
func (l load) owns(text string) bool { return strings.HasPrefix(text, l.Name+"/") }

// number is a telephone number that belongs to nobody.
func number(n int) string { return fmt.Sprintf("55119%08d", n) }
