package cluster

import (
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
)

// The bystander is a small shell that is told which processes run, and kills them when its input ends: when this
// process is killed, nothing of it stays behind.
var bystander = sync.OnceValue(func() io.Writer {
	cmd := exec.Command("sh", "-c", `trap '' INT TERM HUP
		pids=""
		while read -r what pid; do
			case $what in
			+) pids="$pids $pid" ;;
			-) kept=""; for p in $pids; do [ "$p" = "$pid" ] || kept="$kept $p"; done; pids=$kept ;;
			esac
		done
		for p in $pids; do kill -9 "$p" 2>/dev/null; done; :`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return io.Discard
	}
	if err := cmd.Start(); err != nil {
		return io.Discard
	}
	go func() { _ = cmd.Wait() }()
	return in
})

var bystanderMu sync.Mutex

func watch(pid int)   { tellBystander("+", pid) }
func unwatch(pid int) { tellBystander("-", pid) }

func tellBystander(what string, pid int) {
	bystanderMu.Lock()
	defer bystanderMu.Unlock()
	_, _ = fmt.Fprintln(bystander(), what, pid) // a pipe takes a line at once
}
