// Package netns enters network namespaces.
package netns

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Within calls do on a thread that is in a network namespace meanwhile, which a file such as /run/netns/blue stands for. Sockets that do
// opens stay there; what it starts in other goroutines is not there. The thread comes back: one that ended would take processes with it
// that it had started to die with their parent (Pdeathsig is the end of a thread).
func Within(file string, do func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer here.Close()
	there, err := os.Open(file)
	if err != nil {
		return err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	defer func() {
		if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
			panic(err) // whatever this thread did from now on, it would do in the wrong namespace
		}
	}()
	return do()
}
