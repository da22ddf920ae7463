//go:build failpoint

package failpoint

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// On reports whether points do anything in this build.
const On = true

var (
	mu    sync.Mutex
	rules = fromEnvironment()
	log   *os.File
)

// A rule says what happens the nth time that a point is passed.
type rule struct {
	point string
	nth   int
	act   string
	delay time.Duration
}

// At passes a point.
func At(point string) error {
	if !slices.Contains(Points, point) {
		panic("failpoint: unknown point " + point)
	}
	mu.Lock()
	if log != nil {
		fmt.Fprintln(log, point)
	}
	var due *rule
	for i := range rules {
		if rules[i].point == point {
			if rules[i].nth--; rules[i].nth == 0 {
				due = &rules[i]
			}
		}
	}
	mu.Unlock()
	if due == nil {
		return nil
	}
	return due.do()
}

func (r *rule) do() error {
	switch r.act {
	case "kill":
		return signal(syscall.SIGKILL)
	case "stop":
		return signal(syscall.SIGSTOP)
	case "delay":
		time.Sleep(r.delay)
		return nil
	}
	return fmt.Errorf("%w at %s", ErrInjected, r.point)
}

// signal sends a signal to this thread, which receives it before the call returns: SIGKILL and SIGSTOP then affect the whole
// process. Sent to the process, the signal might wait for another thread to be scheduled while this one continues.
func signal(s syscall.Signal) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return unix.Tgkill(os.Getpid(), unix.Gettid(), s)
}

// fromEnvironment reads the rules. A mistake in them ends the process: a test that injects nothing proves nothing.
func fromEnvironment() []rule {
	if path := os.Getenv("CONVERGE_FAILPOINT_LOG"); path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			panic(err)
		}
		log = f
	}
	var rs []rule
	for _, text := range strings.Split(os.Getenv("CONVERGE_FAILPOINT"), ";") {
		if text == "" {
			continue
		}
		r := rule{nth: 1}
		at, act, ok := strings.Cut(text, "=")
		point, nth, counted := strings.Cut(at, ":")
		var err error
		if counted {
			r.nth, err = strconv.Atoi(nth)
		}
		r.point, r.act = point, act
		if arg, found := strings.CutPrefix(act, "delay("); found {
			r.act = "delay"
			r.delay, err = time.ParseDuration(strings.TrimSuffix(arg, ")"))
		}
		if !ok || err != nil || r.nth < 1 || !slices.Contains(Points, r.point) || !slices.Contains([]string{"kill", "stop", "delay", "fail"}, r.act) {
			panic(fmt.Sprintf("CONVERGE_FAILPOINT: %q is not POINT[:NTH]=kill|stop|delay(DURATION)|fail (%v)", text, err))
		}
		rs = append(rs, r)
	}
	return rs
}
