package ledger

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// What the script reads packed, little endian. The formats are its own: KIND, HEAD, TOKENS, REST, HOLD and COUNT.

// arguments of the script's reserve and look.
func (l *Redis) arguments(r *Request) []string {
	args := make([]string, 0, 27)
	affinity := cmp.Or(r.AffinityTTL, defaultPin).Milliseconds()
	args = append(args,
		string(r.Org), r.Key, strconv.FormatInt(affinity, 10), string(r.Strategy), r.packedDice(),
		strconv.FormatInt(holdSeconds(r.Hold), 10), strconv.FormatInt(int64(r.Version), 10), digit(r.Bound), strconv.Itoa(l.o.HealthMin))
	args = append(args, limitArguments(r.Limits)...)
	move := &r.Move
	if move.Session == "" {
		args = append(args, "", "0", "0", "0")
	} else {
		args = append(args, string(move.Session), strconv.FormatInt(move.Lapses.Unix(), 10), digit(move.NewChat), ms(move.At))
	}
	kinds, kindOf := packCandidates(r.Candidates)
	args = append(args, kinds, kindOf)
	names, begins := packSessions(r.Candidates)
	return append(args, names, begins)
}

// packSessions gives the candidates' sessions in one string, each between zeros, and where in it each begins, counted from
// 1, and where one more would: what is one argument each costs the server more than all else about them.
func packSessions(cs []Candidate) (names, begins string) {
	b, at := []byte{0}, make([]byte, 0, 4*len(cs)+4)
	for i := range cs {
		at = binary.LittleEndian.AppendUint32(at, uint32(len(b)+1))
		b = append(append(b, cs[i].Slug...), 0)
	}
	at = binary.LittleEndian.AppendUint32(at, uint32(len(b)+1))
	return string(b), string(at)
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

func limitArguments(l *Limits) []string {
	if l == nil {
		return []string{"", "", "0", "0", "0", "0", "0", "0", "0", "0"}
	}
	return []string{
		string(l.Project), l.Month, strconv.FormatInt(l.Quota, 10), strconv.FormatInt(l.Backlog, 10),
		number(l.ProjectRate.PerSecond), number(l.ProjectRate.Burst), number(l.OrgRate.PerSecond), number(l.OrgRate.Burst),
		number(l.FleetRate.PerSecond), number(l.FleetRate.Burst),
	}
}

// packCandidates gives the kinds of candidates, each once, and the kind of each as two bytes. Most
// numbers of an organization have one budget, so most of what there is to read is read once.
func packCandidates(cs []Candidate) (kinds, kindOf string) {
	var known []Candidate
	of := make([]byte, 0, 2*len(cs))
	for i := range cs {
		k := cs[i]
		k.Slug = ""
		at := slices.Index(known, k)
		if at < 0 {
			at = len(known)
			known = append(known, k)
		}
		of = binary.LittleEndian.AppendUint16(of, uint16(at))
	}
	b := make([]byte, 0, 36*len(known))
	for i := range known {
		k := &known[i]
		for w := range windows {
			b = binary.LittleEndian.AppendUint32(b, uint32(min(max(0, k.Budget.cap(w)), math.MaxUint32)))
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(digit(k.NewChat)[0]-'0'))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(k.Rate.PerSecond))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(k.Rate.Burst))
	}
	return string(b), string(of)
}

func digit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// unpackAccounts reads what look tells of each candidate.
func unpackAccounts(s string, n int) ([]Account, error) {
	const size = 28
	if len(s) != size*n {
		return nil, fmt.Errorf("ledger: look answers %d bytes for %d candidates", len(s), n)
	}
	accounts := make([]Account, n)
	for i := range accounts {
		var v [7]int
		for k := range v {
			v[k] = int(binary.LittleEndian.Uint32([]byte(s[size*i+4*k:])))
		}
		accounts[i] = Account{Why: Why(v[0]), Used: Budget{v[1], v[2], v[3], v[4]}, Outstanding: v[5], Health: v[6]}
	}
	return accounts, nil
}

// pack gives an account as the script keeps it.
func (a *account) pack() (header string, lists [windows]string) {
	u32 := func(b []byte, values ...int64) []byte {
		for _, v := range values {
			b = binary.LittleEndian.AppendUint32(b, uint32(min(max(0, v), never)))
		}
		return b
	}
	lapse, ill := int64(never), int64(0)
	for _, h := range a.held {
		lapse = min(lapse, h.lapses)
	}
	w := &a.windows
	look := min(w[hour].leaves, lapse)
	if a.healthEnds > 0 {
		ill, look = (a.healthEnds+999)/1000, 0
	}
	b := u32(nil, a.used(minute), a.used(hour), a.used(day), a.used(newChats), look)
	b = append(b, make([]byte, 32)...) // a token bucket that nobody took from
	b = u32(b, a.out, a.chats, ill, w[minute].leaves, w[hour].leaves, w[day].leaves, w[newChats].leaves, lapse)
	for _, h := range a.held {
		b = u32(b, h.lapses, h.n, h.chats)
	}
	for i := range w {
		var list []byte
		for _, c := range w[i].buckets {
			list = u32(list, c.at, c.n)
		}
		lists[i] = string(list)
	}
	return string(b), lists
}
