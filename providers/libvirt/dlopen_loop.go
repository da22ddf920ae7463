//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	virt "libvirt.org/go/libvirt"

	"converge.dev/converge/internal/retry"
)

// A loop is the event loop of the library: it tells of sockets that can be read and of timers that have run down. The library's own has to be
// awakened whenever it is told something new, and it is told so several times for each call: that a caller reads the socket itself, that it
// no longer does, and that the server has given a sign of life. Here the kernel is told which sockets matter, and a socket that begins to
// matter is looked at a little later: mostly the next call reads it by then. A timer that is put off is looked at when it would have run
// down. So the loop sleeps through calls, which then take half as long.
type loop struct {
	poll  int // file descriptor of epoll
	wake  int // of what ends its wait
	clock int // of what ends it when the watches that are late have waited long enough

	mu      sync.Mutex
	last    int           // watch or timer
	dials   map[int][]int // watches that threads have added, by thread, while they connect
	handles map[int]*watched
	late    []int // watches that the kernel is yet to look at
	timers  map[int]*timer
	until   time.Time // end of the wait that goes on; zero: there is none
	removed []interface{ Free() }
}

// A watched is a file descriptor.
type watched struct {
	fd     int
	events virt.EventHandleType // none: it is not looked at
	looked virt.EventHandleType // what the kernel looks at
	told   *virt.EventHandleCallbackInfo
}

// A timer runs down again and again.
type timer struct {
	every time.Duration // negative: it stands still
	next  time.Time
	told  *virt.EventTimeoutCallbackInfo
}

// Events of the loop itself; those of watches have their positive numbers.
const (
	wakeEvent  = 0
	clockEvent = -1
)

// pause is for how long a watch is late.
const pause = 2 * time.Millisecond

// runLoop starts a loop that is that of the library from now on.
func runLoop() (*loop, error) {
	l := &loop{dials: map[int][]int{}, handles: map[int]*watched{}, timers: map[int]*timer{}}
	var err error
	if l.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, err
	}
	if l.clock, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return nil, err
	}
	for id, fd := range map[int32]int{wakeEvent: l.wake, clockEvent: l.clock} {
		if err := unix.EpollCtl(l.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: id}); err != nil {
			return nil, err
		}
	}
	if err := virt.EventRegisterImpl(l); err != nil {
		return nil, err
	}
	go l.run()
	return l, nil
}

// during returns the watches that are added by what connect does: libvirt does not tell which sockets are those of a connection, but it adds
// them on the thread that connects.
func (l *loop) during(connect func()) (watches []int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	me := unix.Gettid()
	l.mu.Lock()
	l.dials[me] = []int{}
	l.mu.Unlock()
	connect()
	l.mu.Lock()
	defer l.mu.Unlock()
	watches = l.dials[me]
	delete(l.dials, me)
	return watches
}

// hangUp ends the traffic on the sockets of watches. A watch that was removed is no longer that of its socket.
func (l *loop) hangUp(watches []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range watches {
		if w := l.handles[id]; w != nil {
			_ = unix.Shutdown(w.fd, unix.SHUT_RDWR) // it may have ended by itself
		}
	}
}

// run never ends, as the library has no end.
func (l *loop) run() {
	events := make([]unix.EpollEvent, 16)
	for {
		n, err := unix.EpollWait(l.poll, events, l.rest())
		if err != nil && err != unix.EINTR {
			slog.Error("the event loop of libvirt failed", "error", err)
			_ = retry.Sleep(context.Background(), time.Second)
		}
		for _, e := range events[:max(n, 0)] {
			switch e.Fd {
			case wakeEvent:
				_, _ = unix.Read(l.wake, make([]byte, 8))
			case clockEvent:
				_, _ = unix.Read(l.clock, make([]byte, 8))
				l.catchUp()
			default:
				l.tell(int(e.Fd), e.Events)
			}
		}
		l.expire()
		l.free()
	}
}

// rest returns for how many milliseconds nothing has to be done, -1 for ever, and notes until when.
func (l *loop) rest() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.until = now.Add(math.MaxInt64)
	if len(l.removed) > 0 {
		return 0
	}
	forever := true
	for _, t := range l.timers {
		if t.every >= 0 && t.next.Before(l.until) {
			l.until, forever = t.next, false
		}
	}
	if forever {
		return -1
	}
	left := max(l.until.Sub(now), 0)
	return int(min((left+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
}

// tell passes on what has happened to a watched file descriptor. What is removed meanwhile is freed later.
func (l *loop) tell(watch int, happened uint32) {
	l.mu.Lock()
	w := l.handles[watch]
	var events virt.EventHandleType
	if w != nil && w.events != 0 {
		for _, e := range eventsOf {
			if happened&e.kernel != 0 && (w.events&e.library != 0 || e.always) {
				events |= e.library
			}
		}
	}
	l.mu.Unlock()
	if events != 0 {
		w.told.Invoke(watch, w.fd, events)
	}
}

// expire tells of the timers that have run down.
func (l *loop) expire() {
	l.mu.Lock()
	now := time.Now()
	due := map[int]*timer{}
	for id, t := range l.timers {
		if t.every >= 0 && !t.next.After(now) {
			t.next = now.Add(t.every)
			due[id] = t
		}
	}
	l.mu.Unlock()
	for id, t := range due {
		t.told.Invoke(id)
	}
}

// free frees what was removed: the library does not expect that while it removes something.
func (l *loop) free() {
	l.mu.Lock()
	removed := l.removed
	l.removed = nil
	l.mu.Unlock()
	for _, r := range removed {
		// Free calls a function of the library also where there is none.
		if reflect.ValueOf(r).Elem().FieldByName("free").Uint() != 0 {
			r.Free()
		}
	}
}

// awake ends the wait.
func (l *loop) awake() {
	_, _ = unix.Write(l.wake, binary.NativeEndian.AppendUint64(nil, 1))
}

// eventsOf are the events of the library and of the kernel.
var eventsOf = []struct {
	library virt.EventHandleType
	kernel  uint32
	always  bool // also when nobody has asked for it
}{
	{virt.EVENT_HANDLE_READABLE, unix.EPOLLIN, false},
	{virt.EVENT_HANDLE_WRITABLE, unix.EPOLLOUT, false},
	{virt.EVENT_HANDLE_ERROR, unix.EPOLLERR, true},
	{virt.EVENT_HANDLE_HANGUP, unix.EPOLLHUP, true},
}

// watch has the kernel look at a file descriptor as its events say: a little later when it does not look at it yet.
func (l *loop) watch(id int, w *watched, events virt.EventHandleType) error {
	w.events = events
	switch {
	case events == 0 || w.looked != 0:
		return l.look(id, w)
	case slices.Contains(l.late, id):
		return nil
	}
	if len(l.late) > 0 || l.windUp(pause) == nil { // the clock runs
		l.late = append(l.late, id)
		return nil
	}
	return l.look(id, w)
}

// windUp ends the wait of the loop after some time.
func (l *loop) windUp(after time.Duration) error {
	return unix.TimerfdSettime(l.clock, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(after.Nanoseconds())}, nil)
}

// catchUp has the kernel look at the watches that are late, unless they no longer matter.
func (l *loop) catchUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = slices.DeleteFunc(l.late, func(id int) bool {
		w := l.handles[id]
		if w == nil {
			return true
		}
		err := l.look(id, w)
		if err != nil {
			slog.Error("the event loop of libvirt failed", "error", err)
		}
		return err == nil
	})
	if len(l.late) > 0 {
		_ = l.windUp(time.Second) // it has worked before
	}
}

// look tells the kernel what to look at. A file descriptor without events is not looked at: the kernel would tell of its end all the same, and
// again and again.
func (l *loop) look(id int, w *watched) error {
	if w.looked == w.events {
		return nil
	}
	e := unix.EpollEvent{Fd: int32(id)}
	for _, o := range eventsOf {
		if w.events&o.library != 0 {
			e.Events |= o.kernel
		}
	}
	op := unix.EPOLL_CTL_MOD
	switch {
	case w.looked == 0:
		op = unix.EPOLL_CTL_ADD
	case w.events == 0:
		op = unix.EPOLL_CTL_DEL
	}
	err := unix.EpollCtl(l.poll, op, w.fd, &e)
	if err == nil || w.events == 0 { // then it may be closed already
		w.looked = w.events
	}
	return err
}

// AddHandleFunc implements [virt.EventLoop], as the other methods of these names do.
func (l *loop) AddHandleFunc(fd int, events virt.EventHandleType, told *virt.EventHandleCallbackInfo) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	w := &watched{fd: fd, told: told}
	if err := l.watch(l.last, w, events); err != nil {
		return -1 // the library does without events then
	}
	l.handles[l.last] = w
	if added, dials := l.dials[unix.Gettid()]; dials {
		l.dials[unix.Gettid()] = append(added, l.last)
	}
	return l.last
}

func (l *loop) UpdateHandleFunc(id int, events virt.EventHandleType) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.handles[id]; w != nil {
		if err := l.watch(id, w, events); err != nil {
			slog.Error("the event loop of libvirt failed", "error", err)
		}
	}
}

func (l *loop) RemoveHandleFunc(id int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.handles[id]
	if w == nil {
		return -1
	}
	delete(l.handles, id)
	_ = l.watch(id, w, 0) // it may be closed already
	l.removed = append(l.removed, w.told)
	l.awake()
	return 0
}

func (l *loop) AddTimeoutFunc(ms int, told *virt.EventTimeoutCallbackInfo) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	t := &timer{told: told}
	l.timers[l.last] = t
	l.set(t, ms)
	return l.last
}

func (l *loop) UpdateTimeoutFunc(id, ms int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.timers[id]; t != nil {
		l.set(t, ms)
	}
}

func (l *loop) RemoveTimeoutFunc(id int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.timers[id]
	if t == nil {
		return -1
	}
	delete(l.timers, id)
	l.removed = append(l.removed, t.told)
	l.awake()
	return 0
}

// set starts a timer anew. Negative milliseconds stop it.
func (l *loop) set(t *timer, ms int) {
	t.every = time.Duration(ms) * time.Millisecond
	t.next = time.Now().Add(t.every)
	if t.every >= 0 && t.next.Before(l.until) {
		l.awake()
	}
}
