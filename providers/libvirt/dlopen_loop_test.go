//go:build linux && cgo && libvirt_dlopen

package libvirt

import (
	"os"
	"testing"

	virt "libvirt.org/go/libvirt"
)

// The event loop tells of what a file descriptor is watched for, and of nothing while it is watched for nothing; its timers run down again and
// again until they are stopped.
func TestLoop(t *testing.T) {
	_, err := events()
	mustDo(t, err)
	r, w, err := os.Pipe()
	mustDo(t, err)
	defer r.Close()
	told := make(chan virt.EventHandleType)
	id := 0
	id, err = virt.EventAddHandle(int(r.Fd()), virt.EVENT_HANDLE_READABLE, func(_ int, fd int, e virt.EventHandleType) {
		if fd != int(r.Fd()) {
			t.Errorf("it is told of file descriptor %d", fd)
		}
		virt.EventUpdateHandle(id, 0) // as the library does while a caller reads
		told <- e
	})
	mustDo(t, err)
	ticks := make(chan struct{})
	clock, err := virt.EventAddTimeout(1, func(int) { ticks <- struct{}{} })
	mustDo(t, err)
	tick := func() { // so often that the loop has looked at everything in between, what is late included
		t.Helper()
		for range 3 + pause.Milliseconds() {
			select {
			case <-ticks:
			case e := <-told:
				t.Fatalf("it is told of %v", e)
			}
		}
	}
	hear := func(want virt.EventHandleType) {
		t.Helper()
		for {
			select {
			case <-ticks:
			case is := <-told:
				if is != want {
					t.Fatalf("it is told of %v, want %v", is, want)
				}
				return
			}
		}
	}
	tick()
	_, err = w.WriteString("x")
	mustDo(t, err)
	hear(virt.EVENT_HANDLE_READABLE)
	tick()
	virt.EventUpdateHandle(id, virt.EVENT_HANDLE_READABLE)
	hear(virt.EVENT_HANDLE_READABLE)
	_, err = r.Read(make([]byte, 1))
	mustDo(t, err)
	virt.EventUpdateHandle(id, virt.EVENT_HANDLE_READABLE)
	tick()
	mustDo(t, w.Close())
	hear(virt.EVENT_HANDLE_HANGUP)
	tick()

	virt.EventUpdateTimeout(clock, -1)
	select { // the last one may have begun
	case <-ticks:
	default:
	}
	done := make(chan struct{})
	once, err := virt.EventAddTimeout(0, func(int) { done <- struct{}{} })
	mustDo(t, err)
	for range 3 {
		select {
		case <-done:
		case <-ticks:
			t.Fatal("a timer that was stopped runs down")
		}
	}
	go func() { // until it is removed
		for range done {
		}
	}()
	mustDo(t, virt.EventRemoveTimeout(once))
	virt.EventUpdateTimeout(clock, 1)
	<-ticks
	go func() {
		for range ticks {
		}
	}()
	mustDo(t, virt.EventRemoveTimeout(clock))
	virt.EventUpdateHandle(id, virt.EVENT_HANDLE_READABLE)
	hear(virt.EVENT_HANDLE_HANGUP)
	mustDo(t, virt.EventRemoveHandle(id))
	mustDo(t, r.Close())
}
