package cluster

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticks is USER_HZ, which is 100 on every Linux.
const ticks = 100

// procStat is what /proc/PID/stat says of a process.
type procStat struct {
	parent    int
	own, gone time.Duration // CPU time of itself, and of its children that ended
}

func readStat(pid int) (procStat, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	// The second field is the name in brackets, and may contain anything.
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	number := func(i int) int64 { n, _ := strconv.ParseInt(f[i-3], 10, 64); return n }
	jiffies := func(n int64) time.Duration { return time.Duration(n) * time.Second / ticks }
	if len(f) < 20 {
		return procStat{}, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	return procStat{int(number(4)), jiffies(number(14) + number(15)), jiffies(number(16) + number(17))}, nil
}

// CPUOf is the user and system time that a process of anybody has used so far. Linux only.
func CPUOf(pid int) (time.Duration, error) {
	s, err := readStat(pid)
	return s.own, err
}

// CPU is the user and system time that the process has used so far. Linux only.
func (p *Process) CPU() (time.Duration, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime(), nil
	default:
	}
	s, err := readStat(p.PID())
	return s.own, err
}

// RSS is the resident memory of the process in bytes. Linux only.
func (p *Process) RSS() (int64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.PID()))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(raw))
	if len(f) < 2 {
		return 0, errNotLinux
	}
	pages, err := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// treeCPU is the CPU time of a process, of its living children, and of those that ended.
func treeCPU(root int) (sum time.Duration, err error) {
	s, err := readStat(root)
	if err != nil {
		return 0, err
	}
	sum = s.own + s.gone
	for _, pid := range children(root) {
		if c, err := readStat(pid); err == nil { // else it just ended, and its parent has its time soon
			sum += c.own + c.gone
		}
	}
	return sum, nil
}

// children lists the living children of a process.
func children(parent int) (pids []int) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil && s.parent == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}
